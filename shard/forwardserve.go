package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/tiering"
)

// serveParts proposes the parts that another node has forwarded, and answers with the outcome of
// each.
func (wr *writer) serveParts(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	number := uint32(r.UintTo(1<<32 - 1))
	parts := make([]*propose.ForwardedPart, r.Count(propose.PartSizeMin))
	for i := range parts {
		parts[i] = propose.ParsePart(&r)
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	g := wr.registry.shardOf(number)
	if g == nil {
		return nil, orDropped(wr.catalog.View(), number, fmt.Errorf("%w: group %d is not known here", errs.ErrNoLeader, number))
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
		case !p.check.OfDisk():
			proposals[i] = p.propose(ctx)
		default:
			reading.Go(func() { proposals[i] = p.propose(ctx) })
		}
	}
	reading.Wait()
	var answer []byte
	for i, q := range proposals {
		err := orDropped(wr.catalog.View(), number, q.Wait(timer))
		if answer = propose.AppendOutcome(answer, q, err); err == nil && parts[i].Judges {
			answer = propose.AppendUse(answer, q)
		} else if err == nil && parts[i].OfSource() {
			answer = propose.AppendPosition(answer, q)
		}
	}
	return answer, nil
}

// checkedPart is a forwarded part after its check.
type checkedPart struct {
	*propose.ForwardedPart
	check   tiering.Admission
	r       *localReplica // leads the group; nil if none is here
	clocked bool          // the part needs the log's time, see propose.Proposal
	err     error         // why the part is refused, or nil
}

// check checks a forwarded part. It may read the disk until the deadline. It refuses ops on dropped
// columns. A node that does not know of the drop yet may send such ops, and their counts would be
// acknowledged and then lost.
func (wr *writer) check(g *shardReplica, f *propose.ForwardedPart, deadline time.Time) *checkedPart {
	p := &checkedPart{ForwardedPart: f}
	r, err := g.led()
	if err != nil {
		p.err = err
		if leader := g.leader(); leader != "" && leader != wr.node {
			p.err = rpc.ErrLedBy(leader)
		}
		return p
	}
	p.r = r
	if p.err = p.check.Begin(&r.fsm, wr.headroom, deadline); p.err != nil {
		return p
	}
	p.check.Dropped = wr.catalog.View().DroppedColumns(g.keyspace, g.number)
	route := r.fsm.Route()
	p.Ops, p.clocked, p.err = kinds.All.CheckSection(g.kind, route, f.Section, &p.check)
	if errors.Is(p.err, codec.ErrRoute) {
		p.err = rpc.ErrMisrouted(route.Modulus, fmt.Sprintf("group %d: %v", g.number, p.err))
	}
	return p
}

// propose reads what the part needs from disk, and then submits the part. If propose refuses the
// part, it returns a settled proposal. It refuses a part whose caller has stopped waiting, because
// that caller may already have sent the part to another node.
func (p *checkedPart) propose(ctx context.Context) *propose.Proposal {
	err := p.err
	if err == nil {
		err = p.check.Read()
	}
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w: %w", errs.ErrOverloaded, errs.ErrTooLate, ctx.Err())
	}
	if err != nil {
		return propose.Settled(err)
	}
	q, err := p.r.proposer.Load().Submit(p.Section, p.Ops, p.clocked, p.Width)
	if err != nil {
		return propose.Settled(err)
	}
	return q
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
		return nil, orDropped(wr.catalog.View(), number, fmt.Errorf("%w: the group is not known here", errs.ErrNoLeader))
	}
	leader := g.leader()
	switch leader {
	case wr.node:
		return wr.serveParts(ctx, request)
	case "":
		return nil, errs.ErrNoLeader
	}
	led, done := wr.whileLed(ctx, g, leader)
	defer done()
	return wr.relay(led, leader, methodPropose, request)
}
