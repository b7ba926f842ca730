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

// ErrNotPaused is returned for a change that takes a paused source whose shards have
// all got to the same position.
var ErrNotPaused = errors.New("the source must be paused, at one position in all shards")

// forgetTimeout bounds the wait of Forget.
const forgetTimeout = 5 * time.Second

// Settle returns the position of a partition of a paused source, which is that of all shards
// and stays. It raises the shards' epochs to that of the pause, so that no section of an earlier
// epoch counts any more, and begins the shards that have no position. A reader that has yet to
// learn of the pause may have begun and moved such a shard in between, so Settle reads all
// positions again.
func (s *Sink) Settle(ctx context.Context, source catalog.Source, partition uint32) (sink.Position, error) {
	low, err := s.even(ctx, source, partition)
	if err != nil {
		return sink.Position{}, err
	}
	if err := s.raise(ctx, source, partition, low); err != nil {
		return sink.Position{}, err
	}
	return s.even(ctx, source, partition)
}

// even returns the position that all shards of a partition have that have one.
func (s *Sink) even(ctx context.Context, source catalog.Source, partition uint32) (sink.Position, error) {
	all, err := s.positions(ctx, source.Number, partition, true)
	if err != nil {
		return sink.Position{}, err
	}
	low, high := sink.Span(all, source.Partitions[partition].Start)
	if low != high {
		return sink.Position{}, fmt.Errorf("%w: of partition %d they are at %v and %v", ErrNotPaused, partition, low, high)
	}
	return low, nil
}

// Fence raises the epochs of all shards to that of the pause of a source, wherever they are, so
// that a reader that has yet to learn of the pause applies nothing any more. It begins the shards
// that have no position: such a reader would begin them otherwise.
func (s *Sink) Fence(ctx context.Context, source catalog.Source, partition uint32) error {
	all, err := s.positions(ctx, source.Number, partition, true)
	if err != nil {
		return err
	}
	low, _ := sink.Span(all, source.Partitions[partition].Start)
	return s.raise(ctx, source, partition, low)
}

// raise raises the epochs of all shards, and begins those that have no position at low. None is
// below low, so that none moves.
func (s *Sink) raise(ctx context.Context, source catalog.Source, partition uint32, low sink.Position) error {
	_, err := s.apply(ctx, &sink.Batch{Source: source.Number, Partition: partition, From: low, Next: low}, true)
	return err
}

// Forget has all shards drop the positions of a deleted source, and begin none of it, so that
// a reader that has yet to learn of the deletion counts nothing. Its caller repeats it
// where it fails.
func (s *Sink) Forget(ctx context.Context, source uint64) {
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	spaces, shards := targetsOf(s.world.Keyspaces())
	if len(shards) == 0 {
		return // this node has yet to learn of the keyspaces
	}
	section := &dedup.SourceSection{PositionKey: dedup.PositionKey{Source: source}, Mode: dedup.SectionForget}
	s.world.Send(ctx, &Write{Spaces: spaces, Sections: slices.Repeat([]*dedup.SourceSection{section}, len(shards))})
}
