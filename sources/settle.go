package sources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
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
// first, so Settle reads all positions a second time. All answers are by one layout.
func (s *Sink) Settle(ctx context.Context, source catalog.Source, partition uint32) (at sink.Position, err error) {
	err = byOneLayout(ctx, s.world, func() error {
		var r sinkReader // do not use the shared cache, because a session of this node must not get the epoch that this call reads
		if at, err = s.even(ctx, &r, source, partition); err != nil {
			return err
		}
		if err = s.raise(ctx, &r, source, partition, at); err != nil {
			return err
		}
		before := r.routes
		if at, err = s.even(ctx, &r, source, partition); err == nil && !maps.EqualFunc(before, r.routes, raftfsm.Route.Equal) {
			err = errs.ErrOtherLayout
		}
		return err
	})
	if err != nil {
		return sink.Position{}, err
	}
	return at, nil
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
// otherwise begin them. All answers are by one layout.
func (s *Sink) Fence(ctx context.Context, source catalog.Source, partition uint32) error {
	return byOneLayout(ctx, s.world, func() error {
		var r sinkReader // like Settle, do not use the shared cache
		all, err := s.positions(ctx, &r, source.Number, partition, true)
		if err != nil {
			return err
		}
		low, _ := sink.Span(all, source.Partitions[partition].Start)
		return s.raise(ctx, &r, source, partition, low)
	})
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
	section := &dedup.SourceSection{PositionKey: dedup.PositionKey{Source: source}, Mode: dedup.SectionForget}
	_ = byOneLayout(ctx, s.world, func() error { // ignore the error: the leaders of the other shards make them forget the source
		l := s.layoutOf(s.world.Keyspaces())
		if len(l.shards) == 0 {
			return nil // this node has no keyspaces yet
		}
		w := &write{layout: l, sections: slices.Repeat([]*dedup.SourceSection{section}, len(l.shards))}
		s.send(ctx, w)
		for i := range w.answers {
			if err := w.answers[i].Err; errors.Is(err, errs.ErrOtherLayout) {
				return err
			}
		}
		return nil
	})
}
