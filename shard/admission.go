package shard

import (
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/shard/headroom"
)

// admit returns an error if the node has no room for what the write needs. Ops
// for groups that are led elsewhere are looked at there: they take no room here.
func admit(h *headroom.Headroom, w *Write, groups []*shardReplica) error {
	diskFull, memoryFull := h.DiskError(), h.MemoryFull.Load()
	if diskFull == nil && !memoryFull && h.VotersFull.Load() == 0 {
		return nil
	}
	for i := range w.Ops {
		s, key := w.slot(i, groups[0].route)
		r, err := groups[s].led()
		if err != nil {
			continue
		}
		if diskFull != nil {
			return diskFull
		}
		if r.votersFull.Load() {
			return ErrDiskFull
		}
		if !memoryFull {
			continue
		}
		if w.Outbox != nil && growsOutbox(&w.Outbox[i]) || w.Feeds != nil && r.growsFeed(key, &w.Feeds[i]) || r.growsTable(w.Table, key, &w.Ops[i], w.Deadline) {
			return &NewRowError{Op: i}
		}
		if r.widensTable(w.Table, key, &w.Ops[i]) {
			return &NewRowError{Op: i, Wider: true}
		}
	}
	return nil
}

// growsTable reports whether an op makes a row where there is none. Whether there is one
// may take the disk to tell, as long as there is time.
func (r *localReplica) growsTable(t raftfsm.Table, key uint64, op *engine.Op, deadline time.Time) bool {
	return r.fsm.TableOf(t) != nil && op.HasValue() && !r.has(t, key, deadline)
}

// widensTable reports whether an op counts in a column that takes memory in all rows
// near its own.
func (r *localReplica) widensTable(t raftfsm.Table, key uint64, op *engine.Op) bool {
	keyed := *op
	keyed.ID = key
	return r.fsm.TableOf(t) != nil && r.fsm.TableOf(t).Widens(&keyed)
}

// growsOutbox reports whether an op may take more memory: no such op is taken while there is
// none.
func growsOutbox(op *outbox.Op) bool { return op.Kind == outbox.Publish || op.Kind == outbox.Put }

// growsFeed reports whether an op may give a user more followees than there are: no
// such op is taken while there is no memory.
func (r *localReplica) growsFeed(key uint64, op *raftfsm.FeedOp) bool {
	if r.feed != nil && op.Kind == raftfsm.FeedPutGroup {
		return true
	}
	if r.feed == nil || op.Kind != raftfsm.FeedReset && op.Kind != raftfsm.FeedFollow || len(op.Followees) == 0 {
		return false
	}
	was, inMemory := r.feed.Followees(nil, key)
	return op.Kind == raftfsm.FeedFollow || !inMemory || len(was) < len(op.Followees)
}

// checkRoom returns what looks at each op of a forwarded section by its deadline, at none
// while there is room for anything.
func checkRoom(h *headroom.Headroom, r *localReplica, deadline time.Time) raftfsm.SectionVisitor {
	if !h.MemoryFull.Load() {
		return raftfsm.SectionVisitor{}
	}
	return raftfsm.SectionVisitor{
		Op: func(table raftfsm.Table, key uint64, op *engine.Op) error {
			if r.growsTable(table, key, op, deadline) || r.widensTable(table, key, op) {
				return ErrMemoryFull
			}
			return nil
		},
		Outbox: func(_ uint64, op *outbox.Op) error {
			if growsOutbox(op) {
				return ErrMemoryFull
			}
			return nil
		},
		Feed: func(key uint64, op *raftfsm.FeedOp) error {
			if r.growsFeed(key, op) {
				return ErrMemoryFull
			}
			return nil
		},
	}
}

// refuseDropped returns a visitor that refuses ops on columns that were dropped from a
// group's keyspace, and then does what another does. A node that has not heard of the drop
// sends such ops: they would be acknowledged and count nowhere.
func refuseDropped(view *catalog.View, g *shardReplica, other raftfsm.SectionVisitor) raftfsm.SectionVisitor {
	dropped := view.DroppedColumns(g.keyspace, g.number)
	if dropped == 0 {
		return other
	}
	check := func(column uint8) error {
		if dropped&(1<<column) != 0 {
			return ErrUnknownColumn
		}
		return nil
	}
	other.Member = func(p members.Pair) error { return check(p.Column) } // also if it changes no count
	return other.WithOp(func(_ raftfsm.Table, _ uint64, op *engine.Op) error {
		for _, c := range op.Cells {
			if err := check(c.Column); err != nil {
				return err
			}
		}
		return nil
	})
}
