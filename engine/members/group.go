package members

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// Group owns the sets of one replica of a shard. Only the goroutine of the state machine may call
// Begin, Split, AdoptPart, Capture, Load and Reset, and use the values that they return. The other
// methods are safe for concurrent use.
type Group struct {
	store  *Store
	number uint32

	// state is the state after the newest entry that the store has. A replay after a restart begins
	// at an earlier state.
	state State
	// reading is held for reading while the fields below are in use, and for writing to
	// change them.
	reading sync.RWMutex
	broken  error            // if not nil, why the sets are unusable until a Load replaces them
	log     prefix           // of the outcomes and records: the group, and the number of the load
	at      prefix           // of the pairs and deleted rows: log or a home
	own     bool             // there may be pairs in use under log: at is log, or those before a Split are there
	dead    map[uint64]Stamp // stamps of deleted rows that still have pairs on disk
	split   uint64           // index of the Split that the state names; 0 if Trim has removed its records since

	// recorded is set if records of the group may be on disk, in any generation. It stays set until the
	// group is closed.
	recorded atomic.Bool

	// stepping is held for a step of a Parting, and while a commit or another change of the sets is written. It is
	// acquired after Store.writes and Store.naming, and before reading.
	stepping sync.Mutex
	parting  *copies // nil if the sets are not being parted; guarded by stepping
	closed   bool    // no Parting begins any more; guarded by stepping

	known   knownPairs
	loading atomic.Bool // a Load has written a block, and its Switch may follow

	mu struct {
		sync.Mutex
		views []*View // views for stored snapshots, oldest first
		held  int     // number of HoldViews that were not released
	}
}

// Group returns the sets of a group as they are on disk. If an earlier Group value with that number is
// open, Group closes it; the caller must not use it any more.
func (s *Store) Group(number uint32) (*Group, error) {
	s.mu.Lock()
	before := s.mu.groups[number]
	s.mu.Unlock()
	if before != nil {
		before.group.Close()
	}
	done, err := s.use() // a discard must wait until the generation is known
	if err != nil {
		return nil, err
	}
	defer done()
	g := &Group{store: s, number: number}
	s.naming.Lock() // until the homes that the records name have their owner, nobody adopts one
	defer s.naming.Unlock()
	g.reading.Lock() // readers must wait too
	defer g.reading.Unlock()
	s.mu.Lock()
	s.openLocked(g)
	s.mu.Unlock()
	found, err := readState(s.present(), number)
	g.log, g.at, g.split = found.log(number), found.pairs(number), found.split
	g.own = found.ownPairs()
	g.recorded.Store(err != nil || found.split > 0)
	if err == nil && !s.homes.known() {
		err = s.homes.ownAll(s.present(), number, found)
	}
	if err == nil {
		g.dead, err = readDead(s.present(), g.at)
	}
	if err == nil {
		if err = g.removeOthers(); errors.Is(err, ErrDamaged) {
			g.recorded.Store(true)
			err = nil // the other generations stay, and nobody reads them
		}
	}
	if err != nil {
		// The replica serves counts although the sets are unreadable. Generations count up from 1
		// or from a clock reading like this one. So no earlier generation is above the clock, and
		// the next load gets an unused number.
		s.db.Limited().Error("the members of a group cannot be read", "group", number, "err", err)
		g.broken, g.log, g.dead = damaged(err), prefix{number, uint32(time.Now().Unix())}, map[uint64]Stamp{}
		g.at = g.log
		return g, nil
	}
	if g.setState(found.state); found.state.Pairs > 0 {
		g.wantFilter()
	}
	return g, nil
}

// usable returns an error if the sets are unusable, and nil if they are usable.
func (g *Group) usable() error {
	g.reading.RLock()
	defer g.reading.RUnlock()
	return g.broken
}

// stateOnDisk returns what the state on disk is with the given State. The caller holds reading.
func (g *Group) stateOnDisk(s State) groupState {
	return groupState{generation: g.log.generation, state: s, split: g.split, home: g.at.home()}
}

// setState stores the new state in memory, and updates the store's number of pairs.
func (g *Group) setState(s State) {
	all := g.store.pairs.Add(int64(s.Pairs) - int64(g.state.Pairs))
	g.state = s
	if all < g.store.filters.lackedAt.Load() {
		g.store.filters.lackedAt.Store(0)
		g.store.retryFilters()
	}
}

// removeOthers removes all generations but the group's own. A crash leaves such generations if it
// interrupts a load, or the removal of the old generation after a load. Then the generation has keys
// of other kinds besides records, so removeOthers need not look for those. Store.Open has removed the homes that
// only such records name.
func (g *Group) removeOthers() error {
	batch := g.store.db.NewBatch()
	defer batch.Close()
	var errs []error
	for _, kind := range generationKinds {
		own, all := g.log.kind(kind), groupPrefix(kind, g.number)
		for _, others := range [...][2][]byte{{all, own}, {scarce.PrefixEnd(own), scarce.PrefixEnd(all)}} {
			if kind == keyRecord {
				if !batch.Empty() {
					errs = append(errs, batch.DeleteRange(others[0], others[1], nil))
				}
				continue
			}
			errs = append(errs, eachFrom(g.store.present(), others[0], others[1], func(_, _ []byte) (bool, error) {
				return false, batch.DeleteRange(others[0], others[1], nil)
			}))
		}
	}
	if err := errors.Join(errs...); err != nil || batch.Empty() {
		return err
	}
	return batch.Commit(pebble.NoSync)
}

// step calls fn while no commit and no other step runs, and commits the batch that fn has filled, even after an error.
func (g *Group) step(fn func(batch *pebble.Batch) error) error {
	done, err := g.store.use()
	if err != nil {
		return err
	}
	defer done()
	g.stepping.Lock()
	defer g.stepping.Unlock()
	batch := g.store.db.NewBatch()
	defer batch.Close()
	if err = fn(batch); !batch.Empty() {
		err = errors.Join(err, batch.Commit(pebble.NoSync))
	}
	return err
}

// endParting ends the Parting of the group, if it has one, and removes the homes in a batch. The caller holds stepping.
func (g *Group) endParting(batch *pebble.Batch) error {
	c := g.parting
	if c == nil {
		return nil
	}
	g.parting = nil
	return g.store.homes.leave(batch, c.homes...)
}

// State returns the state after the newest entry that the store has.
func (g *Group) State() State { return g.state }

// DiskBytes returns roughly how many bytes the sets take on disk, with their copies for a Split.
func (g *Group) DiskBytes() (total uint64) {
	done, err := g.begin()
	if err != nil {
		return 0
	}
	defer done()
	all := []prefix{g.log}
	for _, n := range g.store.homes.of(g.number) {
		all = append(all, home(n))
	}
	for _, at := range all {
		for _, kind := range [...]byte{keyMember, keyTime, keyOf} {
			prefix := at.kind(kind)
			bytes, err := g.store.db.EstimateDiskUsage(prefix, scarce.PrefixEnd(prefix))
			if err == nil { // skip a damaged file: a read will report it
				total += bytes
			}
		}
	}
	return total
}

// Generation returns the number of the load that the sets came from.
func (g *Group) Generation() uint32 {
	g.reading.RLock()
	defer g.reading.RUnlock()
	return g.log.generation
}

// Dying returns the number of deleted rows whose pairs are not all removed yet.
func (g *Group) Dying() int {
	g.reading.RLock()
	defer g.reading.RUnlock()
	return len(g.dead)
}

// Sync makes all committed entries durable.
func (g *Group) Sync() error {
	done, err := g.store.db.Use()
	if err != nil {
		return err
	}
	defer done()
	if err := g.store.db.LogData(nil, pebble.Sync); err != nil {
		return fmt.Errorf("cannot sync members: %w", err)
	}
	return nil
}

// Trim removes the outcomes of entries up to index, and what Splits up to index have left: the sets before
// the Split, and the parts that no group has adopted. The
// caller must keep only snapshots with these entries, so that no restart replays them.
func (g *Group) Trim(index uint64) error {
	done, err := g.store.use()
	if err != nil {
		return err
	}
	defer done()
	g.reading.RLock()
	log, split := g.log, g.split
	g.reading.RUnlock()
	if split > 0 {
		return g.forgetSplits(index)
	}
	if err := g.store.db.DeleteRange(log.kind(keyOutcome), log.number(keyOutcome, index+1), pebble.NoSync); err != nil {
		return fmt.Errorf("cannot remove outcomes of members: %w", err)
	}
	return nil
}

// forgetSplits removes the outcomes up to index, and what Splits up to index have left. The caller must have called
// Use and hold Store.writes.
func (g *Group) forgetSplits(index uint64) error {
	s := g.store
	s.naming.Lock() // nobody adopts a part meanwhile
	defer s.naming.Unlock()
	g.reading.Lock() // no Split meanwhile
	defer g.reading.Unlock()
	records, err := readRecords(s.present(), g.log)
	if err != nil {
		return err
	}
	batch := s.db.NewBatch()
	defer batch.Close()
	err = batch.DeleteRange(g.log.kind(keyOutcome), g.log.number(keyOutcome, index+1), nil)
	left := false
	for _, r := range records {
		switch {
		case r.split > index:
			left = true
			continue
		case r.home == 0:
			err = errors.Join(err, g.log.removePairs(batch))
		default:
			err = errors.Join(err, s.homes.leave(batch, r.home))
		}
		err = errors.Join(err, batch.Delete(g.log.record(r.split, r.part), nil))
	}
	if err = errors.Join(err, batch.Commit(pebble.NoSync)); err != nil {
		return fmt.Errorf("cannot remove the members of other parts: %w", err)
	}
	if !left {
		g.split, g.own = 0, g.at == g.log
	}
	return nil
}

// Adopts returns an ErrDamaged unless a replay can start from generation and s, which a snapshot of
// this replica names.
func (g *Group) Adopts(generation uint32, s State) error {
	broken := g.usable()
	switch {
	case broken != nil:
		return broken
	case generation != g.log.generation || s.Index > g.state.Index:
		return fmt.Errorf("%w: the snapshot names entry %d of load %d, the disk has %d of %d",
			ErrDamaged, s.Index, generation, g.state.Index, g.log.generation)
	case s.Index == g.state.Index && s != g.state:
		return fmt.Errorf("%w: the sets differ from the snapshot's at entry %d", ErrDamaged, s.Index)
	case s.Index < g.state.Index:
		return g.follows(s)
	}
	return nil
}

// follows returns an ErrDamaged unless the store has the first outcome after state s. Without that
// outcome, a replay would assume that its entry changed no set.
func (g *Group) follows(s State) error {
	done, err := g.store.db.Use()
	if err != nil {
		return err
	}
	defer done()
	found := false
	err = eachFrom(g.store.present(), g.log.number(keyOutcome, s.Index+1), scarce.PrefixEnd(g.log.kind(keyOutcome)), func(_, value []byte) (bool, error) {
		o, err := parseOutcome(value)
		found = err == nil && o.previous == s.Index
		return false, err
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: the outcomes of entries behind entry %d are gone", ErrDamaged, s.Index)
	}
	return err
}
