package sources

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink"
)

const (
	// shardsTimeout and queueTimeout bound the waits for the shards and for the queue. Their sum is
	// less than the default timeout of a call.
	shardsTimeout = 2 * time.Second
	queueTimeout  = 2 * time.Second
	// partitionsAtOnce bounds the partitions of a source that are read concurrently.
	partitionsAtOnce = 64
)

// complete sets Position, End and Lag of the partitions whose readers do not report them. It reads
// Position from the shards, and End and Lag from the queue. A reader does not report them if the
// source is paused, or if the reader has just begun or stalled early.
func (s *Sources) complete(ctx context.Context, n *node, src catalog.Source, all []Partition) {
	var unread []*Partition
	for i := range all {
		if _, begun := src.Partitions[all[i].Partition]; begun && all[i].Position == nil {
			unread = append(unread, &all[i])
		}
	}
	if len(unread) == 0 {
		return
	}
	forEach(ctx, shardsTimeout, unread, func(ctx context.Context, p *Partition) {
		p.readPosition(ctx, n, src)
	})
	cfg, err := source.ParseConfig(src.Config)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	broker, err := s.connectCall(ctx, cfg)
	if err != nil {
		return
	}
	defer broker.Close()
	forEach(ctx, queueTimeout, unread, func(ctx context.Context, p *Partition) {
		if p.Position != nil {
			p.readEnd(ctx, broker, src.Partitions[p.Partition].Identity)
		}
	})
}

// forEach calls read for all partitions concurrently, with one timeout.
func forEach(ctx context.Context, timeout time.Duration, all []*Partition, read func(context.Context, *Partition)) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var reads errgroup.Group
	reads.SetLimit(partitionsAtOnce)
	for _, p := range all {
		reads.Go(func() error {
			read(ctx, p)
			return nil
		})
	}
	_ = reads.Wait() // the functions never return an error
}

// readPosition sets Position to the lowest position of the shards, if all of them answer. For a
// paused partition it sets Reason in two cases: shards have different positions, so a seek to a
// lower one counts messages twice, or a shard does not answer.
func (p *Partition) readPosition(ctx context.Context, n *node, src catalog.Source) {
	all, err := n.SourcePositions(ctx, src.Number, p.Partition)
	if err != nil {
		if p.State == source.StatePaused {
			p.Reason = fmt.Sprintf("shards may be at different positions: %v", err)
		}
		return
	}
	low, high := sink.Span(all, src.Partitions[p.Partition].Start)
	p.Position = &low
	if p.State == source.StatePaused && low != high {
		p.Reason = fmt.Sprintf("shards are at different positions, up to %v: a seek to a lower one counts messages twice; resume, let it catch up, and pause again", high)
	}
}

// readEnd sets End and Lag if the queue still has the recorded identity.
func (p *Partition) readEnd(ctx context.Context, broker source.Broker, recorded string) {
	if identity, err := broker.Identity(ctx); err != nil || recorded != "" && identity != recorded {
		return // after a seek, the recorded identity is ""
	}
	looked := time.Now()
	_, end, err := broker.Bounds(ctx, p.Partition)
	if err != nil {
		return
	}
	age := time.Since(looked).Milliseconds()
	p.End, p.EndAgeMS = &end, &age
	p.LagSeconds = nil // unknown, because no reader knows the time of the last applied message
	if !p.Position.Less(end) {
		p.LagSeconds = new(float64)
	}
	switch {
	case end == *p.Position:
		p.Lag = new(uint64)
	case end.Hi == 0 && p.Position.Hi == 0 && p.Position.Less(end):
		lag := end.Lo - p.Position.Lo
		p.Lag = &lag
	}
}
