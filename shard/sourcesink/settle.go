package sourcesink

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

// ErrNotPaused is returned for a change that needs a paused source whose shards are all at one position.
var ErrNotPaused = errors.New("the source must be paused, at one position in all shards")

const forgetTimeout = 5 * time.Second

// Settle returns the position that all shards of a paused partition have and keep. It raises the shards'
// epochs to that of the pause, so that they apply no section of an earlier epoch. It also begins the shards
// that have no position. A reader that does not know of the pause yet may begin and move one of them first,
// so Settle reads all positions twice.
func (s *Sink) Settle(ctx context.Context, source catalog.Source, partition uint32) (sink.Position, error) {
	var r reader // not the shared cache: a session of this node must not use the epoch that this call reads
	low, err := s.even(ctx, &r, source, partition)
	if err != nil {
		return sink.Position{}, err
	}
	if err := s.raise(ctx, &r, source, partition, low); err != nil {
		return sink.Position{}, err
	}
	return s.even(ctx, &r, source, partition)
}

// even returns the position that all shards of a partition have. It ignores shards without a
// position.
func (s *Sink) even(ctx context.Context, r *reader, source catalog.Source, partition uint32) (sink.Position, error) {
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

// Fence raises the epochs of all shards to that of the pause, whatever their positions are. A
// reader that does not know of the pause yet then applies nothing. Fence also begins the shards
// without a position, because that reader could otherwise begin them.
func (s *Sink) Fence(ctx context.Context, source catalog.Source, partition uint32) error {
	var r reader // as in Settle
	all, err := s.positions(ctx, &r, source.Number, partition, true)
	if err != nil {
		return err
	}
	low, _ := sink.Span(all, source.Partitions[partition].Start)
	return s.raise(ctx, &r, source, partition, low)
}

// raise raises the epochs of all shards, and begins shards without a position at low, the lowest position. It
// moves no shard.
func (s *Sink) raise(ctx context.Context, r *reader, source catalog.Source, partition uint32, low sink.Position) error {
	_, err := s.apply(ctx, r, &sink.Batch{Source: source.Number, Partition: partition, From: low, Next: low}, true)
	return err
}

// Forget makes all shards drop the positions of a deleted source and refuse to begin it again. So a reader
// that does not know of the deletion yet counts nothing. The leader of a shard that does not answer in time
// drops the positions later.
func (s *Sink) Forget(ctx context.Context, source uint64) {
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	spaces, shards := targetsOf(s.world.Keyspaces())
	if len(shards) == 0 {
		return // this node does not know the keyspaces yet
	}
	section := &dedup.SourceSection{PositionKey: dedup.PositionKey{Source: source}, Mode: dedup.SectionForget}
	s.world.Send(ctx, &Write{Spaces: spaces, Sections: slices.Repeat([]*dedup.SourceSection{section}, len(shards))})
}
