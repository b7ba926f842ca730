package source

import (
	"context"
	"errors"

	"github.com/countd/countd/source/sink"
)

// Past reads messages that a source has already read. It does not count them.
type Past struct {
	Number    uint64 // number of the source
	Source    *Config
	Partition uint32
	Identity  string // recorded identity of the queue
	Broker    Broker
	Sink      sink.Sink
}

// Read returns the ops of up to limit messages at or above position from. It omits messages that a
// reader would refuse. nextPos is the position at which to continue. If no message comes for a
// while, nextPos equals from. Read returns a *StalledError if the queue was created again or has
// lost messages.
func (p *Past) Read(ctx context.Context, from Position, limit int) (ops []sink.Op, nextPos Position, err error) {
	reader, err := p.Broker.Read(ctx, p.Partition, from, Mark{})
	if err != nil {
		return nil, from, wrap("read", err)
	}
	defer reader.Close()
	identity, err := p.Broker.Identity(ctx)
	if err == nil {
		err = sameQueue(p.Identity, identity)
	}
	if err != nil {
		return nil, from, wrap("find the queue", err)
	}
	got, err := reader.Next(ctx, limit)
	if err != nil {
		return nil, from, wrap("read", err)
	}
	if got.Next.Less(from) {
		got.Next = from
	}
	ops, err = p.taken(ctx, got.Messages)
	return ops, got.Next, err
}

// taken returns the ops of the messages that a reader would not refuse.
func (p *Past) taken(ctx context.Context, messages []Message) ([]sink.Op, error) {
	decoder := NewDecoder(p.Source)
	for i := range messages {
		err := decoder.Decode(&messages[i])
		if stalled, is := errors.AsType[*StalledError](err); is {
			return nil, Stalled("message at position %s: %s", messages[i].Position, stalled.Reason)
		}
	}
	rejected, err := p.Sink.Check(ctx, &sink.Batch{Source: p.Number, Partition: p.Partition, Ops: decoder.Ops})
	if err != nil {
		return nil, wrap("check the messages", err)
	}
	refused := map[Position]bool{}
	for _, r := range rejected {
		refused[decoder.Ops[r.Op].Position] = true
	}
	kept := decoder.Ops[:0]
	for _, op := range decoder.Ops {
		if !refused[op.Position] {
			kept = append(kept, op)
		}
	}
	return kept, nil
}
