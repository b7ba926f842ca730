package members

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// A shard that grows splits into parts: see R7 of shard/GROWTH.md, and DESIGN.md. A Parting copies the
// parts before. Split names the copies, and AdoptPart hands one over to another group.
//
// Invariants:
//
//   - One batch makes the group use the home of its part, stores the outcome of the entry, and a record for
//     each other part and for the sets before the Split. The outcome contains the states of the parts.
//     The group's state names the Split.
//   - The sets before the Split stay as they are while their record exists.
//   - The home of a part stays as it is while its record exists.
//   - One batch removes the outcome and all records of a Split.

// ErrNotStaged is returned by AdoptPart if this node has no home of that part. The parent has not applied the
// entry here, keeps no snapshot from before the entry, or was given up, dropped or loaded, or another replica of
// the part has adopted it. The sets of the group itself are not damaged.
var ErrNotStaged = errors.New("the members of this part are not staged on this node")

// Split splits the sets between parts at the entry with the given index, and returns the state of
// each part. The group keeps part 0. The states of the other parts have the index 0 until AdoptPart. applied is
// the state after the last entry that the state machine has applied. Split takes the parts of a Parting by the
// same Partition, and copies the pairs that are left. Then it calls withdraw, and changes the sets that readers use. A
// replay returns the same states and changes nothing.
//
// After an ErrDamaged, Split has changed nothing. After another error, the caller must use the group no more.
func (g *Group) Split(applied State, index uint64, parts int, by Partition, withdraw func()) ([]State, error) {
	b, err := g.Begin(applied, index, 0)
	if err != nil {
		return nil, err
	}
	if b.replayed {
		return g.splitBefore(&b.outcome, parts)
	}
	for {
		states, err := g.splitBy(b, parts, by, withdraw)
		if !errors.Is(err, ErrPartingEnded) { // a damaged file was removed
			return states, err
		}
	}
}

// SplitAfter reports whether the sets are those after a Split that the state machine has yet to
// replay. applied is the index of the last entry that it has applied. Such sets lack the pairs of other
// parts, although the replica still has the rows of these parts.
func (g *Group) SplitAfter(applied uint64) bool {
	g.reading.RLock()
	defer g.reading.RUnlock()
	return g.split > applied
}

// splitBefore returns the states of the parts from the outcome of a Split that is replayed.
func (g *Group) splitBefore(o *outcome, parts int) ([]State, error) {
	states, err := o.parts()
	if err == nil && len(states) != parts {
		err = fmt.Errorf("%w: of %d parts, entry %d has made %d", ErrDamaged, parts, o.after.Index, len(states))
	}
	return states, err
}

func (g *Group) splitBy(b *Batch, parts int, by Partition, withdraw func()) (states []State, err error) {
	p, err := g.part(by, parts, true)
	for more := true; more && err == nil; {
		more, err = p.Step()
	}
	if err != nil {
		return nil, err
	}
	err = g.step(func(batch *pebble.Batch) error {
		if g.parting != p.made {
			return ErrPartingEnded
		}
		err := p.made.check(g.state)
		if err != nil {
			return errors.Join(err, g.endParting(batch))
		}
		withdraw()
		states, err = g.splitTo(b, p.made)
		return err
	})
	return states, err
}

// splitTo makes the group use the home of its part. It locks the group for its readers, and so for Trim. The caller
// holds writes and stepping.
func (g *Group) splitTo(b *Batch, c *copies) ([]State, error) {
	g.reading.Lock()
	defer g.reading.Unlock()
	if g.broken != nil {
		return nil, g.broken // Discard gave the group up after Begin
	}
	batch := g.store.db.NewBatch()
	defer batch.Close()
	o := outcome{previous: b.before.Index}
	var errs []error
	for i, n := range c.homes {
		c.states[i].Stamp = b.stamp // a part continues the stamps, so that its lists keep their order
		r := record{split: b.index, part: i, home: n}
		if i == 0 {
			r.home = g.at.home()
			c.states[i].Index = b.index
			o.after = c.states[i]
		} else {
			o.judged = c.states[i].appendTo(o.judged)
		}
		errs = append(errs, r.set(batch, g.log))
	}
	own := map[uint64]Stamp{} // deleted rows of the group's part
	for row, to := range g.dead {
		part := c.by.Of(row)
		errs = append(errs, batch.Set(full(home(c.homes[part]).number(keyDead, row)), appendStamp(nil, to), nil))
		if part == 0 {
			own[row] = to
		}
	}
	now := groupState{generation: g.log.generation, state: o.after, split: b.index, home: c.homes[0]}
	g.recorded.Store(true)
	errs = append(errs, batch.Set(full(g.log.number(keyOutcome, b.index)), o.appendTo(nil), nil), now.set(batch, g.number))
	if err := errors.Join(append(errs, batch.Commit(pebble.NoSync))...); err != nil {
		return nil, fmt.Errorf("cannot write members: %w", err)
	}
	g.at, g.dead, g.split, g.parting = home(c.homes[0]), own, b.index, nil
	g.setState(o.after)
	g.known.refill() // the filter has the pairs of all parts, and so those of this one
	g.wantFilter()
	return c.states, nil
}

// AdoptPart replaces the sets of this group by a part that another group of the store has split off. split is the
// index of that group's Split, and index that of this group's entry. AdoptPart returns the state after
// the entry. A replay changes nothing. After an ErrNotStaged or an ErrDamaged, it has replaced nothing.
// If the parent is damaged, AdoptPart makes it a suspect.
func (g *Group) AdoptPart(parent uint32, split uint64, part int, index uint64) (s State, err error) {
	done, err := g.store.db.Use()
	if err != nil {
		return s, err
	}
	defer done()
	if g.usable() == nil && g.state.Index >= index {
		if o, found, err := g.outcome(index); err != nil || found {
			return o.after, err
		}
	}
	g.loading.Store(false) // nobody needs an earlier Load any more
	g.store.writes.RLock()
	defer g.store.writes.RUnlock()
	g.store.naming.Lock()
	defer g.store.naming.Unlock()
	key, r, s, err := g.store.partOf(parent, split, part)
	if err != nil {
		if errors.Is(err, ErrDamaged) {
			g.store.suspect(parent)
		}
		return s, err
	}
	s.Index = index
	return s, g.adopt(key, r, s)
}

// partOf returns the key of the record of a part, the record, and the state of the part at the Split. The caller holds
// naming.
func (s *Store) partOf(parent uint32, split uint64, part int) (key []byte, r record, of State, err error) {
	found, err := readState(s.present(), parent)
	if errors.Is(err, errGivenUp) || err == nil && found.split == 0 || part < 1 {
		return nil, r, of, ErrNotStaged
	}
	if err != nil {
		return nil, r, of, err
	}
	log := found.log(parent)
	key = log.record(split, part)
	value, closer, err := s.present().Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, r, of, ErrNotStaged
	}
	if err != nil {
		return nil, r, of, damaged(err)
	}
	r, err = parseRecord(key, value)
	o, _, failed := readOutcome(s.present(), log, split)
	states, _ := o.parts()
	if err = errors.Join(err, closer.Close(), failed); err == nil && part >= len(states) {
		err = fmt.Errorf("%w: part %d of the split at entry %d has no state", ErrDamaged, part, split)
	}
	if err == nil {
		of = states[part]
	}
	return key, r, of, err
}

// adopt makes the group use the home of a part, in one batch, which removes the record with the given key. The caller
// holds writes and naming.
func (g *Group) adopt(key []byte, r record, s State) error {
	g.stepping.Lock()
	defer g.stepping.Unlock()
	dead, err := readDead(g.store.present(), home(r.home))
	if err != nil {
		return err
	}
	batch := g.store.db.NewBatch()
	defer batch.Close()
	if g.usable() != nil || g.state != (State{}) { // a range deletion would widen the next file
		err = g.log.removeAll(batch, g.recorded.Load())
	}
	o, now := outcome{after: s}, groupState{generation: g.log.generation, state: s, home: r.home}
	err = errors.Join(err, g.endParting(batch), g.store.homes.leave(batch, g.store.homes.of(g.number)...), batch.Delete(key, nil),
		batch.Set(full(g.log.number(keyOutcome, s.Index)), o.appendTo(nil), nil), now.set(batch, g.number), batch.Commit(pebble.NoSync))
	if err != nil {
		return fmt.Errorf("cannot write members: %w", err)
	}
	g.store.homes.own(g.number, r.home)
	g.reading.Lock()
	g.at, g.own, g.dead, g.split, g.broken = home(r.home), false, dead, 0, nil
	g.known.forget()
	g.reading.Unlock()
	if g.setState(s); s.Pairs > 0 {
		g.wantFilter()
	}
	return nil
}
