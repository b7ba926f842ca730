package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/wire"
)

// serveReads answers the reads of another node from the replicas here.
func (n *Node) serveReads(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	reads := make([]*remoteRead, r.Count(6))
	for i := range reads {
		reads[i] = parseRead(&r)
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	now := time.Now()
	deadline, end := now.Add(readWaitMax), now.Add(confirmTimeout+coldReadMax)
	if d, ok := ctx.Deadline(); ok {
		end = d
		if d.Before(deadline) {
			deadline = d
		}
	}
	answers := make([]readAnswer, len(reads))
	done := make(chan struct{}, len(reads))
	for i, q := range reads {
		n.asking.Go(func() { // ends at the deadline, or a read of cold rows at the end
			answers[i].rows, answers[i].err = n.readHere(q, deadline, end)
			done <- struct{}{}
		})
	}
	for range reads {
		<-done
	}
	var answer []byte
	for _, a := range answers {
		answer = rpc.AppendError(answer, a.err)
		for _, count := range a.rows {
			answer = binary.AppendVarint(answer, count)
		}
	}
	return answer, nil
}

// readHere answers another node's read of a replica that may answer by the deadline,
// and of cold rows by the end.
func (n *Node) readHere(q *remoteRead, deadline, end time.Time) ([]int64, error) {
	rep, err := n.replicaFor(q, deadline)
	if err != nil {
		return nil, err
	}
	return rep.rows(q, end)
}

// rows returns what a read asks for. Its errors are get's, and errs.ErrColdRows.
func (r *localReplica) rows(q *remoteRead, deadline time.Time) ([]int64, error) {
	if q.of == readFeeds {
		return r.feedRows(q, deadline)
	}
	if r.table(q.of.table()) == nil {
		return nil, fmt.Errorf("%w: a read of what group %d does not hold", wire.ErrBadMessage, q.group)
	}
	rows := make([]int64, len(q.keys)*q.width)
	if !q.cold {
		if len(r.table(q.of.table()).GetMany(q.keys, q.width, rows, nil)) > 0 {
			return nil, errs.ErrColdRows
		}
		return rows, nil
	}
	if err := r.get(q.of.table(), q.keys, q.width, rows, deadline); err != nil {
		return nil, err
	}
	return rows, nil
}

// replicaFor returns the replica here if it may answer another node's read of
// rows.
func (n *Node) replicaFor(q *remoteRead, deadline time.Time) (*localReplica, error) {
	r, err := n.admittedFor(q, deadline)
	if err == nil && q.of != readFeeds && r.table(q.of.table()) == nil {
		return nil, fmt.Errorf("%w: a read of what group %d does not hold", wire.ErrBadMessage, q.group)
	}
	return r, err
}

// admittedFor returns the replica here if it may answer another node's read.
func (n *Node) admittedFor(q *remoteRead, deadline time.Time) (*localReplica, error) {
	g := n.shardOf(q.group)
	if g == nil || g.replica.Load() == nil {
		return nil, orDropped(n.catalog.View(), q.group, fmt.Errorf("%w: group %d is not here", ErrNoLeader, q.group))
	}
	opt := ReadOptions{Consistency: q.consistency, MaxStaleness: q.staleness, Deadline: deadline}
	if q.index > 0 {
		opt.Token.At = []GroupIndex{{q.group, q.index}}
	}
	r := g.replica.Load()
	err := r.admit(q.group, &opt, time.Now())
	if errors.Is(err, ErrBadToken) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoQuorum, err)
	}
	return r, nil
}
