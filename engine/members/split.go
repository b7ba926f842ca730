package members

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// A shard that grows splits into parts: see R7 of shard/GROWTH.md, and DESIGN.md. Split keeps the
// first part in the group, and stages the other parts. AdoptPart copies a staged part to its own
// group. Trim removes the staged parts.
//
// Invariants:
//
//   - One batch changes the group's sets, stages the parts, and stores the outcome of the entry. The
//     outcome contains the states of the parts. The group's state names the Split.
//   - While the outcome of the named Split exists, its parts are staged. One batch removes both.

// ErrNotStaged is returned by AdoptPart if this node has no staged parts of that Split. The parent has
// not applied the entry here, keeps no snapshot from before the entry, has applied a later Split, or
// was given up. The sets of the group itself are not damaged.
var ErrNotStaged = errors.New("the members of this part are not staged on this node")

// Split splits the sets between parts at the entry with the given index, and returns the state of
// each part. partOf returns the part of a row. The group keeps part 0. The states of the other parts
// have the index 0 until AdoptPart. applied is the state after the last entry that the state machine
// has applied. A replay returns the same states and changes nothing.
//
// After an ErrDamaged, Split has changed nothing. After another error, the caller must use the group no more.
func (g *Group) Split(applied State, index uint64, parts int, partOf func(row uint64) int) ([]State, error) {
	b, err := g.Begin(applied, index, 0)
	if err != nil {
		return nil, err
	}
	if b.replayed {
		return g.splitBefore(&b.outcome, parts)
	}
	done, err := g.store.db.Use()
	if err != nil {
		return nil, err
	}
	defer done()
	s := splitting{
		write:  write{Batch: b, to: g.store.db.NewBatch(), at: g.at, after: applied},
		partOf: partOf, states: make([]State, parts),
	}
	defer s.to.Close()
	if err := s.fill(); err != nil {
		return nil, err
	}
	return s.states, s.commit()
}

// SplitAfter reports whether the sets are those after a Split that the state machine has yet to
// replay. applied is the index of the last entry that it has applied. Such sets lack the pairs of other
// parts, although the replica still has the rows of these parts.
func (g *Group) SplitAfter(applied uint64) bool {
	g.reading.RLock()
	defer g.reading.RUnlock()
	return g.split > applied
}

// splitBefore returns the states of the parts from the outcome of a Split that is replayed. If a
// later Split has replaced the staged parts, AdoptPart will return ErrNotStaged.
func (g *Group) splitBefore(o *outcome, parts int) ([]State, error) {
	g.reading.RLock()
	staged := g.split
	g.reading.RUnlock()
	states, err := o.parts()
	if err == nil && (len(states) != parts || staged < o.after.Index) {
		err = fmt.Errorf("%w: of %d parts, %d were staged by entry %d, the last by entry %d", ErrDamaged, parts, len(states), o.after.Index, staged)
	}
	return states, err
}

// splitting is a running Split.
type splitting struct {
	write
	partOf func(row uint64) int
	states []State
}

func (s *splitting) fill() error {
	all := s.at.kind(keyStaged)
	err := s.to.DeleteRange(all, scarce.PrefixEnd(all), nil)
	for row, to := range s.group.dead {
		if part := s.partOf(row); part > 0 {
			key := s.at.staged(part, keyDead, Pair{Row: row})
			err = errors.Join(err, s.unmark(row), s.to.Set(key[:], appendStamp(nil, to), nil))
		}
	}
	if err != nil {
		return err
	}
	sum := State{}
	err = each(s.group.store.present(), s.at.kind(keyMember), func(key, _ []byte) (bool, error) {
		p, at, err := parsePair(key)
		if err != nil {
			return false, err
		}
		sum.Add(p, at)
		part := s.partOf(p.Row)
		s.states[part].Add(p, at)
		if part == 0 {
			return true, nil
		}
		staged := s.at.staged(part, keyMember, p)
		return true, errors.Join(s.remove(placement{p, at}), s.to.Set(staged[:], appendStamp(nil, at), nil))
	})
	if err == nil {
		err = sum.check(s.before)
	}
	for i := range s.states {
		s.states[i].Stamp = s.stamp // a part continues the stamps, so that its lists keep their order
	}
	return err
}

// commit locks the group for its readers, and so for Trim, which may remove the parts of an earlier
// Split meanwhile.
func (s *splitting) commit() error {
	s.after.Index = s.index
	s.states[0] = s.after
	s.outcome = outcome{previous: s.before.Index, after: s.after}
	for _, part := range s.states[1:] {
		s.outcome.judged = part.appendTo(s.outcome.judged)
	}
	g := s.group
	g.store.writes.RLock()
	defer g.store.writes.RUnlock()
	g.reading.Lock()
	defer g.reading.Unlock()
	if g.broken != nil {
		return g.broken // Discard gave the group up after Begin
	}
	g.stages.Store(true)
	err := errors.Join(
		s.to.Set(full(s.at.number(keyOutcome, s.index)), s.outcome.appendTo(nil), nil),
		s.at.setState(s.to, s.after, s.index),
	)
	if err = errors.Join(err, s.to.Commit(pebble.NoSync)); err != nil {
		return fmt.Errorf("cannot write members: %w", err)
	}
	g.setState(s.after)
	for _, row := range s.gone {
		delete(g.dead, row)
	}
	g.split = s.index
	return nil
}

// AdoptPart durably replaces the sets of this group by a part that another group of the store has
// staged. split is the index of that group's Split, and index that of this group's entry. AdoptPart
// returns the state after the entry. After an ErrNotStaged or an ErrDamaged, it has replaced nothing.
// Then the parent is damaged, not this group, and AdoptPart makes the parent a suspect.
func (g *Group) AdoptPart(parent uint32, split uint64, part int, index uint64) (s State, err error) {
	done, err := g.store.db.Use()
	if err != nil {
		return s, err
	}
	defer done()
	defer func() {
		if errors.Is(err, ErrDamaged) {
			g.store.suspect(parent)
		}
	}()
	it, states, err := g.store.openPart(parent, split)
	if err != nil {
		return s, err
	}
	defer it.Close()
	if part < 1 || part >= len(states) {
		return s, fmt.Errorf("%w: part %d of %d", ErrDamaged, part, len(states))
	}
	l, err := g.load()
	if err != nil {
		return s, err
	}
	if err := l.adopt(it, part); err != nil {
		return s, err
	}
	s = states[part]
	s.Index = index
	return s, l.switchTo(s)
}

// openPart is like View.openStaged, but returns an ErrNotStaged unless the group has staged the parts of the
// given Split. The iterator has all of them, whatever is removed meanwhile.
func (s *Store) openPart(group uint32, split uint64) (*pebble.Iterator, []State, error) {
	s.writes.RLock() // no discard until the iterator is open
	defer s.writes.RUnlock()
	v, err := s.view(group)
	if errors.Is(err, errGivenUp) {
		return nil, nil, ErrNotStaged
	}
	if err != nil {
		return nil, nil, err
	}
	defer v.releaseLocked()
	if v.split != split {
		return nil, nil, ErrNotStaged
	}
	it, states, err := v.openStaged()
	if err == nil && it == nil {
		err = ErrNotStaged
	}
	return it, states, err
}

// adopt loads the staged pairs and deleted rows of a part.
func (l *Load) adopt(it *pebble.Iterator, part int) error {
	return l.add(func(batch *pebble.Batch) error {
		return eachStaged(it, func(s staged) error {
			switch {
			case s.part != part:
				return nil
			case s.dead:
				return l.deadRow(batch, s.Row, s.at)
			}
			return l.pair(batch, s.placement)
		})
	})
}
