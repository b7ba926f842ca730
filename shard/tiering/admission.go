package tiering

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
)

// Admission checks the ops of one part of a write before this node proposes them. The write comes
// from this node or was forwarded by another one. Admission also reads the rows and bodies that
// Apply will need from disk, so that Apply, and with it every later entry, does not wait for the
// disk.
//
// Apply does not depend on Admission: on each replica, spill.Bodies.LockReturned reads missing
// bodies from disk.
type Admission struct {
	Dropped uint64           // bit i is set if column i was dropped
	Wider   bool             // the refused op creates no row, but makes existing rows wider
	Limit   *errs.LimitError // why the refused op may create no row, unless memory is full

	m          *Machine // must lead its group
	memoryFull bool
	allowance  *allowance
	deadline   time.Time

	table   raftfsm.Table  // the table of rows; of the tables of a kind, at most one has cold rows
	rows    []uint64       // keys of rows that may be cold
	bodies  []uint64       // keys of feeds and outboxes on disk
	pairs   []members.Pair // members that join or leave sets
	deleted []uint64       // keys of rows whose sets are deleted
}

// Begin starts a check for a shard that this node leads. It reuses the memory of c. It returns
// ErrDiskFull if this node's disk, or the disks of too many voters, are full.
func (c *Admission) Begin(m *Machine, h *Headroom, deadline time.Time) error {
	*c = Admission{
		m: m, memoryFull: h.MemoryFull.Load(), allowance: m.allowance.Load(), deadline: deadline,
		rows: c.rows[:0], bodies: c.bodies[:0], pairs: c.pairs[:0], deleted: c.deleted[:0],
	}
	if err := h.DiskError(); err != nil {
		return err
	}
	if m.VotersFull.Load() {
		return errs.ErrDiskFull
	}
	return nil
}

// End releases the shard, but keeps the memory of c.
func (c *Admission) End() { c.m = nil }

// Op implements raftfsm.Visitor. Its errors are ErrMemoryFull, a LimitError and ErrUnknownColumn.
func (c *Admission) Op(table raftfsm.Table, key uint64, op *engine.Op) error {
	for i := 0; c.Dropped != 0 && i < len(op.Cells); i++ {
		if c.Dropped&(1<<op.Cells[i].Column) != 0 {
			return errs.ErrUnknownColumn
		}
	}
	if c.memoryFull {
		if c.m.GrowsTable(table, key, op, c.deadline) {
			return errs.ErrMemoryFull
		}
		if c.Wider = c.m.widensTable(table, key, op); c.Wider {
			return errs.ErrMemoryFull
		}
	}
	if c.allowance != nil && c.m.GrowsTable(table, key, op, c.deadline) {
		if c.Limit = c.allowance.take(); c.Limit != nil {
			return c.Limit
		}
	}
	if t := c.m.TableOf(table); t != nil && t.MayBeCold(key) {
		c.table, c.rows = table, append(c.rows, key)
	}
	if op.Kind == engine.OpDelete {
		c.body(key)
		c.deleted = append(c.deleted, key)
	}
	return nil
}

// Body implements raftfsm.Visitor.
func (c *Admission) Body(key uint64, op any) error {
	if c.memoryFull && c.m.Grows(key, op) {
		return errs.ErrMemoryFull
	}
	c.body(key)
	return nil
}

// Member implements raftfsm.Visitor. It checks the column even if the op changes no count.
func (c *Admission) Member(p members.Pair) error {
	if c.Dropped&(1<<p.Column) != 0 {
		return errs.ErrUnknownColumn
	}
	c.pairs = append(c.pairs, p)
	return nil
}

// body records that Apply needs the feed or outbox of a key, if that body is on disk. An op that
// only counts does not need the outbox of its key.
func (c *Admission) body(key uint64) {
	if c.m.Spilled != nil && c.m.Spilled.IsSpilled(key) {
		c.bodies = append(c.bodies, key)
	}
}

// OfDisk reports whether Read may wait for the disk.
func (c *Admission) OfDisk() bool { return len(c.rows)+len(c.bodies) > 0 }

// Read reads the rows and bodies that Apply needs from disk. After an error the part must not be
// proposed.
func (c *Admission) Read() (err error) {
	m := c.m
	if len(c.rows) > 0 {
		err = m.get(c.table, c.rows, 1, make([]int64, len(c.rows)), c.deadline)
	}
	if err == nil && len(c.bodies) > 0 {
		err = m.diskFailure(raftfsm.EachRead(len(c.bodies), c.deadline, func(ctx context.Context, i int) error { return m.Spilled.Warm(ctx, c.bodies[i]) }))
	}
	if errors.Is(err, errs.ErrNoQuorum) {
		return fmt.Errorf("%w: what the write needs on disk cannot be read: %w", errs.ErrNoLeader, err)
	}
	sets := m.Members()
	if err != nil || sets == nil || len(c.pairs)+len(c.deleted) == 0 {
		return err
	}
	if err = sets.Readable(c.pairs, c.deleted); err == nil {
		return nil
	}
	if errors.Is(err, members.ErrDamaged) {
		m.Damage.Note(err)
	}
	return fmt.Errorf("%w: its members cannot be read: %w", errs.ErrNoLeader, err)
}
