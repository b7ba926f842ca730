package names

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/spill"
)

// This file answers queries, concurrently with entries.

// Answer implements raftfsm.Query.
func (q *NumbersQuery) Answer(machine raftfsm.Machine, _ *raftfsm.Part, disk bool, deadline time.Time) error {
	m, is := machine.(*Machine)
	if !is {
		return raftfsm.ErrOtherKind
	}
	q.Numbers = slices.Grow(q.Numbers[:0], len(q.Texts))[:len(q.Texts)]
	return m.read(len(q.Texts), disk, deadline, func(c *contents, i int, block blockReader) (err error) {
		q.Numbers[i], err = c.number(q.Texts[i], block)
		return err
	})
}

// Answer implements raftfsm.Query.
func (q *TextsQuery) Answer(machine raftfsm.Machine, _ *raftfsm.Part, disk bool, deadline time.Time) error {
	m, is := machine.(*Machine)
	if !is {
		return raftfsm.ErrOtherKind
	}
	q.Texts = slices.Grow(q.Texts[:0], len(q.Numbers))[:len(q.Numbers)]
	// Read it first, so that a number below it is in the blocks that are read later.
	q.Next = m.current.Load().given.Load()
	return m.read(len(q.Numbers), disk, deadline, func(_ *contents, i int, block blockReader) error {
		key, at := blockOf(q.Numbers[i])
		body, err := block(key)
		if err != nil {
			return err
		}
		if q.Texts[i] = ""; q.Numbers[i] <= NumberMax {
			if slot := slotAt(body, at); slot != nil {
				q.Texts[i] = string(appendText(nil, slot))
			}
		}
		return nil
	})
}

// Answer implements raftfsm.Query.
func (q *AgeQuery) Answer(machine raftfsm.Machine, _ *raftfsm.Part, _ bool, _ time.Time) error {
	m, is := machine.(*Machine)
	if !is {
		return raftfsm.ErrOtherKind
	}
	q.Young = m.current.Load().marks.young(q.Until)
	return nil
}

// blockReader returns the body of a block, or nil.
type blockReader func(key uint64) ([]byte, error)

// number returns the number of a text, or 0.
func (c *contents) number(text string, block blockReader) (uint64, error) {
	var slots [1 + BytesMax]byte
	var numbers [8]uint64
	slot := appendSlot(slots[:0], text)
	for _, number := range c.index.candidates(numbers[:0], c.index.hash(slot)) {
		key, at := blockOf(number)
		body, err := block(key)
		if err != nil {
			return 0, err
		}
		if string(slotAt(body, at)) == string(slot) {
			return number, nil
		}
	}
	return 0, nil
}

// read calls one for each i in [0, n), with a reader of blocks in memory. For those that need the disk,
// it calls one again, concurrently, with a reader that waits for the disk; unless disk is set, it
// returns raftfsm.ErrNotInMemory. If a snapshot replaces the contents, it begins again.
func (m *Machine) read(n int, disk bool, deadline time.Time, one func(c *contents, i int, block blockReader) error) error {
	for {
		c := m.current.Load()
		var rest []int
		for i := range n {
			if one(c, i, c.inMemory) != nil {
				rest = append(rest, i)
			}
		}
		switch {
		case len(rest) == 0:
			return nil
		case !disk:
			return raftfsm.ErrNotInMemory
		}
		err := raftfsm.EachRead(len(rest), deadline, func(ctx context.Context, i int) error {
			return one(c, rest[i], func(key uint64) ([]byte, error) { return m.fetch(ctx, c, key) })
		})
		if !errors.Is(err, errReplaced) || time.Now().After(deadline) {
			return err
		}
	}
}

// errReplaced is returned by fetch if a snapshot has replaced the contents.
var errReplaced = errors.New("a snapshot has replaced the names")

func (m *Machine) fetch(ctx context.Context, c *contents, key uint64) ([]byte, error) {
	body, bodies, err := m.bodies.Fetch(ctx, key)
	if err == nil && bodies != c.bodies {
		err = errReplaced
	}
	return body, err
}

// inMemory is a blockReader that returns raftfsm.ErrNotInMemory for a block on disk.
func (c *contents) inMemory(key uint64) ([]byte, error) {
	body := c.bodies.Get(key)
	if spill.IsMark(body) {
		return nil, raftfsm.ErrNotInMemory
	}
	return body, nil
}
