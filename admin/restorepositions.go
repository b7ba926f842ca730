package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/source/sink"
)

// takesPositions reports whether the shard can have positions of sources. Such a shard stores its
// rows in tables.
func (r *restore) takesPositions() bool {
	return r.kind == codec.KindCounters || r.kind == codec.KindUnread
}

// closePositions makes the shard refuse all sections of sources until openPositions. Otherwise the
// restore could overwrite a part of a section's effects. A failed restore leaves the shard closed.
func (r *restore) closePositions() error {
	r.closed = true
	return r.setPositions(dedup.RestoredPositions{Closed: true})
}

// openPositions sets the shard's positions to the result of PositionsAfter. This also makes the
// shard accept sections of sources again.
func (r *restore) openPositions() error {
	if !r.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, restoreReadTimeout)
	defer cancel()
	// After CatchUp, the catalog has every source that began in this shard before the shard was
	// closed.
	if err := r.node.CatchUp(ctx); err != nil {
		return fmt.Errorf("cannot read which sources there are: %w", err)
	}
	view := r.node.Catalog()
	all, err := mergePositions(view, r.positions)
	if err != nil {
		return err
	}
	return r.setPositions(dedup.RestoredPositions{All: all})
}

// mergePositions returns the positions of a shard that was restored from several snapshots, which must have the same ones.
// Their marks may differ: a shard has none after a seek, for example. Each mark is a message below the position (source/DESIGN.md),
// so a mark that all snapshots with a mark have is kept. If two differ, the position gets none, as after a seek.
func mergePositions(view *catalog.View, snapshots [][]dedup.PositionRecord) ([]dedup.PositionRecord, error) {
	all := PositionsAfter(view, snapshots[0])
	differ := make([]bool, len(all)) // marks, by the index in all
	for _, snapshot := range snapshots[1:] {
		for i, p := range PositionsAfter(view, snapshot) { // has the partitions of all, in the same order
			to := &all[i]
			if p.At != to.At {
				return nil, fmt.Errorf("%w: sources were at different positions in the shards of the backup: restore it into a keyspace "+
					"with as many shards, created with as many, or delete the sources first, also from the backup", ErrBadSnapshot)
			}
			switch {
			case !p.Mark.Exists() || differ[i]:
			case !to.Mark.Exists():
				to.Mark = p.Mark
			case to.Mark != p.Mark:
				to.Mark, differ[i] = sink.Mark{}, true
			}
		}
	}
	return all, nil
}

// PositionsAfter returns the positions that a shard has after a restore, ascending. The parameter
// snapshot has the positions in the backup. If the snapshot lacks a partition, or an operator
// seeked in the partition since the backup, the partition begins at the position that originOf
// returns, usually its recorded start. Deleted sources get no positions.
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

// originOf returns the position at which a partition begins if the snapshot has no valid position
// of the partition. For a source from another cluster's backup, originOf returns the position in
// that backup, unless somebody seeked since. Otherwise it returns the recorded start.
func originOf(source catalog.Source, partition uint32, known map[dedup.PositionKey]dedup.Checkpoint) dedup.Checkpoint {
	p := source.Partitions[partition]
	at, there := known[dedup.PositionKey{Source: source.Origin, Partition: partition}]
	if there && source.Origin != 0 && p.Origin != 0 && p.Since() == 1 && at.Epoch >= p.Origin {
		return at
	}
	return dedup.Checkpoint{At: p.Start}
}

// setPositions writes the shard's positions. All earlier writes must have ended.
func (r *restore) setPositions(p dedup.RestoredPositions) error {
	r.seq++
	id := dedup.ByRestorePositions(r.seq, p)
	if err := r.repeat(func(deadline time.Time) error {
		w := &shard.Write{ID: id, Sections: make([]*dedup.RequestID, r.keyspace.Shards), Deadline: deadline}
		w.Sections[r.shard] = &id
		if err := r.node.Write(r.keyspace, w); err != nil {
			return err
		}
		return w.Answers[r.shard].Err
	}); err != nil {
		return fmt.Errorf("cannot set the positions of sources: %w", err)
	}
	return nil
}
