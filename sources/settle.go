package sources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/source/sink"
)

// ErrNotPaused is returned for a change of a source that is not paused, or whose shards are at
// different positions.
var ErrNotPaused = errors.New("the source must be paused, at one position in all shards")

const forgetTimeout = 5 * time.Second

// Settle returns the common position of all shards of a paused partition, and makes sure that no
// reader moves the shards any more. For that, it raises the shards' epochs to the epoch of the
// pause, so that they apply no section of an earlier epoch. It also sets the position of shards
// without a position. A reader that does not know of the pause yet may begin and move such a shard
// first, so Settle reads all positions a second time.
func (s *Sink) Settle(ctx context.Context, source catalog.Source, partition uint32) (sink.Position, error) {
	var r sinkReader // do not use the shared cache, because a session of this node must not get the epoch that this call reads
	low, err := s.even(ctx, &r, source, partition)
	if err != nil {
		return sink.Position{}, err
	}
	if err := s.raise(ctx, &r, source, partition, low); err != nil {
		return sink.Position{}, err
	}
	return s.even(ctx, &r, source, partition)
}

// even returns the common position of all shards of a partition, or ErrNotPaused. It ignores
// shards without a position.
func (s *Sink) even(ctx context.Context, r *sinkReader, source catalog.Source, partition uint32) (sink.Position, error) {
	all, err := s.positions(ctx, r, source.Number, partition, true)
	if err != nil {
		return sink.Position{}, err
	}
	low, high := sink.Span(all, source.Partitions[partition].Start)
	if low != high {
		return sink.Position{}, fmt.Errorf("%w: of partition %d they are at %v and %v", ErrNotPaused, partition, low, high)
	}
	return low, nil
}

// Fence raises the epochs of all shards to the epoch of the pause. Unlike Settle, it allows
// different positions. After Fence, a reader that does not know of the pause yet cannot apply any
// op. Fence also sets the position of shards without a position, because that reader could
// otherwise begin them.
func (s *Sink) Fence(ctx context.Context, source catalog.Source, partition uint32) error {
	var r sinkReader // like Settle, do not use the shared cache
	all, err := s.positions(ctx, &r, source.Number, partition, true)
	if err != nil {
		return err
	}
	low, _ := sink.Span(all, source.Partitions[partition].Start)
	return s.raise(ctx, &r, source, partition, low)
}

// raise raises the epochs of all shards. It sets the position of shards without a position to low,
// the lowest position of the others. It moves no shard.
func (s *Sink) raise(ctx context.Context, r *sinkReader, source catalog.Source, partition uint32, low sink.Position) error {
	_, err := s.apply(ctx, r, &sink.Batch{Source: source.Number, Partition: partition, From: low, Next: low}, true)
	return err
}

// Forget makes all shards drop the positions of a deleted source, and refuse new positions for it.
// So a reader that does not know of the deletion yet cannot apply any op. A shard that does not
// answer in time drops the positions later.
func (s *Sink) Forget(ctx context.Context, source uint64) {
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	spaces, shards := targetsOf(s.world.Keyspaces())
	if len(shards) == 0 {
		return // this node has no keyspaces yet
	}
	section := &dedup.SourceSection{PositionKey: dedup.PositionKey{Source: source}, Mode: dedup.SectionForget}
	s.send(ctx, &write{spaces: spaces, sections: slices.Repeat([]*dedup.SourceSection{section}, len(shards))})
}
