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
)

// warm reads the cold rows that a write needs, before it is proposed, so that Apply
// finds them in the cache and nobody else waits for the disk. A write that needs
// rows which cannot be read is not proposed: this node could not apply it.
func (wr *writer) warm(w *Write, groups []*shardReplica) error {
	if len(w.Spaces) == 0 && !hasCold(groups[0].kind) {
		return nil
	}
	var byShard [][]uint64
	for i := range w.Ops {
		s, key := w.slot(i, groups[0].route)
		if !hasCold(groups[s].kind) {
			continue
		}
		r := groups[s].replica.Load()
		if r == nil || !r.mayBeCold(key, w.Feeds != nil || w.Outbox != nil || w.Ops[i].Kind == engine.OpDelete) {
			continue
		}
		if byShard == nil {
			byShard = make([][]uint64, len(groups))
		}
		byShard[s] = append(byShard[s], key)
	}
	for s, keys := range byShard {
		if len(keys) == 0 {
			continue
		}
		if r, err := groups[s].led(); err == nil { // others are warm at their leader
			if err := r.warm(keys, w.Deadline); err != nil && wr.alone() && errors.Is(err, cold.ErrDamaged) {
				return groups[s].failedAlone(err)
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

// hasCold reports whether shards of a kind have rows outside of memory.
func hasCold(kind codec.Kind) bool { return kind == codec.KindCounters || kind == codec.KindFeed }

// mayBeCold reports whether a write to a row, or to the feed or outbox of its key if body, may
// need the disk.
func (r *localReplica) mayBeCold(key uint64, body bool) bool {
	return r.counters != nil && r.counters.Table().MayBeCold(key) || body && r.spill.IsSpilled(key)
}

func (r *localReplica) warm(keys []uint64, deadline time.Time) (err error) {
	if r.counters != nil {
		err = r.get(raftfsm.TableCounts, keys, 1, make([]int64, len(keys)), deadline)
	}
	if err == nil {
		err = r.eachBody(len(keys), deadline, func(ctx context.Context, i int) error { return r.spill.Warm(ctx, keys[i]) })
	}
	if errors.Is(err, ErrNoQuorum) {
		return fmt.Errorf("%w: its cold rows cannot be read: %w", ErrNoLeader, err)
	}
	return err
}

// findCold returns a visitor that appends to keys those for which mayBeCold holds, and does
// what another does.
func (r *localReplica) findCold(other raftfsm.SectionVisitor, keys *[]uint64) raftfsm.SectionVisitor {
	if r.spill == nil || !r.mayBeCold(0, false) && r.spill.Stats().Spilled == 0 {
		return other
	}
	note := func(key uint64, body bool) {
		if r.mayBeCold(key, body) {
			*keys = append(*keys, key)
		}
	}
	feed, box := other.Feed, other.Outbox
	other.Feed = func(key uint64, op *FeedOp) error {
		if note(key, op.Kind != raftfsm.FeedClear); feed == nil {
			return nil
		}
		return feed(key, op)
	}
	other.Outbox = func(key uint64, op *OutboxOp) error {
		if note(key, true); box == nil {
			return nil
		}
		return box(key, op)
	}
	return other.WithOp(func(_ Table, key uint64, op *engine.Op) error {
		note(key, op.Kind == engine.OpDelete)
		return nil
	})
}
