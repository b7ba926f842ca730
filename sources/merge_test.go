package sources

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/source/sink"
)

// Deltas merge only if one op gives the counts that two ops would give.
func TestMergeCells(t *testing.T) {
	t.Parallel()
	cells := func(values ...int64) (cells []engine.Cell) {
		for column, v := range values {
			cells = append(cells, engine.Cell{Column: uint8(column), Value: v})
		}
		return cells
	}
	floored := append([]engine.Cell{{Column: engine.FloorMark}}, cells(-1)...)
	for name, test := range map[string]struct {
		kind  engine.OpKind
		first []engine.Cell
		then  []engine.Cell
		want  []engine.Cell // nil if they do not merge
	}{
		"one column":       {engine.OpAdd, cells(1), cells(2), cells(3)},
		"two columns":      {engine.OpAdd, cells(1, 7), cells(2, 5), cells(3, 12)},
		"another order":    {engine.OpAdd, cells(1, 7), []engine.Cell{{Column: 1, Value: 5}, {Column: 0, Value: 2}}, cells(3, 12)},
		"down":             {engine.OpAdd, cells(-1), cells(-2), cells(-3)},
		"up and down":      {engine.OpAdd, cells(1), cells(-2), nil},
		"nothing and down": {engine.OpAdd, cells(0), cells(-2), nil},
		"one of two":       {engine.OpAdd, cells(1, 1), cells(1, -1), nil},
		"more columns":     {engine.OpAdd, cells(1), cells(2, 5), nil},
		"another column":   {engine.OpAdd, cells(1), []engine.Cell{{Column: 1, Value: 1}}, nil},
		"the bound":        {engine.OpAdd, cells(mergedMax - 1), cells(1), cells(mergedMax)},
		"over the bound":   {engine.OpAdd, cells(mergedMax), cells(1), nil},
		"under the bound":  {engine.OpAdd, cells(-mergedMax), cells(-1), nil},
		"the highest":      {engine.OpAdd, cells(1), cells(math.MaxInt64), nil},
		"the lowest":       {engine.OpAdd, cells(math.MinInt64), cells(-1), nil},
		"a floor":          {engine.OpAdd, floored, cells(-1), nil},
		"floors":           {engine.OpAdd, slices.Clone(floored), floored, nil},
		"a value":          {engine.OpSet, cells(1), cells(1), nil},
	} {
		t.Run(name, func(t *testing.T) {
			op := engine.Op{Kind: test.kind, Cells: slices.Clone(test.first)}
			if merged := mergeCells(&op, test.then); merged != (test.want != nil) {
				t.Fatalf("merged %v: %v", merged, op.Cells)
			}
			if want := cmp.Or(len(test.want), len(test.first)); len(op.Cells) != want {
				t.Fatalf("%d cells, want %d", len(op.Cells), want)
			}
			for i := range test.want {
				if op.Cells[i] != test.want[i] {
					t.Errorf("%v, want %v", op.Cells, test.want)
				}
			}
		})
	}
}

// Merged ops give the same counts, and refuse the same messages, as one op for each message in
// order. A merged op may refuse more messages only if the count is near a bound of int64.
func TestMergeAgainstOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ks := &shard.Keyspace{Name: "posts", Kind: kinds.Counters, Columns: []string{"a", "b", "c"}, Shards: 1}
		floors := rapid.SampledFrom([]map[uint8]int64{nil, {0: 0}, {0: -5, 2: 3}}).Draw(t, "floors")
		delta := rapid.OneOf(
			rapid.Int64Range(-3, 3), rapid.Int64Range(0, 3), rapid.Int64Range(-mergedMax, mergedMax),
			rapid.SampledFrom([]int64{math.MaxInt64, math.MinInt64, math.MaxInt64 - 2, 1 << 62, -1 << 62}),
		)
		var ops []sink.Op
		for range rapid.IntRange(1, 40).Draw(t, "ops") {
			op := sink.Op{Keyspace: "posts", ID: rapid.Uint64Range(1, 2).Draw(t, "id"), Kind: rapid.SampledFrom([]sink.OpKind{sink.Add, sink.Add, sink.Add, sink.Set}).Draw(t, "kind")}
			columns := rapid.Permutation(ks.Columns).Draw(t, "columns")
			for _, column := range columns[:rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "cells")] {
				op.Cells = append(op.Cells, sink.Cell{Column: column, Value: delta.Draw(t, "delta")})
			}
			if op.HasFloor = op.Kind == sink.Add && rapid.IntRange(0, 5).Draw(t, "floored") == 0; op.HasFloor {
				op.Floor = rapid.Int64Range(-2, 2).Draw(t, "floor")
			}
			ops = append(ops, op)
		}
		merged, single := engine.New(), engine.New()
		defer merged.Close()
		defer single.Close()
		for id := range uint64(2) {
			start := engine.Op{ID: id + 1, Kind: engine.OpSet, Cells: []engine.Cell{{Column: 0, Value: delta.Draw(t, "start")}, {Column: 1, Value: delta.Draw(t, "start")}}}
			for _, table := range []*engine.Table{merged, single} {
				value(table.Apply([]engine.Op{start}, 0, nil, nil))(t)
			}
		}
		near := map[[2]uint64]bool{} // columns with a count near a bound of int64, and columns of the same ops
		var refused, refusedMerged []int
		w := &write{layout: &layout{spaces: []*shard.Keyspace{ks}, routes: []raftfsm.Route{ks.Route()}, index: [][]int{{0}}}, sections: make([]*dedup.SourceSection, 1)}
		m := newMerge(w, len(ops))
		for i := range ops {
			value(m.resolve(&ops[i]))(t)
			m.add(&ops[i], i)
			one := newMerge(&write{layout: w.layout}, 1)
			value(one.resolve(&ops[i]))(t)
			one.add(&ops[i], 0)
			if over := value(single.Apply(withFloors(one.w.ops, floors), 0, nil, nil))(t); len(over) > 0 {
				refused = append(refused, i)
			}
			touches := false
			var row [3]int64
			single.Get(ops[i].ID, row[:])
			for _, c := range ops[i].Cells {
				at := [2]uint64{ops[i].ID, uint64(ks.Column(c.Column))}
				const edge = math.MaxInt64 - mergedMax
				v := row[at[1]]
				near[at] = near[at] || v > edge || v < -edge
				touches = touches || near[at]
			}
			for _, c := range ops[i].Cells {
				near[[2]uint64{ops[i].ID, uint64(ks.Column(c.Column))}] = touches
			}
		}
		over := value(merged.Apply(withFloors(w.ops, floors), 0, nil, nil))(t)
		for _, p := range m.from {
			if slices.ContainsFunc(over, func(o engine.Overflow) bool { return o.Op == p.in }) {
				refusedMerged = append(refusedMerged, p.op)
			}
		}
		slices.Sort(refusedMerged)
		far := func(op int) bool {
			return slices.ContainsFunc(ops[op].Cells, func(c sink.Cell) bool { return near[[2]uint64{ops[op].ID, uint64(ks.Column(c.Column))}] })
		}
		if got, want := slices.DeleteFunc(refusedMerged, far), slices.DeleteFunc(refused, far); !slices.Equal(got, want) {
			t.Fatalf("merged refused %v, in order %v: %+v", got, want, ops)
		}
		for id := range uint64(2) {
			var got, want [3]int64
			merged.Get(id+1, got[:])
			single.Get(id+1, want[:])
			for c := range got {
				if !near[[2]uint64{id + 1, uint64(c)}] && got[c] != want[c] {
					t.Fatalf("row %d column %d is %d, in order %d: %+v", id+1, c, got[c], want[c], ops)
				}
			}
		}
	})
}

// withFloors returns ops with the floors of their columns, as a node adds them to a write.
func withFloors(ops []engine.Op, floors map[uint8]int64) (all []engine.Op) {
	for _, op := range ops {
		if op.Kind == engine.OpAdd {
			var cells []engine.Cell
			for i, c := range op.Cells {
				if floor, has := floors[c.Column]; has && (i == 0 || op.Cells[i-1].Column&engine.FloorMark == 0) {
					cells = append(cells, engine.Cell{Column: engine.FloorMark | c.Column, Value: floor})
				}
				cells = append(cells, c)
			}
			op.Cells = cells
		}
		all = append(all, op)
	}
	return all
}

// value returns v, and fails the test if err is not nil.
func value[T any](v T, err error) func(t rapid.TB) T {
	return func(t rapid.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
