package admin

import (
	"slices"
	"testing"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/source/sink"
)

// A shard with the rows of a backup continues at the backup's positions, unless there was a seek
// since.
func TestPositionsAfterRestore(t *testing.T) {
	t.Parallel()
	view := &catalog.View{}
	start := sink.Position{Lo: 100}
	view.Sources = map[string]catalog.Source{
		"a": {Number: 1, Partitions: map[uint32]catalog.Partition{
			0: {Epoch: 5, Sought: 3, Start: start}, 1: {Epoch: 5, Sought: 3, Start: start}, 2: {Epoch: 5, Sought: 3, Start: start},
			3: {Epoch: 5, Start: start}, 4: {Epoch: 5, Sought: 3, Start: start}, 5: {Epoch: 5, Sought: 3, Start: start},
		}},
	}
	record := func(source uint64, partition, epoch uint32, at uint64) dedup.PositionRecord {
		checkpoint := dedup.Checkpoint{Epoch: epoch, At: sink.Position{Lo: at}}
		if at != start.Lo { // a recorded start has no mark
			checkpoint.Mark = sink.Mark{Position: sink.Position{Lo: at - 1}, Sum: 9}
		}
		return dedup.PositionRecord{PositionKey: dedup.PositionKey{Source: source, Partition: partition}, Checkpoint: checkpoint}
	}
	got := PositionsAfter(view, []dedup.PositionRecord{
		record(1, 0, 5, 7), record(1, 1, 3, 7), record(1, 2, 2, 7), record(1, 3, 4, 7), record(1, 4, 6, 7), record(2, 0, 5, 7),
	})
	want := []dedup.PositionRecord{
		record(1, 0, 5, 7), record(1, 1, 5, 7), // the source was paused since the backup
		record(1, 2, 5, 100), record(1, 3, 5, 100), // an operator seeked since the backup
		record(1, 4, 5, 100), // the snapshot has a later epoch than the catalog
		record(1, 5, 5, 100), // the partition began since the backup
	}
	if !slices.Equal(got, want) {
		t.Errorf("positions %v, want %v", got, want)
	}

	// The source was created from the backup of another cluster, where its number was 9.
	view.Sources = map[string]catalog.Source{
		"a": {Number: 1, Origin: 9, Partitions: map[uint32]catalog.Partition{
			0: {Epoch: 1, Origin: 3, Start: start}, 1: {Epoch: 4, Sought: 1, Origin: 3, Start: start}, 2: {Epoch: 1, Origin: 3, Start: start},
			3: {Epoch: 2, Origin: 3, Start: start}, 4: {Epoch: 1, Start: start}, 5: {Epoch: 2, Sought: 1, Origin: 3, Start: start},
		}},
	}
	got = PositionsAfter(view, []dedup.PositionRecord{
		record(1, 5, 2, 8), record(9, 0, 7, 7), record(9, 1, 3, 7), record(9, 2, 2, 7), record(9, 3, 7, 7), record(9, 4, 7, 7), record(9, 5, 7, 7),
	})
	want = []dedup.PositionRecord{
		record(1, 0, 1, 7), record(1, 1, 4, 7), // the source was paused since the backup
		record(1, 2, 1, 100), // an operator seeked between the copies of the shard and of the sources
		record(1, 3, 2, 100), // an operator seeked in this cluster
		record(1, 4, 1, 100), // the partition began in this cluster
		record(1, 5, 2, 8),   // the position is from a backup of this cluster
	}
	if !slices.Equal(got, want) {
		t.Errorf("positions of another cluster's backup %v, want %v", got, want)
	}
}

// Snapshots at the same positions are merged, also if their marks differ. A mark is kept if all that there are agree.
func TestMergedPositions(t *testing.T) {
	t.Parallel()
	view := &catalog.View{Sources: map[string]catalog.Source{
		"a": {Number: 1, Partitions: map[uint32]catalog.Partition{0: {Epoch: 1}, 1: {Epoch: 1}}},
	}}
	type at struct{ at, mark uint64 } // mark is 0 for none
	of := func(partitions ...at) (all []dedup.PositionRecord) {
		for i, p := range partitions {
			c := dedup.Checkpoint{Epoch: 1, At: sink.Position{Lo: p.at}}
			if p.mark > 0 {
				c.Mark = sink.Mark{Position: sink.Position{Lo: p.mark}, Sum: 9}
			}
			all = append(all, dedup.PositionRecord{PositionKey: dedup.PositionKey{Source: 1, Partition: uint32(i)}, Checkpoint: c})
		}
		return all
	}
	for name, c := range map[string]struct {
		snapshots [][]dedup.PositionRecord
		want      []dedup.PositionRecord // nil if they cannot be merged
	}{
		"one":                   {[][]dedup.PositionRecord{of(at{7, 6}, at{8, 0})}, of(at{7, 6}, at{8, 0})},
		"the same":              {[][]dedup.PositionRecord{of(at{7, 6}, at{8, 7}), of(at{7, 6}, at{8, 7})}, of(at{7, 6}, at{8, 7})},
		"some have no mark":     {[][]dedup.PositionRecord{of(at{7, 0}, at{8, 7}), of(at{7, 6}, at{8, 0}), of(at{7, 0}, at{8, 7})}, of(at{7, 6}, at{8, 7})},
		"other marks":           {[][]dedup.PositionRecord{of(at{7, 6}, at{8, 7}), of(at{7, 5}, at{8, 7})}, of(at{7, 0}, at{8, 7})},
		"other marks, then one": {[][]dedup.PositionRecord{of(at{7, 6}, at{8, 7}), of(at{7, 5}, at{8, 7}), of(at{7, 6}, at{8, 7})}, of(at{7, 0}, at{8, 7})},
		"other positions":       {[][]dedup.PositionRecord{of(at{7, 6}, at{8, 7}), of(at{7, 6}, at{9, 7})}, nil},
		"a position is missing": {[][]dedup.PositionRecord{of(at{7, 6}, at{8, 7}), of(at{7, 6})}, nil},
	} {
		got, err := mergePositions(view, c.snapshots)
		if (err == nil) != (c.want != nil) || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
}
