package shard

import (
	"context"
	"fmt"

	"github.com/countd/countd/source/sink"
)

// settle returns the position of a partition of a paused source, which is that of all shards
// and stays: it raises their epochs to that of the pause, so that a section on its way is not
// applied, and begins the shards that have no position.
func (s *sourceSink) settle(ctx context.Context, source Source, partition uint32) (sink.Position, error) {
	all, err := s.Positions(ctx, source.Number, partition)
	if err != nil {
		return sink.Position{}, err
	}
	at, known := source.Partitions[partition].Start, false
	for _, p := range all {
		switch {
		case !p.Known:
		case known && p.Position != at:
			return sink.Position{}, fmt.Errorf("%w: of partition %d they are at %v and %v", ErrNotPaused, partition, at, p.Position)
		default:
			at, known = p.Position, true
		}
	}
	_, err = s.Apply(ctx, &sink.Batch{Source: source.Number, Partition: partition, From: at, Next: at})
	return at, err
}
