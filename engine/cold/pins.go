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

// A snapshot of a shard that split, or of one that adopted a part, may name generations of other groups. Its pins there
// have its own group as their owner.

// pin names a snapshot.
type pin struct {
	owner    uint32 // number of its group
	snapshot string
}

// pinKey returns the key of a pin of the group's generations.
func (g *Group) pinKey(p pin) []byte {
	if p.owner == g.number {
		return append(groupKey(keyPin, g.number), p.snapshot...)
	}
	return append(binary.BigEndian.AppendUint32(groupKey(keyOthersPin, g.number), p.owner), p.snapshot...)
}

// Pin durably stores which generations a snapshot names. The caller must retain them until Pin
// returns.
func (g *Group) Pin(snapshot string, named []*Generation) error {
	done, err := g.store.db.Use()
	if err != nil {
		return err
	}
	defer done()
	g.pinning.Lock()
	defer g.pinning.Unlock()
	if len(named) == 0 {
		return nil
	}
	groups, by := map[uint32]*Group{}, map[uint32][]uint64{}
	for _, n := range named {
		of := n.group.number
		groups[of], by[of] = n.group, append(by[of], n.number)
	}
	batch := g.store.db.NewBatch()
	defer batch.Close()
	p := pin{g.number, snapshot}
	for of, numbers := range by {
		slices.Sort(numbers)
		numbers = slices.Compact(numbers)
		by[of] = numbers
		value := make([]byte, 0, 8*len(numbers))
		for _, number := range numbers {
			value = binary.BigEndian.AppendUint64(value, number)
		}
		if err := batch.Set(groups[of].pinKey(p), value, nil); err != nil {
			return fmt.Errorf("cannot pin the cold rows of snapshot %s: %w", snapshot, err)
		}
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("cannot pin the cold rows of snapshot %s: %w", snapshot, err)
	}
	for number, numbers := range by {
		of := groups[number]
		of.mu.Lock()
		of.unpinLocked(p)
		of.pinLocked(p, numbers)
		of.mu.Unlock()
	}
	return nil
}

func (g *Group) pinLocked(p pin, generations []uint64) {
	g.mu.pins[p] = generations
	for _, number := range generations {
		g.mu.pinned[number]++
	}
}

func (g *Group) unpinLocked(p pin) {
	for _, number := range g.mu.pins[p] {
		if g.mu.pinned[number]--; g.mu.pinned[number] == 0 {
			delete(g.mu.pinned, number)
		}
	}
	delete(g.mu.pins, p)
}

// pinsOf returns the pins of an owner.
func (g *Group) pinsOf(owner uint32) map[pin][]uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	pins := map[pin][]uint64{}
	for p, numbers := range g.mu.pins {
		if p.owner == owner {
			pins[p] = numbers
		}
	}
	return pins
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

// Sweep removes the pins of all snapshots that listKept does not return. Then it removes the generations of this group
// that nobody needs, and such generations of other groups in which it has removed a pin. listKept must return the
// finished snapshots and those being written. Before the first Sweep, the caller must have opened all generations that
// it uses.
func (g *Group) Sweep(listKept func() ([]string, error)) error {
	done, err := g.store.db.Use()
	if err != nil {
		return err
	}
	defer done()
	g.pinning.Lock() // no new pin meanwhile: names would lack its snapshot
	defer g.pinning.Unlock()
	if g.dropped {
		return nil
	}
	names, err := listKept()
	if err != nil {
		return fmt.Errorf("cannot list the snapshots that name cold rows: %w", err)
	}
	if err := g.sweep(g.number, names); err != nil {
		return err
	}
	if g.isHeld() {
		return nil // somebody may still read a snapshot that is gone
	}
	for _, of := range g.store.others(g.number) {
		if err := of.sweep(g.number, names); err != nil {
			return err
		}
	}
	return nil
}

func (g *Group) isHeld() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.held > 0
}

// sweep removes the pins of an owner's snapshots other than kept. Then it removes the generations that nobody needs,
// unless the owner is another group and no pin was removed.
func (g *Group) sweep(owner uint32, kept []string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	removed := owner == g.number
	for p := range g.mu.pins {
		if p.owner != owner || slices.Contains(kept, p.snapshot) {
			continue
		}
		if err := g.store.db.Delete(g.pinKey(p), pebble.NoSync); err != nil {
			return fmt.Errorf("cannot remove the pin of snapshot %s: %w", p.snapshot, err)
		}
		g.unpinLocked(p)
		removed = true
	}
	if !removed {
		return nil
	}
	return g.removeUnneededLocked()
}

func (g *Group) removeUnneeded() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.removeUnneededLocked()
}

// removeUnneededLocked removes the generations that nobody retains and no snapshot names.
func (g *Group) removeUnneededLocked() error {
	for number := range g.mu.stored {
		if err := g.removeLocked(number); err != nil {
			return fmt.Errorf("cannot remove generation %d of group %d: %w", number, g.number, err)
		}
	}
	return nil
}
