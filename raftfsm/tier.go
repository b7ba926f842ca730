package raftfsm

import (
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
)

// freezeSegmentsMax is how many segments become generations with one sync: some
// 160,000 rows, of which copies are in memory meanwhile.
const freezeSegmentsMax = 16

// Idle is segments that may leave memory, those of the least keys first.
type Idle struct {
	table  *engine.Table
	least  uint64   // of the keys in memory
	firsts []uint64 // of the keys that each owns
	due    int
}

// Segments is how many there are.
func (i *Idle) Segments() int { return len(i.firsts) }

// Due is how many rows they have in memory, with segments that were written to.
func (i *Idle) Due() int { return i.due }

// PutLast has the segments with keys below another go after all others.
func (i *Idle) PutLast(below uint64) {
	n := 0
	for n < len(i.firsts) && max(i.firsts[n], i.least) < below {
		n++
	}
	i.firsts = append(i.firsts[n:], i.firsts[:n]...)
}

// Watch returns the segments that old says may go, by the range of their keys, and that
// were not written to since the call before; and those that are cold of which many rows
// have changed.
func (c *Counters) Watch(old func(first, last uint64) bool) *Idle {
	c.tiering.Lock()
	defer c.tiering.Unlock()
	i := &Idle{table: c.Table()}
	if c.cold != nil && !c.closed {
		// A lesser key that comes between the two calls has its segment not be idle.
		i.least = i.table.Least()
		i.firsts, i.due = i.table.Watch(above(i.least, old))
	}
	return i
}

// above is old for a table whose first segment, which owns all keys from 0 on, has rows
// from the least one on.
func above(least uint64, old func(first, last uint64) bool) func(first, last uint64) bool {
	return func(first, last uint64) bool { return old(max(first, least), last) }
}

// FreezeSome moves the rows of the first segments, no more than that many, out of memory,
// or writes them out anew, with one sync. They are idle no more, also on an error. It returns how many
// rows it wrote. An error that is cold.ErrDamaged says that rows which are on disk
// alone cannot be read.
func (c *Counters) FreezeSome(idle *Idle, segments int) (rows int, err error) {
	n := min(len(idle.firsts), segments, freezeSegmentsMax)
	some := idle.firsts[:n]
	idle.firsts = idle.firsts[n:]
	c.tiering.Lock()
	defer c.tiering.Unlock()
	if c.Table() != idle.table || c.closed { // it was restored, and is looked at anew
		return 0, nil
	}
	to := writes{Cold: c.cold}
	if rows, err = idle.table.Freeze(&to, some); to.failed {
		err = errors.New(err.Error())
	}
	if err != nil {
		return rows, fmt.Errorf("cannot move rows out of memory: %w", err)
	}
	return rows, nil
}

// Freeze is Watch, and FreezeSome until nothing is left, proceed says no, or on an
// error.
func (c *Counters) Freeze(old func(first, last uint64) bool, proceed func() bool) (rows int, err error) {
	for idle := c.Watch(old); idle.Segments() > 0 && proceed(); {
		some, err := c.FreezeSome(idle, idle.Segments())
		if rows += some; err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// writes is where rows go. It tells rows that could not be written, and are in memory,
// from those that are on disk alone and could not be read.
type writes struct {
	engine.Cold
	failed bool
}

func (w *writes) Write(pages []*engine.Page) ([]engine.Generation, error) {
	made, err := w.Cold.Write(pages)
	w.failed = err != nil
	return made, err
}

// Warm brings cold rows back into memory, from a key on, a few segments at a time.
// It returns the key to go on from, and false when there are none left.
func (c *Counters) Warm(from uint64) (next uint64, more bool, err error) {
	c.tiering.Lock()
	defer c.tiering.Unlock()
	if c.closed {
		return 0, false, nil
	}
	return c.Table().Warm(from, freezeSegmentsMax)
}
