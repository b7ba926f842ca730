package counters

import (
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
)

// freezeSegmentsMax is the largest number of segments that are written with one sync. Together they
// have about 160,000 rows. During the write, these rows are in memory twice.
const freezeSegmentsMax = 16

// Idle is a list of segments that may be moved to disk, in ascending order of keys.
type Idle struct {
	table  *engine.Table
	least  uint64   // lowest key in memory
	firsts []uint64 // first key of each segment
	due    int
}

// Segments returns the number of segments.
func (i *Idle) Segments() int { return len(i.firsts) }

// Due returns the number of rows in memory in all old segments, even in those that are being
// written to.
func (i *Idle) Due() int { return i.due }

// PutLast moves the segments that have keys below bound to the end of the list.
func (i *Idle) PutLast(bound uint64) {
	n := 0
	for n < len(i.firsts) && max(i.firsts[n], i.least) < bound {
		n++
	}
	i.firsts = append(i.firsts[n:], i.firsts[:n]...)
}

// Pause makes Watch, FreezeSome and Seal do nothing until a call of Resume for each call of Pause. It waits until
// a running call ends.
func (c *Machine) Pause() { c.parting.Pause(1) }

// Resume ends one Pause. It waits like Pause.
func (c *Machine) Resume() { c.parting.Pause(-1) }

// Part implements Machine. No row may move to disk meanwhile: see Pause. It parts the outboxes first, because they can
// always be parted.
func (c *Machine) Part(by raftfsm.Partition) (more bool, err error) {
	outboxes := c.outboxes.Current()
	if !c.Routed(by.From) { // checked after Current, because Split shows other bodies after it has changed the route
		return false, raftfsm.ErrReplaced
	}
	if more, err = raftfsm.PartBodies(outboxes, by); more || err != nil {
		return more, err
	}
	c.tiering.Lock()
	defer c.tiering.Unlock()
	table := c.Table()
	if c.closed || !c.Routed(by.From) { // checked after the table was read, because Split shows another table after it has changed the route
		return false, raftfsm.ErrReplaced
	}
	return c.parting.Step(by, table)
}

// Watch returns the old segments to which nobody wrote since the previous call. A segment is old if
// isOld returns true for its range of keys. Watch also returns segments on disk with many changed
// rows and, if shares is set, those whose generation other parts of a split shard have too.
func (c *Machine) Watch(isOld func(first, last uint64) bool, shares bool) *Idle {
	c.tiering.Lock()
	defer c.tiering.Unlock()
	i := &Idle{table: c.Table()}
	if c.places.Cold != nil && !c.closed && c.parting.Pauses == 0 {
		// If somebody writes a lower key between these two calls, Watch does not return that key's
		// segment.
		i.least = i.table.Least()
		i.firsts, i.due = i.table.Watch(above(i.least, isOld), shares)
	}
	return i
}

// Aged returns the number of rows in memory in the segments for which isOld returns true, even in
// those that are being written to.
func (c *Machine) Aged(isOld func(first, last uint64) bool) int {
	table := c.Table()
	return table.Aged(above(table.Least(), isOld))
}

// above returns isOld with one change: if first is below lowest, it passes lowest instead. The
// range of a table's first segment begins at 0, but its first row has a higher key.
func above(lowest uint64, isOld func(first, last uint64) bool) func(first, last uint64) bool {
	return func(first, last uint64) bool { return isOld(max(first, lowest), last) }
}

// FreezeSome moves the rows of the first segments of idle to disk with one sync, or rewrites them
// there. It removes these segments from idle, even on an error. It returns the number of rows that
// it wrote. cold.ErrDamaged means that it could not read rows that are only on disk; it has moved
// the other segments.
func (c *Machine) FreezeSome(idle *Idle, segments int) (rows int, err error) {
	n := min(len(idle.firsts), segments, freezeSegmentsMax)
	some := idle.firsts[:n]
	idle.firsts = idle.firsts[n:]
	c.tiering.Lock()
	defer c.tiering.Unlock()
	if c.Table() != idle.table || c.closed || c.parting.Pauses > 0 { // idle may be of another table
		return 0, nil
	}
	rows, damaged := c.freeze(idle.table, some)
	if n == 1 || !errors.Is(damaged, cold.ErrDamaged) {
		return rows, damaged
	}
	for i := range some {
		one, err := c.freeze(idle.table, some[i:i+1])
		if rows += one; err != nil && !errors.Is(err, cold.ErrDamaged) {
			return rows, err
		}
	}
	return rows, damaged
}

// freeze moves the rows of the segments to disk, either all of them or none.
func (c *Machine) freeze(table *engine.Table, firsts []uint64) (rows int, err error) {
	to := writes{Cold: c.places.Cold}
	if rows, err = table.Freeze(&to, firsts); to.failed {
		err = errors.New(err.Error())
	}
	if err != nil {
		return rows, fmt.Errorf("cannot move rows out of memory: %w", err)
	}
	return rows, nil
}

// writes is a Cold that sets failed if a write fails. So freeze can distinguish a failed write,
// after which the rows are still in memory, from a failed read of rows on disk.
type writes struct {
	engine.Cold
	failed bool
}

func (w *writes) Write(pages []*engine.Page) ([]engine.Generation, error) {
	made, err := w.Cold.Write(pages)
	w.failed = err != nil
	return made, err
}

// Seal packs or unpacks the rows of one segment: the first one from start on that is due (see
// engine.Table.Seal). It returns the number of rows that it packed, and next, the start for the
// next call. more is false once all segments are checked. took is how long Seal held the lock.
func (c *Machine) Seal(start uint64, isOld func(first, last uint64) bool) (rows int, next uint64, more bool, took time.Duration) {
	c.tiering.Lock()
	defer c.tiering.Unlock()
	if c.closed || c.parting.Pauses > 0 {
		return 0, 0, false, 0
	}
	began, table := time.Now(), c.Table()
	if start == 0 { // only a scan that starts at 0 checks the first segment
		isOld = above(table.Least(), isOld)
	}
	rows, next, more = table.Seal(start, isOld)
	return rows, next, more, time.Since(began)
}

// Used returns the names of the generations on disk that the rows include.
func (c *Machine) Used() map[cold.Name]bool {
	used := map[cold.Name]bool{}
	for _, g := range engine.OnDisk(c.Table()) {
		used[g.(*cold.Generation).Name()] = true // the only implementation on disk
	}
	return used
}

// Shares reports whether some rows are in generations that other parts of a split shard have too. Watch may return their
// segments, whatever their age.
func (c *Machine) Shares() bool { return engine.Shares(c.Table()) }

// Generations returns the number of generations of rows on disk, including those that only stored
// snapshots need.
func (c *Machine) Generations() int {
	if c.places.Cold == nil {
		return 0
	}
	return c.places.Cold.Stored()
}
