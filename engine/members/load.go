package members

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Load replaces the sets of a group by those of another replica, which it receives block by block.
// Until Switch, readers see the old sets.
type Load struct {
	group *Group
	at    prefix
	state State // state of the loaded pairs: only Digest and Pairs are set
	last  Pair
	dead  map[uint64]Stamp
}

// Load begins a Load. The caller ends it with Switch, or abandons it; the next Load removes the
// pairs of an abandoned one.
func (g *Group) Load() (*Load, error) {
	done, err := g.store.db.Use()
	if err != nil {
		return nil, err
	}
	defer done()
	return g.load()
}

// load is Load for a caller that has called Use.
func (g *Group) load() (*Load, error) {
	g.loading.Store(false) // this Load replaces any earlier one
	g.store.discardFor(g)
	if g.usable() != nil {
		// The generation in the state on disk is unknown, and this Load may overwrite the same
		// generation. After a crash, that state would name overwritten sets. So mark it first.
		if err := g.setGivenUp(); err != nil {
			return nil, fmt.Errorf("cannot write members: %w", err)
		}
	}
	l := &Load{group: g, at: prefix{g.number, g.log.generation + 1}, dead: map[uint64]Stamp{}}
	batch := g.store.db.NewBatch()
	defer batch.Close()
	if err := errors.Join(l.at.removeAll(batch, g.recorded.Load()), g.store.commit(batch, pebble.NoSync)); err != nil {
		return nil, fmt.Errorf("cannot remove members: %w", err)
	}
	return l, nil
}

// setGivenUp durably marks the sets as given up (see discard.go).
func (g *Group) setGivenUp() error {
	g.store.writes.RLock()
	defer g.store.writes.RUnlock()
	return g.store.db.Set(full(groupPrefix(keyState, g.number)), nil, pebble.Sync)
}

// Reset durably removes all sets.
func (g *Group) Reset() error {
	if g.state == (State{}) && g.usable() == nil {
		return nil
	}
	l, err := g.Load()
	if err != nil {
		return err
	}
	return l.Switch(State{})
}

// Block adds a block of a view. If block is not a valid block, it returns ErrDamaged.
func (l *Load) Block(block []byte) error {
	done, err := l.group.store.db.Use()
	if err != nil {
		return err
	}
	defer done()
	return l.add(func(batch *pebble.Batch) error {
		switch {
		case len(block) > 0 && block[0] == blockPairs:
			return EachPair(block, func(p Pair, at Stamp) error { return l.pair(batch, placement{p, at}) })
		case len(block) > 0 && block[0] == blockDead:
			return l.deadRows(batch, block)
		case len(block) > 0 && block[0] == blockOutcomes:
			return l.outcomes(batch, block[1:])
		}
		return fmt.Errorf("%w: a block of %d bytes", ErrDamaged, len(block))
	})
}

// add writes what fill puts into a batch. The caller must have called Use.
func (l *Load) add(fill func(*pebble.Batch) error) error {
	batch := l.group.store.db.NewBatch()
	defer batch.Close()
	if err := fill(batch); err != nil {
		return err
	}
	l.group.loading.Store(true)
	if err := l.group.store.commit(batch, pebble.NoSync); err != nil {
		return fmt.Errorf("cannot write members: %w", err)
	}
	return nil
}

func (l *Load) pair(batch *pebble.Batch, p placement) error {
	if l.state.Pairs > 0 && p.compare(l.last) <= 0 {
		return fmt.Errorf("%w: pairs are not in order", ErrDamaged)
	}
	l.last = p.Pair
	l.state.Add(p.Pair, p.at)
	return l.at.putPair(batch, p)
}

func (l *Load) deadRows(batch *pebble.Batch, block []byte) error {
	var errs []error
	errs = append(errs, EachDead(block, func(row uint64, to Stamp) { errs = append(errs, l.deadRow(batch, row, to)) }))
	return errors.Join(errs...)
}

func (l *Load) deadRow(batch *pebble.Batch, row uint64, to Stamp) error {
	l.dead[row] = to
	return batch.Set(full(l.at.number(keyDead, row)), appendStamp(nil, to), nil)
}

func (l *Load) outcomes(batch *pebble.Batch, b []byte) error {
	for len(b) >= 12 {
		index, n := binary.BigEndian.Uint64(b), int(binary.BigEndian.Uint32(b[8:]))
		if b = b[12:]; n > len(b) {
			break
		}
		if o, err := parseOutcome(b[:n]); err != nil || o.after.Index != index {
			return fmt.Errorf("%w: outcome of entry %d", ErrDamaged, index)
		}
		if err := batch.Set(full(l.at.number(keyOutcome, index)), b[:n], nil); err != nil {
			return err
		}
		b = b[n:]
	}
	if len(b) > 0 {
		return fmt.Errorf("%w: %d bytes behind outcomes", ErrDamaged, len(b))
	}
	return nil
}

// Check returns an ErrDamaged unless the loaded pairs have the number and the digest of state s.
func (l *Load) Check(s State) error { return l.state.check(s) }

// Switch durably replaces the sets of the group by the loaded ones. s is the state of the loaded
// sets.
func (l *Load) Switch(s State) error {
	done, err := l.group.store.db.Use()
	if err != nil {
		return err
	}
	defer done()
	return l.switchTo(s)
}

// switchTo is Switch for a caller that has called Use.
func (l *Load) switchTo(s State) error {
	if err := l.Check(s); err != nil {
		return err
	}
	g := l.group
	batch := g.store.db.NewBatch()
	defer batch.Close()
	now := groupState{generation: l.at.generation, state: s}
	if err := now.set(batch, g.number); err != nil {
		return err
	}
	if err := l.replace(batch, s); err != nil {
		return fmt.Errorf("cannot write members: %w", err)
	}
	if s.Pairs > 0 {
		g.wantFilter()
	}
	return nil
}

// replace commits a batch that contains the state of the loaded sets, makes the group use these sets, and then removes
// the old ones and the group's homes. Meanwhile it blocks the removal of damaged files, because a removal would keep the
// old sets instead of the new ones. No Parting begins before its end, so all homes of the group are old.
func (l *Load) replace(batch *pebble.Batch, s State) error {
	g, earlier := l.group, l.group.log
	g.store.writes.RLock()
	defer g.store.writes.RUnlock()
	g.store.naming.Lock()
	defer g.store.naming.Unlock()
	g.stepping.Lock()
	defer g.stepping.Unlock()
	if err := errors.Join(g.endParting(batch), batch.Commit(pebble.Sync)); err != nil {
		return err
	}
	g.reading.Lock()
	g.log, g.at, g.own, g.dead, g.split, g.broken = l.at, l.at, true, l.dead, 0, nil
	g.known.forget()
	g.loading.Store(false)
	g.reading.Unlock() // after this, no reader reads the old sets
	g.setState(s)
	old := g.store.db.NewBatch()
	defer old.Close()
	return errors.Join(earlier.removeAll(old, g.recorded.Load()), g.store.homes.leave(old, g.store.homes.of(g.number)...), old.Commit(pebble.NoSync))
}
