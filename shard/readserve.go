package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/tiering"
)

// serveReads answers the reads of another node from this node's replicas.
func (rd *reader) serveReads(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	reads := make([]*remoteRead, r.Count(10))
	for i := range reads {
		reads[i] = parseRead(&r)
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	now := time.Now()
	deadline, end := now.Add(readWaitMax), now.Add(prover.ConfirmTimeout+tiering.ReadMax)
	if d, ok := ctx.Deadline(); ok {
		end = d
		if d.Before(deadline) {
			deadline = d
		}
	}
	answers := make([]readAnswer, len(reads))
	var reading sync.WaitGroup
	for i, q := range reads {
		reading.Go(func() { // ends at deadline; a read of cold rows ends at end
			answers[i].rows, answers[i].err = rd.readHere(q, deadline, end)
		})
	}
	reading.Wait()
	var answer []byte
	for _, a := range answers {
		answer = rpc.AppendError(answer, a.err)
		if a.err != nil {
			continue
		}
		for _, count := range a.rows {
			answer = binary.AppendVarint(answer, count)
		}
	}
	return answer, nil
}

// readHere answers another node's read. It waits until deadline for the replica to be admitted, and
// until end for cold rows.
func (rd *reader) readHere(q *remoteRead, deadline, end time.Time) ([]int64, error) {
	rep, err := rd.admittedFor(q, deadline)
	if err != nil {
		return nil, err
	}
	return rep.rows(q, q.cold, end)
}

// rows returns the rows of a read: a row of counts for each key, or the form that readOf names. For a
// chunk, it returns the number of rows, then the key and the counts of each. Unless cold is set, it
// returns errs.ErrColdRows for counts, feeds and posts that are not in memory. Its other errors are
// those of get.
func (r *localReplica) rows(q *remoteRead, cold bool, deadline time.Time) ([]int64, error) {
	switch q.of {
	case readFeeds:
		return r.feedRows(q, cold, deadline)
	case readGroups:
		return r.groupsRow(q, deadline)
	case readPosts:
		return r.postsRow(q, cold, deadline)
	case readBoard:
		return r.boardRow(q)
	case readContains, readMembers, readRows:
		return r.setRows(&q.sets, q.of, q.keys)
	}
	table := r.fsm.TableOf(q.of.table())
	if table == nil {
		return nil, fmt.Errorf("%w: a read of what group %d does not hold", wire.ErrBadMessage, q.group)
	}
	if q.chunk > 0 {
		return r.readRun(table, q)
	}
	rows := make([]int64, len(q.keys)*q.width)
	missing := table.GetMany(q.keys, q.width, rows, nil)
	switch {
	case len(missing) == 0:
		return rows, nil
	case !cold:
		return nil, errs.ErrColdRows
	}
	return rows, r.readCold(table, q.keys, missing, q.width, rows, deadline)
}

func (r *localReplica) feedRows(q *remoteRead, cold bool, deadline time.Time) (rows []int64, err error) {
	if r.feed == nil {
		return nil, fmt.Errorf("%w: a read of feeds in group %d", wire.ErrBadMessage, q.group)
	}
	if !cold {
		var feed []feed.Followee
		for _, key := range q.keys {
			var stamp uint64
			var inMemory bool
			if feed, stamp, inMemory = r.feed.Followees(feed[:0], key); !inMemory {
				return nil, errs.ErrColdRows
			}
			rows = appendFeedRow(rows, feed, stamp)
		}
		return rows, nil
	}
	feeds, stamps := make([][]feed.Followee, len(q.keys)), make([]uint64, len(q.keys))
	err = r.eachBody(len(q.keys), deadline, func(ctx context.Context, i int) (err error) {
		feeds[i], stamps[i], err = r.feed.Fetch(ctx, nil, q.keys[i])
		return err
	})
	for i, feed := range feeds {
		rows = appendFeedRow(rows, feed, stamps[i])
	}
	return rows, err
}

// admittedFor returns this node's replica if it may answer another node's read.
func (rd *reader) admittedFor(q *remoteRead, deadline time.Time) (*localReplica, error) {
	var r *localReplica
	g := rd.registry.shardOf(q.group)
	if g != nil {
		r = g.replica.Load()
	}
	if r == nil {
		return nil, orDropped(rd.catalog.View(), q.group, fmt.Errorf("%w: group %d is not here", ErrNoLeader, q.group))
	}
	if err := g.of().Check(q.route); err != nil {
		return nil, fmt.Errorf("%w: group %d: %w", errs.ErrMisrouted, q.group, err)
	}
	opt := ReadOptions{Consistency: q.consistency, MaxStaleness: q.staleness, Deadline: deadline}
	if q.index > 0 {
		opt.Token.At = []GroupIndex{{Group: q.group, Index: q.index}}
	}
	err := r.admit(q.group, &opt, time.Now())
	if errors.Is(err, ErrBadToken) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoQuorum, err)
	}
	return r, nil
}

// serveRelayRead relays the reads of one node to another.
func (rd *reader) serveRelayRead(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	node := string(r.Bytes())
	if r.Err != nil {
		return nil, r.Err
	}
	return rd.relay(ctx, node, methodRead, r.Rest)
}
