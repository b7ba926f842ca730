package cold

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// A snapshot that names generations is of use only while they are there. So
// before one is finished its name is noted with all that it names: a pin, which
// goes once the snapshot has gone.

// Pin notes the generations that a snapshot names. They are retained until it
// returns. It is durable then.
func (g *Group) Pin(snapshot string, generations []uint64) error {
	done, err := g.store.use()
	if err != nil {
		return err
	}
	defer done()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(generations) == 0 {
		return nil
	}
	value := make([]byte, 0, 8*len(generations))
	for _, number := range generations {
		value = binary.BigEndian.AppendUint64(value, number)
	}
	if err := g.store.db.Set(append(groupKey(keyPin, g.number), snapshot...), value, pebble.Sync); err != nil {
		return fmt.Errorf("cannot note the cold rows of snapshot %s: %w", snapshot, err)
	}
	g.unpinLocked(snapshot)
	g.pinLocked(snapshot, slices.Clone(generations))
	return nil
}

func (g *Group) pinLocked(snapshot string, generations []uint64) {
	g.mu.pins[snapshot] = generations
	for _, number := range generations {
		g.mu.pinned[number]++
	}
}

func (g *Group) unpinLocked(snapshot string) {
	for _, number := range g.mu.pins[snapshot] {
		if g.mu.pinned[number]--; g.mu.pinned[number] == 0 {
			delete(g.mu.pinned, number)
		}
	}
	delete(g.mu.pins, snapshot)
}

func parsePin(value []byte) ([]uint64, error) {
	if len(value)%8 != 0 {
		return nil, fmt.Errorf("%w: a note of a snapshot has %d bytes", ErrDamaged, len(value))
	}
	var numbers []uint64
	for ; len(value) > 0; value = value[8:] {
		numbers = append(numbers, binary.BigEndian.Uint64(value))
	}
	return numbers, nil
}

// Sweep removes the pins of snapshots that kept does not return, and then the
// generations that nobody needs. kept returns finished snapshots and those being
// written. The first Sweep after Store.Group must follow the opening of the generations
// in use.
func (g *Group) Sweep(kept func() ([]string, error)) error {
	done, err := g.store.use()
	if err != nil {
		return err
	}
	defer done()
	g.mu.Lock() // kept sees the snapshot of every pin, none of which is made meanwhile
	defer g.mu.Unlock()
	names, err := kept()
	if err != nil {
		return fmt.Errorf("cannot tell which cold rows snapshots name: %w", err)
	}
	for snapshot := range g.mu.pins {
		if slices.Contains(names, snapshot) {
			continue
		}
		if err := g.store.db.Delete(append(groupKey(keyPin, g.number), snapshot...), pebble.NoSync); err != nil {
			return fmt.Errorf("cannot remove the note of snapshot %s: %w", snapshot, err)
		}
		g.unpinLocked(snapshot)
	}
	for number := range g.mu.stored {
		if err := g.removeLocked(number); err != nil {
			return fmt.Errorf("cannot remove generation %d of group %d: %w", number, g.number, err)
		}
	}
	return nil
}
