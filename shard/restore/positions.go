package restore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// takesPositions reports whether the shard can have positions of sources.
func (r *restore) takesPositions() bool {
	return r.cfg.Kind == codec.KindCounters || r.cfg.Kind == codec.KindUnread
}

// closePositions has the shard refuse all sections of sources until openPositions: one
// that is applied between two rows of the restore would be in some rows and not in others.
// A restore that fails leaves the shard closed.
func (r *restore) closePositions() error {
	r.closed = true
	return r.setPositions(dedup.RestoredPositions{Closed: true})
}

// openPositions sets the positions to those of the snapshot. A source that the snapshot does
// not know, or whose partition was sought since, begins at its recorded start, and one that
// is deleted has none.
func (r *restore) openPositions() error {
	if !r.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, restoreReadTimeout)
	defer cancel()
	// A source that had begun here before the shard was closed is in the catalog by now.
	if err := r.cfg.CatchUp(ctx); err != nil {
		return fmt.Errorf("cannot read which sources there are: %w", err)
	}
	return r.setPositions(dedup.RestoredPositions{All: PositionsAfter(r.cfg.Catalog.View(), r.positions)})
}

// PositionsAfter returns the positions of a shard whose rows are those of a snapshot
// with these positions, ascending.
func PositionsAfter(view *catalog.View, snapshot []dedup.PositionRecord) (all []dedup.PositionRecord) {
	known := make(map[dedup.PositionKey]dedup.Checkpoint, len(snapshot))
	for _, p := range snapshot {
		known[p.PositionKey] = p.Checkpoint
	}
	for _, source := range view.Sources {
		for _, partition := range slices.Sorted(maps.Keys(source.Partitions)) {
			p, key := source.Partitions[partition], dedup.PositionKey{Source: source.Number, Partition: partition}
			at, there := known[key]
			if !there || at.Epoch < p.Since() || at.Epoch > p.Epoch {
				at = originOf(source, partition, known)
			}
			at.Epoch = p.Epoch
			all = append(all, dedup.PositionRecord{PositionKey: key, Checkpoint: at})
		}
	}
	slices.SortFunc(all, func(a, b dedup.PositionRecord) int { return a.Compare(b.PositionKey) })
	return all
}

// originOf returns the position that a partition of a source has in a shard whose snapshot has none for
// it: the one that the source's backup has, if the source was made from one and not sought since, or the
// recorded start.
func originOf(source catalog.Source, partition uint32, known map[dedup.PositionKey]dedup.Checkpoint) dedup.Checkpoint {
	p := source.Partitions[partition]
	at, there := known[dedup.PositionKey{Source: source.Origin, Partition: partition}]
	if there && source.Origin != 0 && p.Origin != 0 && p.Since() == 1 && at.Epoch >= p.Origin {
		return at
	}
	return dedup.Checkpoint{At: p.Start}
}

// setPositions writes the shard's positions, after all writes of the restore so far.
func (r *restore) setPositions(p dedup.RestoredPositions) error {
	r.seq++
	id := dedup.ByRestorePositions(r.seq, p)
	if err := r.repeat(func(deadline time.Time) error { return r.cfg.Node.WritePositions(id, deadline) }); err != nil {
		return fmt.Errorf("cannot set the positions of sources: %w", err)
	}
	return nil
}
