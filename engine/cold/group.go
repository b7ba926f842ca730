package cold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/scarce"
)

// Group owns the generations of one shard.
//
// A generation stays on disk while somebody retains it or a snapshot names it (pins.go). Open of
// the store removes all other generations. If the shard splits, shards of other groups use its
// generations too, even after Drop.
type Group struct {
	store  *Store
	number uint32
	*generations

	pinning sync.Mutex // held by Pin and Sweep; acquired before Store.mu and generations.mu
	dropped bool       // guarded by pinning
}

// generations are the generations of a group on disk. If they outlive a Drop, the next Group of the same number has
// the same ones.
type generations struct {
	mu struct {
		sync.Mutex
		open   map[uint64]*Generation // the retained generations
		stored map[uint64]struct{}    // the numbers on disk
		pins   map[pin][]uint64
		pinned map[uint64]int // number of pins that name a generation
		held   int            // number of Holds that were not released
		// unlisted means that some generations or pins on disk may be missing here.
		unlisted bool
	}
}

// Name names a generation of a store.
type Name struct {
	Group  uint32
	Number uint64
}

var _ engine.Cold = (*Group)(nil)

// Group returns the group with the given number. It has those generations of an earlier process that a snapshot names.
func (s *Store) Group(number uint32) (*Group, error) {
	done, err := s.db.Use()
	if err != nil {
		return nil, err
	}
	defer done()
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.mu.groups[number]; g != nil {
		return g, nil
	}
	g := &Group{store: s, number: number, generations: new(generations)}
	g.mu.open, g.mu.stored, g.mu.pins = map[uint64]*Generation{}, map[uint64]struct{}{}, map[pin][]uint64{}
	g.mu.pinned = map[uint64]int{}
	if err := g.list(); err != nil {
		g.goOnUnlisted(err)
	}
	s.mu.groups[number] = g
	return g, nil
}

// goOnUnlisted lets a group start although list failed, so that the node still serves the rows that
// it can read. Open can still find a generation by its number. Until the next start the group
// removes no generation, because a pin that could not be read may name the generation. The store
// must not reuse a number that may be on disk. The time in nanoseconds is a safe next number: all
// numbers so far count up from 0 or from the time of an earlier start. The caller holds Store.mu.
func (g *Group) goOnUnlisted(err error) {
	g.store.cfg.Logger.Error("cannot list all cold rows on disk: none will be removed before the next start", "group", g.number, "err", err)
	g.store.stats.damaged.Add(1)
	g.mu.held++
	g.mu.unlisted = true
	g.store.aboveLocked(uint64(time.Now().UnixNano()))
}

// list reads which generations and pins are on disk. The caller holds Store.mu.
func (g *Group) list() error {
	err := g.each(keyGeneration, func(key, _ []byte) error {
		if len(key) != 8 {
			return fmt.Errorf("%w: a generation's name has %d bytes", ErrDamaged, len(key))
		}
		number := binary.BigEndian.Uint64(key)
		g.mu.stored[number] = struct{}{}
		g.store.aboveLocked(number)
		return nil
	})
	if err != nil {
		return err
	}
	read := func(p pin, value []byte) error {
		pinned, err := parsePin(value)
		g.pinLocked(p, pinned)
		for _, number := range pinned {
			g.store.aboveLocked(number)
		}
		return err
	}
	err = g.each(keyPin, func(key, value []byte) error { return read(pin{g.number, string(key)}, value) })
	if err != nil {
		return err
	}
	return g.each(keyOthersPin, func(key, value []byte) error {
		if len(key) < 4 {
			return fmt.Errorf("%w: the pin of another group's snapshot has a name of %d bytes", ErrDamaged, len(key))
		}
		return read(pin{binary.BigEndian.Uint32(key), string(key[4:])}, value)
	})
}

// aboveLocked makes the number of the next generation higher than number, which is already used on
// disk or in a snapshot.
func (s *Store) aboveLocked(number uint64) { s.mu.next = max(s.mu.next, number+1) }

// each calls fn for every key of the group with the given kind. The key that fn receives lacks the
// kind and the group.
func (g *Group) each(kind byte, fn func(key, value []byte) error) error {
	prefix := groupKey(kind, g.number)
	it, err := g.store.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: scarce.PrefixEnd(prefix)})
	if err != nil {
		return err
	}
	for it.First(); it.Valid() && err == nil; it.Next() {
		err = fn(it.Key()[len(prefix):], it.Value())
	}
	return errors.Join(err, it.Error(), it.Close())
}

// OpenNamed is Open for a generation of any group.
func (g *Group) OpenNamed(n Name, sum uint32) (*Generation, error) {
	of, err := g.of(n.Group)
	if err != nil {
		return nil, err
	}
	return of.Open(n.Number, sum)
}

// of returns a group of the same store.
func (g *Group) of(number uint32) (*Group, error) {
	if number == g.number {
		return g, nil
	}
	return g.store.Group(number)
}

// Open returns the generation that a snapshot names by number and sum. The caller must release it.
// Open returns ErrDamaged if the generation is missing or has another sum.
func (g *Group) Open(number uint64, sum uint32) (*Generation, error) {
	done, err := g.store.db.Use()
	if err != nil {
		return nil, err
	}
	defer done()
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.mu.open[number]
	if n == nil {
		x, err := g.readIndex(number)
		if err != nil {
			return nil, fmt.Errorf("generation %d of group %d: %w", number, g.number, err)
		}
		n = &Generation{group: g, number: number, index: x}
	}
	if n.sum != sum {
		return nil, fmt.Errorf("%w: generation %d of group %d differs from the snapshot's", ErrDamaged, number, g.number)
	}
	n.needed.Add(1)
	g.mu.open[number] = n
	return n, nil
}

func (g *Group) readIndex(number uint64) (index, error) {
	key := generationKey(keyGeneration, g.number, number)
	value, closer, err := g.store.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return index{}, fmt.Errorf("%w: it is missing", ErrDamaged)
	}
	if err != nil {
		return index{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	x, err := parseIndex(key, value)
	return x, errors.Join(err, closer.Close())
}

// Stored returns the number of generations on disk.
func (g *Group) Stored() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.mu.stored)
}

// newGeneration returns a generation with the next number.
func (g *Group) newGeneration() *Generation {
	s := g.store
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &Generation{group: g, number: s.mu.next}
	s.mu.next++
	return n
}

// opened registers new generations, each with one reference.
func (g *Group) opened(made []*Generation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range made {
		n.needed.Store(1)
		g.mu.open[n.number] = n
		g.mu.stored[n.number] = struct{}{}
	}
}

// unneeded removes a generation that nobody retains, unless it was opened again or a
// snapshot names it. If it cannot be removed now, the next Sweep of its group or the next start removes it.
func (g *Group) unneeded(n *Generation) {
	done, err := g.store.db.Use()
	if err != nil {
		return // the next start removes it
	}
	defer done()
	g.mu.Lock()
	defer g.mu.Unlock()
	if n.needed.Load() > 0 || g.mu.open[n.number] != n {
		return
	}
	delete(g.mu.open, n.number)
	if err := g.removeLocked(n.number); err != nil {
		g.store.db.Limited().Warn("cannot remove unneeded cold rows: it is tried again, at the latest at the next start", "group", g.number, "generation", n.number, "err", err)
	}
}

// removeLocked deletes a generation from disk unless it is needed. It does not sync: a generation
// that reappears after a crash does no harm.
func (g *Group) removeLocked(number uint64) error {
	_, stored := g.mu.stored[number]
	if !stored || g.mu.held > 0 || g.mu.pinned[number] > 0 || g.mu.open[number] != nil {
		return nil
	}
	batch := g.store.db.NewBatch()
	defer batch.Close()
	err := g.deleteFrom(batch, number)
	if err == nil {
		err = batch.Commit(pebble.NoSync)
	}
	if err != nil {
		return err
	}
	delete(g.mu.stored, number)
	return nil
}

// deleteFrom adds the removal of a generation to a batch.
func (g *Group) deleteFrom(batch *pebble.Batch, number uint64) error {
	first := generationKey(keyBlock, g.number, number)
	if err := batch.DeleteRange(first, scarce.PrefixEnd(first), nil); err != nil {
		return err
	}
	return batch.Delete(generationKey(keyGeneration, g.number, number), nil)
}

// Hold keeps all generations on disk until the caller calls release, also those of other groups that a snapshot of
// this group names. The caller must call release
// exactly once. A reader of a stored snapshot may need all generations that the snapshot names,
// even if the snapshot is deleted meanwhile. The first Sweep after the release removes the
// generations that are no longer needed.
func (g *Group) Hold() (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.held++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.mu.held--
	}
}

// Drop removes the data of a group from the disk, and what its snapshots need of other groups. Generations stay that
// other groups need: their snapshots name them, or their tables retain them. The group itself must retain none.
func (s *Store) Drop(number uint32) error { return s.drop(number, false) }

// Erase is Drop for all generations, even if they are needed: their rows are then lost.
func (s *Store) Erase(number uint32) error { return s.drop(number, true) }

func (s *Store) drop(number uint32, all bool) error {
	done, err := s.db.Use()
	if err != nil {
		return err
	}
	defer done()
	g, err := s.Group(number)
	if err != nil {
		return err
	}
	g.pinning.Lock() // a late Sweep must not remove pins of a new group with this number
	defer g.pinning.Unlock()
	g.dropped = true
	others := s.others(number)
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, err := g.remove(others, all)
	if err != nil {
		return fmt.Errorf("cannot remove the cold rows of group %d: %w", number, err)
	}
	if delete(s.mu.groups, number); kept {
		s.mu.groups[number] = &Group{store: s, number: number, generations: g.generations}
	}
	for _, of := range others {
		err = errors.Join(err, of.sweep(number, nil))
	}
	return err
}

// remove removes the group's data with one sync, except generations that other groups need, and its pins in other
// groups. It reports whether there are such generations. If all is set, it keeps none. The caller holds Store.mu.
func (g *Group) remove(others []*Group, all bool) (kept bool, err error) {
	batch := g.store.db.NewBatch()
	defer batch.Close()
	for _, of := range others {
		for p := range of.pinsOf(g.number) {
			err = errors.Join(err, batch.Delete(of.pinKey(p), nil))
		}
	}
	g.mu.Lock() // until the end: a concurrent unlessGone must see that the generations are gone
	defer g.mu.Unlock()
	needed := map[uint64]bool{}
	for p, numbers := range g.mu.pins {
		for _, number := range numbers {
			needed[number] = needed[number] || p.owner != g.number
		}
	}
	var gone []uint64
	for number := range g.mu.stored {
		if !all && (g.mu.unlisted || needed[number] || g.mu.open[number] != nil) {
			kept = true
		} else {
			gone = append(gone, number)
		}
	}
	kept = kept || g.mu.unlisted && !all
	kinds := []byte{keyPin}
	if kept {
		for _, number := range gone {
			err = errors.Join(err, g.deleteFrom(batch, number))
		}
	} else {
		kinds = append(kinds, keyBlock, keyGeneration, keyOthersPin)
	}
	for _, kind := range kinds {
		first := groupKey(kind, g.number)
		err = errors.Join(err, batch.DeleteRange(first, scarce.PrefixEnd(first), nil))
	}
	if err = errors.Join(err, g.store.dropRecords(batch, g.number)); err == nil {
		err = batch.Commit(pebble.Sync)
	}
	if err != nil {
		return false, err
	}
	for _, number := range gone {
		delete(g.mu.stored, number)
	}
	for p := range g.mu.pins {
		if all || p.owner == g.number {
			g.unpinLocked(p)
		}
	}
	return kept, nil
}

// others returns the groups of the store but one.
func (s *Store) others(number uint32) (others []*Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.mu.groups {
		if g.number != number {
			others = append(others, g)
		}
	}
	return others
}

// openAll opens the groups that have generations on disk, and those with generations that snapshots of other groups
// name. So Sweep finds all pins of a group, even if no replica of the other group is on this node. openAll removes the
// generations without a pin. Nobody needs them after a start: a replica starts from a stored snapshot, which has pins
// for all that it names.
func (s *Store) openAll() error {
	for _, kind := range []byte{keyGeneration, keyOthersPin} {
		numbers, err := s.numbers(kind)
		if err != nil {
			s.cfg.Logger.Error("cannot list all cold rows on disk: some that nobody needs may stay until the next start", "err", err)
			s.stats.damaged.Add(1)
		}
		for _, number := range numbers {
			g, err := s.Group(number)
			if err != nil {
				return err
			}
			if err := g.removeUnneeded(); err != nil {
				s.cfg.Logger.Warn("cold rows that nobody needs stay until the next start", "err", err)
			}
		}
	}
	return nil
}

// numbers returns the groups that have keys of a kind. After an error, it returns only the groups whose keys it has
// read.
func (s *Store) numbers(kind byte) (numbers []uint32, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{kind}, UpperBound: []byte{kind + 1}})
	if err != nil {
		return nil, err
	}
	for more := it.First(); more; more = it.SeekGE(scarce.PrefixEnd(groupKey(kind, numbers[len(numbers)-1]))) {
		key := it.Key()
		if len(key) < 5 {
			err = fmt.Errorf("%w: a key of %d bytes", ErrDamaged, len(key))
			break
		}
		numbers = append(numbers, binary.BigEndian.Uint32(key[1:]))
	}
	return numbers, errors.Join(err, it.Error(), it.Close())
}
