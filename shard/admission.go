package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
)

// partCheck checks the ops of one part of a write before this node proposes them. The write comes
// from this node or was forwarded by another one. partCheck also reads the rows and bodies that
// Apply will need from disk, so that Apply, and with it every later entry, does not wait for the
// disk.
//
// Apply does not depend on the check: on each replica, spill.Bodies.LockReturned reads missing
// bodies from disk.
type partCheck struct {
	r          *localReplica // must lead its group
	memoryFull bool
	dropped    uint64 // bit i is set if column i was dropped
	deadline   time.Time

	wider   bool           // the refused op creates no row, but makes existing rows wider
	table   raftfsm.Table  // the table of rows; of the tables of a kind, at most one has cold rows
	rows    []uint64       // keys of rows that may be cold
	bodies  []uint64       // keys of feeds and outboxes on disk
	pairs   []members.Pair // members that join or leave sets
	deleted []uint64       // keys of rows whose sets are deleted
}

// begin starts a check for a shard that this node leads. It reuses the memory of c. It returns
// ErrDiskFull if this node's disk, or the disks of too many voters, are full.
func (wr *writer) begin(c *partCheck, r *localReplica, deadline time.Time) error {
	*c = partCheck{
		r: r, memoryFull: wr.headroom.MemoryFull.Load(), deadline: deadline,
		rows: c.rows[:0], bodies: c.bodies[:0], pairs: c.pairs[:0], deleted: c.deleted[:0],
	}
	if err := wr.headroom.DiskError(); err != nil {
		return err
	}
	if r.votersFull.Load() {
		return errs.ErrDiskFull
	}
	return nil
}

// admit checks the parts of a write for present shards that this node leads, and reads what they need from
// disk. If the read fails, admit returns its error, because this node could not apply the part
// either. The leaders of the other shards check the other parts.
func (wr *writer) admit(ps *parts, w *Write) error {
	var full *NewRowError
	for s := ps.base; s < len(ps.byShard); s++ {
		p := &ps.byShard[s]
		if len(p.ops) == 0 || p.settled {
			continue
		}
		r, err := p.group.led()
		if err != nil {
			continue
		}
		c := &ps.check
		if err := wr.begin(c, r, w.Deadline); err != nil {
			return err
		}
		for _, i := range p.ops {
			if w.Ops.See(c, ps.key(p, w.Ops.ID(i)), i) == nil {
				continue
			}
			if full == nil || i < full.Op {
				full = &NewRowError{Op: i, Wider: c.wider}
			}
			break
		}
		if full != nil {
			continue
		}
		if err := c.read(); err != nil {
			if wr.alone() && (errors.Is(err, cold.ErrDamaged) || errors.Is(err, members.ErrDamaged)) {
				return p.group.failedAlone(err)
			}
			return err
		}
	}
	if full != nil {
		return full
	}
	return nil
}

// Op implements raftfsm.Visitor. Its errors are ErrMemoryFull and ErrUnknownColumn.
func (c *partCheck) Op(table raftfsm.Table, key uint64, op *engine.Op) error {
	for i := 0; c.dropped != 0 && i < len(op.Cells); i++ {
		if c.dropped&(1<<op.Cells[i].Column) != 0 {
			return errs.ErrUnknownColumn
		}
	}
	if c.memoryFull {
		if c.r.growsTable(table, key, op, c.deadline) {
			return errs.ErrMemoryFull
		}
		if c.wider = c.r.widensTable(table, key, op); c.wider {
			return errs.ErrMemoryFull
		}
	}
	if t := c.r.fsm.TableOf(table); t != nil && t.MayBeCold(key) {
		c.table, c.rows = table, append(c.rows, key)
	}
	if op.Kind == engine.OpDelete {
		c.body(key)
		c.deleted = append(c.deleted, key)
	}
	return nil
}

// Body implements raftfsm.Visitor.
func (c *partCheck) Body(key uint64, op any) error {
	if c.memoryFull && c.r.fsm.Grows(key, op) {
		return errs.ErrMemoryFull
	}
	c.body(key)
	return nil
}

// Member implements raftfsm.Visitor. It checks the column even if the op changes no count.
func (c *partCheck) Member(p members.Pair) error {
	if c.dropped&(1<<p.Column) != 0 {
		return errs.ErrUnknownColumn
	}
	c.pairs = append(c.pairs, p)
	return nil
}

// body records that Apply needs the feed or outbox of a key, if that body is on disk. An op that
// only counts does not need the outbox of its key.
func (c *partCheck) body(key uint64) {
	if c.r.spill != nil && c.r.spill.IsSpilled(key) {
		c.bodies = append(c.bodies, key)
	}
}

func (c *partCheck) ofDisk() bool { return len(c.rows)+len(c.bodies) > 0 }

// read reads the rows and bodies that Apply needs from disk. After an error the part must not be
// proposed.
func (c *partCheck) read() (err error) {
	r := c.r
	if len(c.rows) > 0 {
		err = r.get(c.table, c.rows, 1, make([]int64, len(c.rows)), c.deadline)
	}
	if err == nil && len(c.bodies) > 0 {
		err = r.diskFailure(raftfsm.EachRead(len(c.bodies), c.deadline, func(ctx context.Context, i int) error { return r.spill.Warm(ctx, c.bodies[i]) }))
	}
	if errors.Is(err, errs.ErrNoQuorum) {
		return fmt.Errorf("%w: what the write needs on disk cannot be read: %w", errs.ErrNoLeader, err)
	}
	sets := r.fsm.Members()
	if err != nil || sets == nil || len(c.pairs)+len(c.deleted) == 0 {
		return err
	}
	if err = sets.Readable(c.pairs, c.deleted); err == nil {
		return nil
	}
	if errors.Is(err, members.ErrDamaged) {
		r.damage.Note(err)
	}
	return fmt.Errorf("%w: its members cannot be read: %w", errs.ErrNoLeader, err)
}

// growsTable reports whether an op creates a row. To find out, it may read the disk until the
// deadline.
func (r *localReplica) growsTable(t raftfsm.Table, key uint64, op *engine.Op, deadline time.Time) bool {
	return r.fsm.TableOf(t) != nil && op.HasValue() && !r.has(t, key, deadline)
}

// widensTable reports whether an op may make the rows of its segment wider, so that each row of
// the segment takes more memory.
func (r *localReplica) widensTable(t raftfsm.Table, key uint64, op *engine.Op) bool {
	keyed := *op
	keyed.ID = key
	return r.fsm.TableOf(t) != nil && r.fsm.TableOf(t).Widens(&keyed)
}
