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
		if r == nil || !r.mayBeCold(key) {
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

// mayBeCold reports whether a write to a key may need the disk.
func (r *localReplica) mayBeCold(key uint64) bool {
	if r.feed != nil {
		return r.feed.IsSpilled(key)
	}
	return r.fsm.TableOf(raftfsm.TableCounts).MayBeCold(key)
}

func (r *localReplica) warm(keys []uint64, deadline time.Time) (err error) {
	if r.feed != nil {
		err = r.eachFeed(keys, deadline, func(ctx context.Context, i int) error { return r.feed.Warm(ctx, keys[i]) })
	} else {
		err = r.get(raftfsm.TableCounts, keys, 1, make([]int64, len(keys)), deadline)
	}
	if errors.Is(err, ErrNoQuorum) {
		return fmt.Errorf("%w: its cold rows cannot be read: %w", ErrNoLeader, err)
	}
	return err
}

// findCold returns a visitor that appends to keys those whose rows may be cold, and
// does what another does.
func (r *localReplica) findCold(other raftfsm.SectionVisitor, keys *[]uint64) raftfsm.SectionVisitor {
	if r.feed != nil {
		return r.findSpilled(other, keys)
	}
	table := r.fsm.TableOf(raftfsm.TableCounts)
	if r.group.Cold() == nil || !table.MayBeCold(0) {
		return other
	}
	return other.WithOp(func(_ Table, key uint64, _ *engine.Op) error {
		if table.MayBeCold(key) {
			*keys = append(*keys, key)
		}
		return nil
	})
}

// findSpilled is findCold for a shard of feeds.
func (r *localReplica) findSpilled(other raftfsm.SectionVisitor, keys *[]uint64) raftfsm.SectionVisitor {
	check := other.Feed
	other.Feed = func(key uint64, op *FeedOp) error {
		if op.Kind != raftfsm.FeedClear && r.feed.IsSpilled(key) {
			*keys = append(*keys, key)
		}
		if check == nil {
			return nil
		}
		return check(key, op)
	}
	return other
}
