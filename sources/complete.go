package sources

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/shard"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink"
)

const (
	// shardsTimeout and queueTimeout bound the waits for the positions in the shards and for
	// the end of the queue. The defaults of a call leave time for both.
	shardsTimeout = 2 * time.Second
	queueTimeout  = 2 * time.Second
	// partitionsAtOnce bounds the partitions of a source that are read concurrently.
	partitionsAtOnce = 64
)

// complete sets the positions that no reader knows, from the shards: those of paused partitions,
// of partitions whose reader has just begun, and of stalled ones whose reader never got as far.
// For these partitions it also sets End and Lag, if the queue answers.
func (s *Sources) complete(ctx context.Context, n *shard.Node, of shard.Source, all []Partition) {
	var unread []*Partition
	for i := range all {
		if _, begun := of.Partitions[all[i].Partition]; begun && all[i].Position == nil {
			unread = append(unread, &all[i])
		}
	}
	if len(unread) == 0 {
		return
	}
	forEach(ctx, shardsTimeout, unread, func(ctx context.Context, p *Partition) {
		p.Position = lowest(ctx, n, of, p.Partition)
	})
	cfg, err := source.ParseConfig(of.Config)
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
			p.readEnd(ctx, broker, of.Partitions[p.Partition].Identity)
		}
	})
}

// forEach calls read for all partitions. Their contexts end together.
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
	_ = reads.Wait() // none fails
}

// lowest returns the position that all shards have reached, nil if a shard does not answer.
func lowest(ctx context.Context, n *shard.Node, of shard.Source, partition uint32) *Position {
	all, err := n.SourcePositions(ctx, of.Number, partition)
	if err != nil {
		return nil
	}
	low, _ := sink.Span(all, of.Partitions[partition].Start)
	return &low
}

// readEnd sets End and Lag of a partition, if the queue still has the recorded identity: the end
// of another queue is not where the partition ends.
func (p *Partition) readEnd(ctx context.Context, broker source.Broker, recorded string) {
	if identity, err := broker.Identity(ctx); err != nil || recorded != "" && identity != recorded {
		return // after a seek none is recorded
	}
	looked := time.Now()
	_, end, err := broker.Bounds(ctx, p.Partition)
	if err != nil {
		return
	}
	age := time.Since(looked).Milliseconds()
	p.End, p.EndAgeMS = &end, &age
	switch {
	case end == *p.Position:
		p.Lag = new(uint64)
	case end.Hi == 0 && p.Position.Hi == 0 && p.Position.Less(end):
		lag := end.Lo - p.Position.Lo
		p.Lag = &lag
	}
}
