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
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/rows"
)

// partCheck checks the ops of a shard's part of a write before the node proposes them. It collects
// the keys that Apply needs from disk and reads them, so that Apply finds them in memory and later
// entries do not wait for the disk. The ops come from a caller of this node, or in a section that
// another node forwarded.
//
// Apply does not rely on this check: on each replica, spill.Bodies.LockReturned reads the bodies
// from disk.
type partCheck struct {
	r          *localReplica // leads its group
	memoryFull bool
	dropped    uint64 // bit i: column i was dropped
	deadline   time.Time

	wider   bool           // the refused op makes no row, but widens rows
	rows    []uint64       // keys of rows that may be cold
	bodies  []uint64       // keys of feeds and outboxes on disk
	pairs   []members.Pair // members that join or leave sets
	deleted []uint64       // keys of rows whose sets are deleted
}

// newCheck returns a check for a shard that this node leads. It returns ErrDiskFull if this node's
// disk, or the disks of too many voters, are full.
func (wr *writer) newCheck(r *localReplica, deadline time.Time) (partCheck, error) {
	c := partCheck{r: r, memoryFull: wr.headroom.MemoryFull.Load(), deadline: deadline}
	if err := wr.headroom.DiskError(); err != nil {
		return c, err
	}
	if r.votersFull.Load() {
		return c, ErrDiskFull
	}
	return c, nil
}

// admit checks each part of a write whose shard this node leads, and reads from disk what the part
// needs. It fails if the read fails, because this node could not apply the part either. The leaders
// of the other shards check the other parts.
func (wr *writer) admit(ps *parts, w *Write, groups []*shardReplica) error {
	var full *NewRowError
	for s := range ps.byShard {
		r, err := groups[s].led()
		if err != nil || len(ps.byShard[s].ops) == 0 {
			continue
		}
		c, err := wr.newCheck(r, w.Deadline)
		if err != nil {
			return err
		}
		for _, i := range ps.byShard[s].ops {
			if _, key := w.slot(i, ps.route); c.see(w, i, key) == nil {
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
				return groups[s].failedAlone(err)
			}
			return err
		}
	}
	if full != nil {
		return full
	}
	return nil
}

// see checks an op of a write. Its only error is ErrMemoryFull.
func (c *partCheck) see(w *Write, i int, key uint64) error {
	op := &w.Ops[i]
	switch {
	case w.Feeds != nil:
		return c.bodyOp(key, &w.Feeds[i])
	case w.Outbox != nil:
		if err := c.bodyOp(key, &w.Outbox[i]); err != nil {
			return err
		}
	case op.OfMember():
		if err := c.member(members.Pair{Row: key, Column: op.Cells[0].Column, Member: uint64(op.Cells[0].Value)}); err != nil {
			return err
		}
	}
	return c.op(w.Table, key, op)
}

func (c *partCheck) op(table raftfsm.Table, key uint64, op *engine.Op) error {
	for i := 0; c.dropped != 0 && i < len(op.Cells); i++ {
		if c.dropped&(1<<op.Cells[i].Column) != 0 {
			return ErrUnknownColumn
		}
	}
	if c.memoryFull {
		if c.r.growsTable(table, key, op, c.deadline) {
			return ErrMemoryFull
		}
		if c.wider = c.r.widensTable(table, key, op); c.wider {
			return ErrMemoryFull
		}
	}
	if c.r.counters != nil && c.r.counters.Table().MayBeCold(key) {
		c.rows = append(c.rows, key)
	}
	if op.Kind == engine.OpDelete {
		c.body(key)
		c.deleted = append(c.deleted, key)
	}
	return nil
}

// bodyOp checks an op on a feed or an outbox.
func (c *partCheck) bodyOp(key uint64, op any) error {
	grows, clears := false, false
	switch op := op.(type) {
	case *feed.Op:
		grows, clears = c.memoryFull && c.r.growsFeed(key, op), op.Kind == feed.Clear
	case *outbox.Op:
		grows, clears = op.Kind == outbox.Publish || op.Kind == outbox.Put, op.Kind == outbox.Clear
	}
	if c.memoryFull && grows {
		return ErrMemoryFull
	}
	if !clears {
		c.body(key)
	}
	return nil
}

// member checks a pair that joins or leaves a set, even if no count changes.
func (c *partCheck) member(p members.Pair) error {
	if c.dropped&(1<<p.Column) != 0 {
		return ErrUnknownColumn
	}
	c.pairs = append(c.pairs, p)
	return nil
}

// body records that Apply needs the feed or outbox of a key, if it is on disk. An op that only
// counts does not need the outbox of its key.
func (c *partCheck) body(key uint64) {
	if c.r.spill != nil && c.r.spill.IsSpilled(key) {
		c.bodies = append(c.bodies, key)
	}
}

// ofDisk reports whether read will read rows or bodies from disk.
func (c *partCheck) ofDisk() bool { return len(c.rows)+len(c.bodies) > 0 }

// read reads from disk what Apply needs. After an error the part must not be proposed.
func (c *partCheck) read() (err error) {
	// Copies for the closure below: if it captured c, each write would allocate a partCheck on the heap.
	r, bodies := c.r, c.bodies
	if len(c.rows) > 0 {
		err = r.get(rows.Counts, c.rows, 1, make([]int64, len(c.rows)), c.deadline)
	}
	if err == nil && len(bodies) > 0 {
		err = r.diskFailure(raftfsm.EachRead(len(bodies), c.deadline, func(ctx context.Context, i int) error { return r.spill.Warm(ctx, bodies[i]) }))
	}
	if errors.Is(err, ErrNoQuorum) {
		return fmt.Errorf("%w: what the write needs on disk cannot be read: %w", ErrNoLeader, err)
	}
	if err != nil || r.counters == nil || len(c.pairs)+len(c.deleted) == 0 {
		return err
	}
	if err = r.counters.Members().Readable(c.pairs, c.deleted); err == nil {
		return nil
	}
	if errors.Is(err, members.ErrDamaged) {
		r.damage.Note(err)
	}
	return fmt.Errorf("%w: its members cannot be read: %w", ErrNoLeader, err)
}

// growsTable reports whether an op makes a new row. It may read the disk until the deadline to find
// out whether the row exists.
func (r *localReplica) growsTable(t raftfsm.Table, key uint64, op *engine.Op, deadline time.Time) bool {
	return r.fsm.TableOf(t) != nil && op.HasValue() && !r.has(t, key, deadline)
}

// widensTable reports whether an op may make the rows of its segment wider. Each row of the segment
// then takes more memory.
func (r *localReplica) widensTable(t raftfsm.Table, key uint64, op *engine.Op) bool {
	keyed := *op
	keyed.ID = key
	return r.fsm.TableOf(t) != nil && r.fsm.TableOf(t).Widens(&keyed)
}

// growsFeed reports whether an op may take more memory, because it stores a group or more followees
// than the user has now.
func (r *localReplica) growsFeed(key uint64, op *feed.Op) bool {
	if r.feed != nil && op.Kind == feed.PutGroup {
		return true
	}
	if r.feed == nil || op.Kind != feed.Reset && op.Kind != feed.Follow || len(op.Followees) == 0 {
		return false
	}
	was, _, inMemory := r.feed.Followees(nil, key)
	return op.Kind == feed.Follow || !inMemory || len(was) < len(op.Followees)
}
