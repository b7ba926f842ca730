package source

import (
	"context"
	"errors"

	"github.com/countd/countd/source/sink"
)

// Past reads messages of a source for a second time, without counting them.
type Past struct {
	Number    uint64 // of the source
	Source    *Config
	Partition uint32
	Identity  string // of the queue, as recorded
	Broker    Broker
	Sink      sink.Sink
}

// Read returns the ops of some messages from a position on, without the messages that a reader
// would refuse. next is where the next messages begin. If no message comes for a while, next
// equals from. Read returns a *StalledError if the queue was created anew or has lost messages.
func (p *Past) Read(ctx context.Context, from Position, limit int) (ops []sink.Op, next Position, err error) {
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

// taken returns the ops of the messages that would not be refused.
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
