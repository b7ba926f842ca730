package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/rpc"
)

// forward sends a part to the node that leads its group. The returned proposal is settled no later
// than at the write's deadline; if the part is the only one that waits (alone), it is settled already.
func (wr *writer) forward(p *part, w *Write, alone bool) *propose.Proposal {
	g := p.group
	switch {
	case wr.draining.Load():
		return propose.Settled(errs.ErrDraining)
	case wr.alone():
		return propose.Settled(errs.ErrNoLeader)
	case !wr.asking.Begin():
		return propose.Settled(errs.ErrDraining)
	}
	q := propose.Pending()
	f := &propose.ForwardedPart{
		Section: p.writer.Section(), Width: w.Width, Ops: p.writer.Ops(), Judges: p.judges && w.ID.IsJudged(),
	}
	deadline := w.Deadline
	ask := func() { // ends no later than at the deadline
		defer wr.asking.Done()
		defer q.Settle()
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		settled, err := g.forward.Do(ctx, f)
		switch late := errors.Is(err, errs.ErrOverloaded) && errors.Is(err, context.DeadlineExceeded); {
		case late && wr.lost(g):
			err = fmt.Errorf("%w: none was found in time", errs.ErrNoLeader) // the part waited for a leader, not in a queue
		case late:
			err = fmt.Errorf("%w: %w", errs.ErrTooLate, err)
		}
		if err != nil {
			q.Err = rpc.Fate(g.orAbandoned(err))
			return
		}
		q.Err, q.Result, q.Ops, q.Width = g.orAbandoned(settled.Err), settled.Result, settled.Ops, settled.Width
	}
	if alone { // a goroutine would cost as much as the rest
		ask()
	} else {
		go ask()
	}
	return q
}

// orAbandoned returns err of another node. If that node answers that the group of a part was dropped, perhaps only
// the attempt to split its parent was abandoned. Then the caller has to route anew, and not to answer that the
// keyspace does not exist. The catalog here soon shows which one it is. A shard whose growth has ended, as the catalog
// here knows, can only be dropped with its keyspace.
func (g *shardReplica) orAbandoned(err error) error {
	if g.parent != 0 && !g.grown.Load() && errors.Is(err, errs.ErrUnknownKeyspace) {
		return fmt.Errorf("%w: group %d was dropped, or the attempt to make it was abandoned", errs.ErrMisrouted, g.number)
	}
	return err
}

// newForwardBatcher returns the batcher that sends parts of writes to the leader of a group.
func (wr *writer) newForwardBatcher(g *shardReplica) *rpc.Batcher[*propose.ForwardedPart, *propose.Proposal] {
	return rpc.NewBatcher(rpc.BatcherConfig[*propose.ForwardedPart, *propose.Proposal]{
		Send: func(ctx context.Context, parts []*propose.ForwardedPart) ([]*propose.Proposal, error) {
			return wr.sendToLeader(ctx, g, parts)
		},
		Size:     func(f *propose.ForwardedPart) int { return len(f.Section) },
		InFlight: propose.EntriesInFlightMax,
		Items:    propose.QueueOpsMax, Bytes: propose.QueueBytesMax,
		CallItems: propose.EntryOpsMax, CallBytes: propose.EntryBytesMax,
	})
}

// sendToLeader sends parts to the leader of the group. If this node knows no leader, and has no
// replica that would soon learn of one, successive calls try the holders of the group in turn.
func (wr *writer) sendToLeader(ctx context.Context, g *shardReplica, parts []*propose.ForwardedPart) ([]*propose.Proposal, error) {
	node := g.leader()
	if r := g.replica.Load(); node == "" && (r == nil || !r.group.InTouch()) {
		node = wr.guess(g)
	}
	if node == "" || node == wr.node {
		return nil, errs.ErrNoLeader
	}
	settled, err := wr.sendTo(ctx, g, node, parts)
	if err == nil && len(settled) > 0 {
		err = settled[0].Err // errors about the leader are the same for all parts
	}
	g.learn(node, err)
	if settled != nil {
		return settled, nil // each proposal has its own error
	}
	return nil, err
}

// sendTo sends parts to the leading node, and stops waiting once another node leads the group. If
// no byte was sent, it asks a third node to relay the parts.
func (wr *writer) sendTo(ctx context.Context, g *shardReplica, leader string, parts []*propose.ForwardedPart) ([]*propose.Proposal, error) {
	led, done := wr.whileLed(ctx, g, leader)
	settled, err := wr.sendParts(led, g, leader, methodPropose, parts)
	done()
	if !errors.Is(err, rpc.ErrNotSent) || ctx.Err() != nil {
		return settled, err
	}
	via := wr.relayFor(g, leader)
	if via == "" {
		return nil, err
	}
	answers, done := wr.asking.While(ctx, func(context.Context) bool { return !wr.calls.Doubtful(via) })
	defer done()
	return wr.sendParts(answers, g, via, methodRelay, parts)
}

// learn updates the hint about the group's leader after a call to the given node.
func (g *shardReplica) learn(node string, err error) {
	switch {
	case errors.Is(err, errs.ErrMisrouted): // only the leader compares routes
		g.hint.Store(&node)
	case errors.Is(err, errs.ErrNoLeader), errors.Is(err, errs.ErrDraining), errors.Is(err, rpc.ErrNotSent), errors.Is(err, rpc.ErrCallLost):
		hinted := rpc.LeaderHint(err) // "" if the node knows no leader
		g.hint.Store(&hinted)
	default:
		g.hint.Store(&node)
	}
}

// sendParts sends parts for one group to a node. Depending on method, the node proposes the parts
// or relays them to the leader.
func (wr *writer) sendParts(ctx context.Context, g *shardReplica, node, method string, parts []*propose.ForwardedPart) ([]*propose.Proposal, error) {
	size, answerBytes := 16, 0
	for _, f := range parts {
		size += len(f.Section) + 8
		answerBytes += f.SettledMax()
	}
	request := make([]byte, 0, size)
	request = binary.AppendUvarint(request, uint64(g.number))
	request = binary.AppendUvarint(request, uint64(len(parts)))
	for _, f := range parts {
		request = propose.AppendPart(request, f)
	}
	answer, err := wr.streams.Call(ctx, node, method, request, answerBytes)
	if err != nil {
		return nil, err
	}
	return propose.ParseOutcomes(answer, parts)
}

// mayTryAgain reports whether a part that failed with err may be proposed again. That is safe if
// the part was not applied, or if the write has an identity (identified), so that a repeat is not
// applied twice.
func mayTryAgain(err error, identified bool) bool {
	if errors.Is(err, errs.ErrOutcomeUnknown) {
		return identified
	}
	return errors.Is(err, errs.ErrNoLeader) || errors.Is(err, errs.ErrDraining)
}
