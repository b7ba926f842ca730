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
	// shardsLook and queueLook bound the waits for the positions in the shards and for the end
	// of the queue. The defaults of a call leave time for both.
	shardsLook = 2 * time.Second
	queueLook  = 2 * time.Second
	// lookAtOnce bounds the partitions of a source that are looked at concurrently.
	lookAtOnce = 64
)

// complete sets the positions that no reader knows: of a paused partition, of one whose reader
// has just begun, and of one that is stalled and whose reader never got as far. The shards have
// them. It sets what the queue has then, where the queue answers.
func (s *Sources) complete(ctx context.Context, n *shard.Node, of shard.Source, all []Partition) {
	looked := []*Partition{}
	for i := range all {
		if _, begun := of.Partitions[all[i].Partition]; begun && all[i].Position == nil {
			looked = append(looked, &all[i])
		}
	}
	if len(looked) == 0 {
		return
	}
	forEach(ctx, shardsLook, looked, func(ctx context.Context, p *Partition) {
		p.Position = lowest(ctx, n, of, p.Partition)
	})
	cfg, err := source.ParseConfig(of.Config)
	if err != nil {
		return
	}
	broker, err := s.cfg.Open(cfg)
	if err != nil {
		return
	}
	defer broker.Close()
	forEach(ctx, queueLook, looked, func(ctx context.Context, p *Partition) {
		if p.Position != nil {
			p.look(ctx, broker, of.Partitions[p.Partition].Identity)
		}
	})
}

// forEach calls look for all partitions. Their contexts end together.
func forEach(ctx context.Context, bound time.Duration, all []*Partition, look func(context.Context, *Partition)) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var looks errgroup.Group
	looks.SetLimit(lookAtOnce)
	for _, p := range all {
		looks.Go(func() error {
			look(ctx, p)
			return nil
		})
	}
	_ = looks.Wait() // none fails
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

// look sets End and Lag of a partition, if the queue is still the one of the recorded identity:
// the end of another one is not where the partition ends.
func (p *Partition) look(ctx context.Context, broker source.Broker, recorded string) {
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
