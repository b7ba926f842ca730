package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/rpc"
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
	deadline, end := now.Add(readWaitMax), now.Add(leadership.ConfirmTimeout+raftfsm.DiskReadMax)
	if d, ok := ctx.Deadline(); ok {
		end = d
		if d.Before(deadline) {
			deadline = d
		}
	}
	answers := make([]readAnswer, len(reads))
	var reading sync.WaitGroup
	for i, read := range reads {
		reading.Go(func() { // ends at deadline; a read that may wait for the disk ends at the time end
			answers[i].body, answers[i].err = rd.readHere(read, deadline, end)
		})
	}
	reading.Wait()
	var answer []byte
	for _, a := range answers {
		if answer = rpc.AppendError(answer, a.err); a.err == nil {
			answer = wire.AppendBytes(answer, a.body)
		}
	}
	return answer, nil
}

// readHere answers another node's read. It waits for the replica's admission until the argument
// deadline, and for the disk until the argument end. If read.disk is false and the answer is not in
// memory, it returns errs.ErrColdRows.
func (rd *reader) readHere(read *remoteRead, deadline, end time.Time) ([]byte, error) {
	r, g, err := rd.admittedFor(read, deadline)
	if err != nil {
		return nil, err
	}
	q, p, err := read.parseQuery(g.kind)
	if err != nil {
		return nil, err
	}
	if err := r.fsm.Answer(q, p, read.disk, end); err != nil {
		return nil, err
	}
	return q.AppendAnswer(nil, p)
}

// admittedFor returns this node's replica, and its group, if the replica may answer another node's
// read.
func (rd *reader) admittedFor(q *remoteRead, deadline time.Time) (r *localReplica, g *shardReplica, err error) {
	g = rd.registry.shardOf(q.group)
	if g != nil {
		r = g.replica.Load()
	}
	if r == nil {
		return nil, nil, orDropped(rd.catalog.View(), q.group, fmt.Errorf("%w: group %d is not here", errs.ErrNoLeader, q.group))
	}
	opt := ReadOptions{Consistency: q.consistency, MaxStaleness: q.staleness, Deadline: deadline}
	if q.index > 0 {
		opt.Token.At = []GroupIndex{{Group: q.group, Index: q.index}}
	}
	err = r.admit(q.group, &opt, time.Now())
	if errors.Is(err, errs.ErrBadToken) {
		return nil, nil, err
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errs.ErrNoQuorum, err)
	}
	return r, g, nil
}

func (rd *reader) serveRelayRead(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	node := string(r.Bytes())
	if r.Err != nil {
		return nil, r.Err
	}
	return rd.relay(ctx, node, methodRead, r.Rest)
}
