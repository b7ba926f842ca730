package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/forward"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/rpc"
)

// forward sends a part to the node that leads its group. The returned proposal is settled by the
// write's deadline.
func (wr *writer) forward(g *shardReplica, p *part, w *Write) *propose.Proposal {
	switch {
	case wr.draining.Load():
		return propose.Settled(ErrDraining)
	case wr.alone():
		return propose.Settled(ErrNoLeader)
	case !wr.asking.Begin():
		return propose.Settled(ErrDraining)
	}
	q := propose.Pending()
	f := &forward.Part{
		Section: p.writer.Section(), Width: w.Width, Ops: p.writer.Ops(), Judges: p.judges && w.ID.IsJudged(),
	}
	deadline := w.Deadline
	go func() { // ends at the deadline
		defer wr.asking.Done()
		defer q.Settle()
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		settled, err := g.forward.Do(ctx, f)
		switch late := errors.Is(err, ErrOverloaded) && errors.Is(err, context.DeadlineExceeded); {
		case late && wr.lost(g):
			err = fmt.Errorf("%w: none was found in time", ErrNoLeader) // the part waited for a leader, not for its turn
		case late:
			err = fmt.Errorf("%w: %w", ErrTooLate, err)
		}
		if err != nil {
			q.Err = rpc.Fate(err)
			return
		}
		q.Err, q.Result, q.Ops, q.Width = settled.Err, settled.Result, settled.Ops, settled.Width
	}()
	return q
}

// newForwardBatcher returns the batcher of a group. It sends parts to the node that seems to lead
// the group at that moment.
func (wr *writer) newForwardBatcher(g *shardReplica) *rpc.Batcher[*forward.Part, *propose.Proposal] {
	return rpc.NewBatcher(rpc.BatcherConfig[*forward.Part, *propose.Proposal]{
		Send: func(ctx context.Context, parts []*forward.Part) ([]*propose.Proposal, error) {
			return wr.sendToLeader(ctx, g, parts)
		},
		Size:     func(f *forward.Part) int { return len(f.Section) },
		InFlight: propose.EntriesInFlightMax,
		Items:    propose.QueueOpsMax, Bytes: propose.QueueBytesMax,
		CallItems: propose.EntryOpsMax, CallBytes: propose.EntryBytesMax,
	})
}

// sendToLeader sends parts to the leader of the group. If this node knows no leader, and its
// replica will not learn of one soon, it tries the nodes that hold the group in turn.
func (wr *writer) sendToLeader(ctx context.Context, g *shardReplica, parts []*forward.Part) ([]*propose.Proposal, error) {
	node := g.leader()
	if r := g.replica.Load(); node == "" && (r == nil || !r.group.InTouch()) {
		node = wr.guess(g)
	}
	if node == "" || node == wr.node {
		return nil, ErrNoLeader
	}
	settled, err := wr.sendTo(ctx, g, node, parts)
	if err == nil && len(settled) > 0 {
		err = settled[0].Err // the errors that learn examines are the same for all parts
	}
	g.learn(node, err)
	if settled != nil {
		return settled, nil // each has its own error
	}
	return nil, err
}

// sendTo sends parts to a node that seems to lead the group, and gives up once another node leads.
// If the parts certainly were not sent, it asks a third node to relay them.
func (wr *writer) sendTo(ctx context.Context, g *shardReplica, leader string, parts []*forward.Part) ([]*propose.Proposal, error) {
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
	answers, done := wr.while(ctx, func(context.Context) bool { return !wr.calls.Doubtful(via) })
	defer done()
	return wr.sendParts(answers, g, via, methodRelay, parts)
}

// learn updates the hint of the group's leader after a call to node.
func (g *shardReplica) learn(node string, err error) {
	switch {
	case errors.Is(err, ErrNoLeader), errors.Is(err, ErrDraining), errors.Is(err, rpc.ErrNotSent), errors.Is(err, rpc.ErrCallLost):
		hinted := rpc.LeaderHint(err) // "" if the node knows none
		g.hint.Store(&hinted)
	default:
		g.hint.Store(&node)
	}
}

// sendParts sends parts for one group to the node that leads it or relays them. The leader's
// proposer takes all of them, so that they are settled together.
func (wr *writer) sendParts(ctx context.Context, g *shardReplica, node, method string, parts []*forward.Part) ([]*propose.Proposal, error) {
	size, answerBytes := 16, 0
	for _, f := range parts {
		size += len(f.Section) + 8
		answerBytes += f.SettledMax()
	}
	request := make([]byte, 0, size)
	request = binary.AppendUvarint(request, uint64(g.number))
	request = binary.AppendUvarint(request, uint64(len(parts)))
	for _, f := range parts {
		request = forward.Append(request, f)
	}
	answer, err := wr.streams.Call(ctx, node, method, request, answerBytes)
	if err != nil {
		return nil, err
	}
	return parseAllSettled(answer, parts)
}

// parseAllSettled parses the outcomes of parts. If a part of the answer is invalid, parseAllSettled
// returns no outcome, because earlier outcomes may be wrong too.
func parseAllSettled(answer []byte, parts []*forward.Part) ([]*propose.Proposal, error) {
	r := wire.Reader{Rest: answer}
	settled := make([]*propose.Proposal, len(parts))
	for i, f := range parts {
		q := parseSettled(&r, f.Width)
		if f.Judges && q.Err == nil {
			q.Result.SetUse(forward.ParseUse(&r))
		} else if f.OfSource() && q.Err == nil {
			q.Result.SetPosition(forward.ParsePosition(&r))
		}
		if q.Err == nil && q.Outcome() == dedup.Moved && !f.OfSource() {
			r.Fail("the outcome of a source")
		}
		if q.Err == nil && q.Ops != f.Ops {
			r.Fail(fmt.Sprintf("%d rows for %d ops", q.Ops, f.Ops))
		}
		settled[i] = q
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	return settled, nil
}

// fateOfPart turns an error without a code, which promises nothing, into ErrOutcomeUnknown.
func fateOfPart(err error) error {
	if rpc.CodeOf(err) == rpc.CodeOther {
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return err
}

// parseSettled parses an outcome of appendSettled. The proposal's ops begin at 0.
func parseSettled(r *wire.Reader, width int) *propose.Proposal {
	if err := rpc.ReadError(r); err != nil {
		return propose.Settled(fateOfPart(err))
	}
	q := propose.Settled(nil)
	q.Width = width
	index := r.Uint()
	outcome := dedup.Outcome(r.UintTo(uint64(dedup.Misrouted)))
	q.Ops = int(r.UintTo(propose.QueueOpsMax))
	if q.Ops*width > len(r.Rest) {
		r.Fail(fmt.Sprintf("%d rows", q.Ops))
		q.Ops = 0
	}
	rows := make([]int64, q.Ops*width)
	for i := range rows {
		rows[i] = r.Int()
	}
	var refused []engine.Overflow
	for range r.Count(2) {
		refused = append(refused, engine.Overflow{Op: int(r.UintTo(uint64(q.Ops))), Column: uint8(r.UintTo(engine.ColumnsMax - 1))})
	}
	q.Result = raftfsm.NewResult(index, width, rows, refused, outcome)
	q.Result.Cuts, q.Result.Changed = forward.ParseCuts(r, q.Ops), forward.ParseChanged(r, q.Ops)
	return q
}

// mayTryAgain reports whether a part that failed with err may be proposed again. It may be if it
// changed nothing, or if identified is true: then repeats are applied once.
func mayTryAgain(err error, identified bool) bool {
	if errors.Is(err, ErrOutcomeUnknown) {
		return identified
	}
	return errors.Is(err, ErrNoLeader) || errors.Is(err, ErrDraining)
}
