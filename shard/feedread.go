package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/wire"
)

// This file reads feeds that are not in memory: of idle users, on this node's disk.

// feeds reads the feeds of keys, also from disk, each once and some at once, by the
// deadline. The error is one for which another replica may be asked, or ErrOverloaded.
func (r *localReplica) feeds(keys []uint64, deadline time.Time) ([][]raftfsm.Followee, error) {
	fsm := r.fsm.(*raftfsm.Feed)
	feeds := make([][]raftfsm.Followee, len(keys))
	return feeds, r.eachFeed(keys, deadline, func(ctx context.Context, i int) (err error) {
		feeds[i], err = fsm.Fetch(ctx, nil, keys[i])
		return err
	})
}

// warmFeeds brings the feeds of keys into memory.
func (r *localReplica) warmFeeds(keys []uint64, deadline time.Time) error {
	fsm := r.fsm.(*raftfsm.Feed)
	return r.eachFeed(keys, deadline, func(ctx context.Context, i int) error { return fsm.Warm(ctx, keys[i]) })
}

// eachFeed calls read for each key, some at once, until one fails.
func (r *localReplica) eachFeed(keys []uint64, deadline time.Time, read func(ctx context.Context, i int) error) error {
	err := eachCold(len(keys), deadline, read)
	if errors.Is(err, cold.ErrDamaged) {
		r.noteDamage(err)
	}
	return coldFailure(err)
}

// feedsFromDisk reads feeds some of which this replica has on disk, and from other nodes
// if it cannot.
func (n *Node) feedsFromDisk(g *shardReplica, r *localReplica, keys []uint64, opt *ReadOptions) ([][]raftfsm.Followee, error) {
	feeds, err := r.feeds(keys, opt.Deadline)
	if err == nil || !errors.Is(err, ErrNoQuorum) {
		return feeds, err
	}
	if n.alone() {
		return nil, g.failedAlone(err)
	}
	return n.feedsElsewhere(g, keys, opt)
}

// feedsBeside reads feeds of one shard that are not all in memory here: from this node's
// replica, nil for none, or from other nodes.
func (n *Node) feedsBeside(g *shardReplica, r *localReplica, keys []uint64, opt *ReadOptions) ([][]raftfsm.Followee, error) {
	if r == nil {
		return n.feedsElsewhere(g, keys, opt)
	}
	return n.feedsFromDisk(g, r, keys, opt)
}

// feedRows reads feeds as a call carries them. Its errors are those of rows.
func (r *localReplica) feedRows(q *remoteRead, deadline time.Time) ([]int64, error) {
	fsm, ok := r.fsm.(*raftfsm.Feed)
	if !ok {
		return nil, fmt.Errorf("%w: a read of feeds in group %d", wire.ErrBadMessage, q.group)
	}
	var rows []int64
	var feed []raftfsm.Followee
	for _, key := range q.keys {
		var inMemory bool
		if feed, inMemory = fsm.Followees(feed[:0], key); !inMemory {
			return r.feedRowsFromDisk(q, deadline)
		}
		rows = appendFeedRow(rows, feed)
	}
	return rows, nil
}

// feedRowsFromDisk is feedRows for feeds that are not all in memory.
func (r *localReplica) feedRowsFromDisk(q *remoteRead, deadline time.Time) (rows []int64, err error) {
	if !q.cold {
		return nil, errs.ErrColdRows
	}
	feeds, err := r.feeds(q.keys, deadline)
	if err != nil {
		return nil, err
	}
	for _, feed := range feeds {
		rows = appendFeedRow(rows, feed)
	}
	return rows, nil
}

func appendFeedRow(rows []int64, feed []raftfsm.Followee) []int64 {
	rows = append(rows, int64(len(feed)))
	for _, f := range feed {
		rows = append(rows, int64(f.ID), f.Posts)
	}
	return rows
}

// findSpilled is findCold for a shard of feeds.
func (r *localReplica) findSpilled(fsm *raftfsm.Feed, other raftfsm.SectionVisitor, keys *[]uint64) raftfsm.SectionVisitor {
	check := other.Feed
	other.Feed = func(key uint64, op *FeedOp) error {
		if op.Kind != raftfsm.FeedClear && fsm.IsSpilled(key) {
			*keys = append(*keys, key)
		}
		if check == nil {
			return nil
		}
		return check(key, op)
	}
	return other
}
