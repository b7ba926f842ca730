package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/forward"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// serveParts proposes the parts that another node forwards, and answers each.
func (wr *writer) serveParts(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	number := uint32(r.UintTo(1<<32 - 1))
	parts := make([]*forward.Part, r.Count(forward.SizeMin))
	for i := range parts {
		parts[i] = forward.Parse(&r)
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	g := wr.registry.shardOf(number)
	if g == nil {
		return nil, orDropped(wr.catalog.View(), number, fmt.Errorf("%w: group %d is not known here", ErrNoLeader, number))
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(replica.EnqueueTimeoutMax)
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	proposals := make([]*propose.Proposal, len(parts))
	var reading sync.WaitGroup // parts that read the disk; the other parts do not wait for them
	for i, f := range parts {
		p := wr.check(g, f, deadline)
		switch q := wr.ofDeleted(f.Section, p.Ops); {
		case p.err == nil && q != nil:
			proposals[i] = q
		case !p.check.ofDisk():
			proposals[i] = p.propose(ctx)
		default:
			reading.Go(func() { proposals[i] = p.propose(ctx) })
		}
	}
	reading.Wait()
	var answer []byte
	for i, q := range proposals {
		err := orDropped(wr.catalog.View(), number, q.Wait(timer))
		if answer = appendSettled(answer, q, err); err == nil && parts[i].Judges {
			answer = forward.AppendUse(answer, q)
		} else if err == nil && parts[i].OfSource() {
			answer = forward.AppendPosition(answer, q)
		}
	}
	return answer, nil
}

// checkedPart is a forwarded part after its check.
type checkedPart struct {
	*forward.Part
	check   partCheck
	clocked bool  // the part's entry needs the leader's time, see Write.clocked
	err     error // why the part is refused; nil if it is not
}

// check checks a forwarded part. It may read the disk until the deadline. It refuses ops on dropped
// columns. A node that does not know of the drop yet may send such ops, and their acknowledged
// counts would be lost.
func (wr *writer) check(g *shardReplica, f *forward.Part, deadline time.Time) *checkedPart {
	p := &checkedPart{Part: f}
	r, err := g.led()
	if err != nil {
		p.err = err
		if leader := g.leader(); leader != "" && leader != wr.node {
			p.err = rpc.ErrLedBy(leader)
		}
		return p
	}
	if p.check, p.err = wr.newCheck(r, deadline); p.err != nil {
		return p
	}
	p.check.dropped = wr.catalog.View().DroppedColumns(g.keyspace, g.number)
	p.Ops, p.clocked, p.err = kinds.All.CheckSection(g.kind, g.of(), f.Section, raftfsm.SectionVisitor{
		Op: p.check.op, Body: p.check.bodyOp, Member: p.check.member,
	})
	if errors.Is(p.err, codec.ErrRoute) {
		p.err = fmt.Errorf("%w: group %d: %w", errs.ErrMisrouted, g.number, p.err)
	}
	return p
}

// propose reads what the part needs from disk, then submits it. If it refuses the part, it returns
// a settled proposal. It refuses a part whose caller is gone: the caller treats the outcome as
// unknown, and another node may have applied the part.
func (p *checkedPart) propose(ctx context.Context) *propose.Proposal {
	err := p.err
	if err == nil {
		err = p.check.read()
	}
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w: %w", ErrOverloaded, ErrTooLate, ctx.Err())
	}
	if err != nil {
		return propose.Settled(err)
	}
	q, err := p.check.r.proposer.Load().Submit(p.Section, p.Ops, p.clocked, p.Width)
	if err != nil {
		return propose.Settled(err)
	}
	return q
}

// appendSettled appends the outcome of a part: an error, or
//
//	index | outcome | ops | rows (varints) | refused ops | cuts | ops that changed a set of members
//
// Each list follows its length, and other numbers are uvarints. If the part has the use of a key,
// or the position of a source, that follows.
func appendSettled(dst []byte, q *propose.Proposal, err error) []byte {
	if dst = rpc.AppendError(dst, err); err != nil {
		return dst
	}
	dst = binary.AppendUvarint(dst, q.Result.Index)
	dst = binary.AppendUvarint(dst, uint64(q.Outcome()))
	dst = binary.AppendUvarint(dst, uint64(q.Ops))
	if q.Width > 0 {
		for i := range q.Ops {
			for _, count := range q.Row(i, q.Width) {
				dst = binary.AppendVarint(dst, count)
			}
		}
	}
	refused := q.Refused()
	dst = binary.AppendUvarint(dst, uint64(len(refused)))
	for _, o := range refused {
		dst = binary.AppendUvarint(dst, uint64(o.Op-q.First))
		dst = binary.AppendUvarint(dst, uint64(o.Column))
	}
	return forward.AppendChanged(forward.AppendCuts(dst, q.Cuts(), q.First), q.Changed(), q.First)
}

// serveRelay forwards parts of another node's writes to the node that leads their group.
func (wr *writer) serveRelay(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	number := uint32(r.UintTo(1<<32 - 1))
	g := wr.registry.shardOf(number)
	switch {
	case r.Err != nil:
		return nil, r.Err
	case g == nil:
		return nil, orDropped(wr.catalog.View(), number, fmt.Errorf("%w: the group is not known here", ErrNoLeader))
	}
	leader := g.leader()
	switch leader {
	case wr.node:
		return wr.serveParts(ctx, request)
	case "":
		return nil, ErrNoLeader
	}
	led, done := wr.whileLed(ctx, g, leader)
	defer done()
	return wr.relay(led, leader, methodPropose, request)
}
