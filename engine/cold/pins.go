package cold

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// A snapshot that names generations is useless without them. So Pin stores the name of a snapshot
// and its generations before the owner finishes the snapshot. Sweep removes the pin once the
// snapshot is gone.

// Pin durably stores which generations a snapshot names. The caller must retain them until Pin
// returns.
func (g *Group) Pin(snapshot string, generations []uint64) error {
	done, err := g.store.db.Use()
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
		return fmt.Errorf("cannot pin the cold rows of snapshot %s: %w", snapshot, err)
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
		return nil, fmt.Errorf("%w: the pin of a snapshot has %d bytes", ErrDamaged, len(value))
	}
	var numbers []uint64
	for ; len(value) > 0; value = value[8:] {
		numbers = append(numbers, binary.BigEndian.Uint64(value))
	}
	return numbers, nil
}

// Sweep removes the pins of all snapshots that listKept does not return, and then the generations
// that nobody needs. listKept must return the finished snapshots and those being written. Before
// the first Sweep, the caller must have opened all generations that it uses.
func (g *Group) Sweep(listKept func() ([]string, error)) error {
	done, err := g.store.db.Use()
	if err != nil {
		return err
	}
	defer done()
	g.mu.Lock() // no new pin meanwhile: names would lack its snapshot
	defer g.mu.Unlock()
	names, err := listKept()
	if err != nil {
		return fmt.Errorf("cannot list the snapshots that name cold rows: %w", err)
	}
	for snapshot := range g.mu.pins {
		if slices.Contains(names, snapshot) {
			continue
		}
		if err := g.store.db.Delete(append(groupKey(keyPin, g.number), snapshot...), pebble.NoSync); err != nil {
			return fmt.Errorf("cannot remove the pin of snapshot %s: %w", snapshot, err)
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
