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

// takesPositions reports whether the shard can have positions of sources. Its rows are in tables then.
func (r *restore) takesPositions() bool {
	return r.cfg.Kind == codec.KindCounters || r.cfg.Kind == codec.KindUnread
}

// closePositions makes the shard refuse all sections of sources until openPositions. A section that is
// applied between two writes of the restore would be in some rows and not in others. A restore that
// fails leaves the shard closed.
func (r *restore) closePositions() error {
	r.closed = true
	return r.setPositions(dedup.RestoredPositions{Closed: true})
}

// openPositions sets the positions to those of PositionsAfter, which opens the shard for sources.
func (r *restore) openPositions() error {
	if !r.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, restoreReadTimeout)
	defer cancel()
	// The catalog now has every source that began here before the shard was closed.
	if err := r.cfg.CatchUp(ctx); err != nil {
		return fmt.Errorf("cannot read which sources there are: %w", err)
	}
	return r.setPositions(dedup.RestoredPositions{All: PositionsAfter(r.cfg.Catalog.View(), r.positions)})
}

// PositionsAfter returns the positions of a shard, ascending, after a restore of a snapshot with these
// positions. A partition that the snapshot lacks, or that was sought since, begins at the position of
// originOf: mostly its recorded start. A deleted source has no positions.
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

// originOf returns the position of a partition that the snapshot lacks. If the source was made from a
// backup and not sought since, that is the position of the backup; otherwise the recorded start.
func originOf(source catalog.Source, partition uint32, known map[dedup.PositionKey]dedup.Checkpoint) dedup.Checkpoint {
	p := source.Partitions[partition]
	at, there := known[dedup.PositionKey{Source: source.Origin, Partition: partition}]
	if there && source.Origin != 0 && p.Origin != 0 && p.Since() == 1 && at.Epoch >= p.Origin {
		return at
	}
	return dedup.Checkpoint{At: p.Start}
}

// setPositions writes the shard's positions. All writes so far must have ended.
func (r *restore) setPositions(p dedup.RestoredPositions) error {
	r.seq++
	id := dedup.ByRestorePositions(r.seq, p)
	if err := r.repeat(func(deadline time.Time) error { return r.cfg.Node.WritePositions(id, deadline) }); err != nil {
		return fmt.Errorf("cannot set the positions of sources: %w", err)
	}
	return nil
}
