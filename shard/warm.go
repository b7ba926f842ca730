package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/outbox"
)

// coldKeys are the keys of a shard that an entry needs from disk: those whose rows may be cold,
// and those whose feeds or outboxes are on disk.
type coldKeys struct{ rows, bodies []uint64 }

func (c *coldKeys) none() bool { return len(c.rows)+len(c.bodies) == 0 }

// warm reads what a write needs from disk before it is proposed, so that Apply finds it in
// memory and nobody else waits for the disk. A write that needs what cannot be read is not
// proposed: this node could not apply it.
//
// Apply does not rely on warm: at each replica, spill.Bodies.LockReturned reads what is on
// disk. Warm reads the bodies that Apply needs and no others, so that an op which only counts
// does not depend on the outbox under its key.
func (wr *writer) warm(w *Write, groups []*shardReplica) error {
	if len(w.Spaces) == 0 && !hasCold(groups[0].kind) {
		return nil
	}
	var byShard []coldKeys
	for i := range w.Ops {
		s, key := w.slot(i, groups[0].route)
		if !hasCold(groups[s].kind) {
			continue
		}
		r := groups[s].replica.Load()
		if r == nil {
			continue
		}
		row, body := r.mayBeCold(key), w.usesBody(i) && r.spill.IsSpilled(key)
		if !row && !body {
			continue
		}
		if byShard == nil {
			byShard = make([]coldKeys, len(groups))
		}
		byShard[s].add(key, row, body)
	}
	for s := range byShard {
		if byShard[s].none() {
			continue
		}
		if r, err := groups[s].led(); err == nil { // others are warm at their leader
			if err := r.warm(&byShard[s], w.Deadline); err != nil && wr.alone() && errors.Is(err, cold.ErrDamaged) {
				return groups[s].failedAlone(err)
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

// usesBody reports whether Apply needs the feed or outbox of an op's key.
func (w *Write) usesBody(op int) bool {
	switch {
	case w.Feeds != nil:
		return w.Feeds[op].Kind != raftfsm.FeedClear
	case w.Outbox != nil:
		return w.Outbox[op].Kind != outbox.Clear
	}
	return w.Ops[op].Kind == engine.OpDelete
}

func (c *coldKeys) add(key uint64, row, body bool) {
	if row {
		c.rows = append(c.rows, key)
	}
	if body {
		c.bodies = append(c.bodies, key)
	}
}

// hasCold reports whether shards of a kind have rows outside of memory.
func hasCold(kind codec.Kind) bool { return kind == codec.KindCounters || kind == codec.KindFeed }

// mayBeCold reports whether the row of a key may be cold.
func (r *localReplica) mayBeCold(key uint64) bool {
	return r.counters != nil && r.counters.Table().MayBeCold(key)
}

func (r *localReplica) warm(c *coldKeys, deadline time.Time) (err error) {
	if len(c.rows) > 0 {
		err = r.get(raftfsm.TableCounts, c.rows, 1, make([]int64, len(c.rows)), deadline)
	}
	if err == nil {
		err = r.eachBody(len(c.bodies), deadline, func(ctx context.Context, i int) error { return r.spill.Warm(ctx, c.bodies[i]) })
	}
	if errors.Is(err, ErrNoQuorum) {
		return fmt.Errorf("%w: what the write needs on disk cannot be read: %w", ErrNoLeader, err)
	}
	return err
}

// findCold returns a visitor that adds to c what each op needs from disk, as usesBody says, and
// does what another does.
func (r *localReplica) findCold(other raftfsm.SectionVisitor, c *coldKeys) raftfsm.SectionVisitor {
	if r.spill == nil || !r.mayBeCold(0) && r.spill.Stats().Spilled == 0 {
		return other
	}
	note := func(key uint64, row, body bool) {
		c.add(key, row && r.mayBeCold(key), body && r.spill.IsSpilled(key))
	}
	feed, box := other.Feed, other.Outbox
	other.Feed = func(key uint64, op *raftfsm.FeedOp) error {
		if note(key, false, op.Kind != raftfsm.FeedClear); feed == nil {
			return nil
		}
		return feed(key, op)
	}
	other.Outbox = func(key uint64, op *outbox.Op) error { // Op has seen its row
		if note(key, false, op.Kind != outbox.Clear); box == nil {
			return nil
		}
		return box(key, op)
	}
	return other.WithOp(func(_ raftfsm.Table, key uint64, op *engine.Op) error {
		note(key, true, op.Kind == engine.OpDelete)
		return nil
	})
}
