package engine

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The test adds ids of every shape, enough to fill several segments. Each id has a different row.
func TestEveryShapeOfIDs(t *testing.T) {
	t.Parallel()
	rows := 3*rowsMax + 500 // enough for several segments
	if testing.Short() {
		rows = 5000 // the short tests run under the race detector, which finds nothing in one goroutine
	}
	for name, shape := range idShapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, 2))
			tab, m := newTable(t), model{}
			for i := range rows {
				op := Op{ID: shape(r, i), Kind: OpAdd, Cells: []Cell{{0, int64(i%60000) + 1}, {3, 2}}}
				m.apply(op)
				tab.Apply([]Op{op}, 0, nil, nil)
			}
			m.equal(t, tab)
			for _, id := range m.ids() {
				for _, absent := range []uint64{id + 1, id - 1, id ^ 1<<33} {
					var row [4]int64
					if tab.Get(absent, row[:]); !slices.Equal(row[:], m.row(absent)[:4]) {
						t.Fatalf("id %d reads %v, want %v", absent, row, m.row(absent)[:4])
					}
				}
			}
		})
	}
}

// The test applies random ops, alone and in batches, to few and to many ids, and checks the result
// of each op. Counts enter and leave overflow, and rows widen.
func TestAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		shape := idShapes[rapid.SampledFrom([]string{"dense in order", "weibo nearly ordered", "any 64 bits", "10 to 19 digits", "one field of bits"}).Draw(rt, "shape")]
		ids := make([]uint64, rapid.IntRange(1, 9000).Draw(rt, "ids"))
		for i := range ids {
			ids[i] = shape(r, i)
		}
		columns := rapid.SampledFrom([]int{1, 3, 4, 5, ColumnsMax}).Draw(rt, "columns")
		tab, m := newTableOf(testSecret, allIDs), model{}
		for range rapid.IntRange(1, 30).Draw(rt, "batches") {
			applyBatch(rt, r, tab, m, ids, columns)
		}
		if err := tab.Check(); err != nil {
			rt.Fatal(err)
		}
		for _, id := range ids {
			row := make([]int64, columns)
			if tab.Get(id, row); !slices.Equal(row, m.row(id)[:columns]) {
				rt.Fatalf("id %d: %v, want %v", id, row, m.row(id)[:columns])
			}
		}
	})
}

func applyBatch(rt *rapid.T, r *rand.Rand, tab *Table, m model, ids []uint64, columns int) {
	ops := make([]Op, 1+r.IntN(1000))
	for i := range ops {
		ops[i] = Op{ID: ids[r.IntN(len(ids))], Kind: OpKind(1 + r.IntN(3))}
		if i%3 != 0 {
			ops[i].Kind = OpAdd
		}
		for n := r.IntN(4); n >= 0 && ops[i].Kind != OpDelete; n-- {
			ops[i].Cells = append(ops[i].Cells, Cell{uint8(r.IntN(columns)), countOf(r)})
		}
	}
	rows := make([]int64, len(ops)*columns)
	overflows, _ := tab.Apply(ops, columns, rows, nil)
	for i, op := range ops {
		refused := len(overflows) > 0 && overflows[0].Op == i
		if refused {
			overflows = overflows[1:]
		}
		if m.apply(op) == refused {
			rt.Fatalf("op %d %+v: refused %v", i, op, refused)
		}
		if got := rows[i*columns : (i+1)*columns]; !slices.Equal(got, m.row(op.ID)[:columns]) {
			rt.Fatalf("op %d %+v answers %v, want %v", i, op, got, m.row(op.ID)[:columns])
		}
	}
}

// A count crosses the bounds of 16 bits and of int64 in both directions.
func TestOverflowBothWays(t *testing.T) {
	tab, m := newTable(t), model{}
	steps := []int64{65534, 1, 1, -2, -65534, -1, 1, math.MaxInt64, 1, -math.MaxInt64, math.MinInt64, -1}
	for column := range uint8(5) {
		for i, v := range steps {
			op := Op{ID: 7, Kind: OpAdd, Cells: []Cell{{column, v}}}
			refused, _ := tab.Apply([]Op{op}, 0, nil, nil)
			if ok := m.apply(op); ok != (refused == nil) {
				t.Fatalf("column %d step %d: refused %v, want applied %v", column, i, refused, ok)
			}
			var row [ColumnsMax]int64
			if tab.Get(7, row[:]); !slices.Equal(row[:], m.row(7)) {
				t.Fatalf("column %d step %d: %v, want %v", column, i, row, m.row(7))
			}
		}
	}
	if over := tab.dir.Load().segs[0].Load().over.Load(); over.used != 5 {
		t.Errorf("%d counts in overflow, want the five of MinInt64", over.used)
	}
	tab.Apply([]Op{{ID: 7, Kind: OpDelete}}, 0, nil, nil)
	if over := tab.dir.Load().segs[0].Load().over.Load(); over.used != 0 {
		t.Errorf("%d counts in overflow after the delete", over.used)
	}
}

// If an op overflows in its second cell, its first cell has no effect either.
func TestRefusedOpChangesNothing(t *testing.T) {
	tab := newTable(t)
	tab.Apply([]Op{{ID: 1, Kind: OpSet, Cells: []Cell{{0, 5}, {1, math.MaxInt64}}}}, 0, nil, nil)
	before := tab.Digest()
	rows := make([]int64, 2)
	refused, _ := tab.Apply([]Op{{ID: 1, Kind: OpAdd, Cells: []Cell{{0, 1}, {1, 1}}}}, 2, rows, nil)
	if want := []Overflow{{Op: 0, Column: 1}}; !slices.Equal(refused, want) {
		t.Errorf("refused %v, want %v", refused, want)
	}
	if rows[0] != 5 || rows[1] != math.MaxInt64 || tab.Digest() != before {
		t.Errorf("row %v, digest moved %v", rows, tab.Digest() != before)
	}
}

// A snapshot keeps its contents while rows are changed, added and deleted. A table that is loaded
// from the snapshot equals the captured one.
func TestSnapshotIsOfItsMoment(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	tab, m := newTable(t), model{}
	change := func(n int) {
		for range n {
			op := Op{ID: r.Uint64N(30000) << 20, Kind: OpAdd, Cells: []Cell{{uint8(r.IntN(6)), countOf(r)}}}
			if r.IntN(5) == 0 {
				op = Op{ID: op.ID, Kind: OpDelete}
			}
			m.apply(op)
			tab.Apply([]Op{op}, 0, nil, nil)
		}
	}
	change(40000)
	for round := range 4 {
		want := m.ids()
		rows := map[uint64][]int64{}
		for _, id := range want {
			rows[id] = m[id]
		}
		older := tab.Snapshot()
		snap := tab.Snapshot()
		older.Close()
		change(20000)
		restored, n := newTable(t), 0
		err := snap.Pages(func(p *Page) error {
			for i, id := range p.IDs {
				if id != want[n] || !slices.Equal(p.Row(i), rows[id][:p.Width]) {
					return fmt.Errorf("round %d row %d: id %d %v, want %d %v", round, n, id, p.Row(i), want[n], rows[want[n]])
				}
				n++
			}
			return restored.Load(p)
		})
		if err != nil || n != len(want) {
			t.Fatalf("%d rows of %d: %v", n, len(want), err)
		}
		if restored.Digest() != snap.Digest() || int64(restored.Stats().Rows) != snap.Rows() {
			t.Fatalf("digest %x, want %x", restored.Digest(), snap.Digest())
		}
		snap.Close()
		snap.Close()
		model.equal(rows, t, restored)
	}
	m.equal(t, tab)
	if len(tab.mu.captured) != 0 {
		t.Errorf("%d snapshots still open", len(tab.mu.captured))
	}
}

func TestPagesStopsAtTheFirstError(t *testing.T) {
	tab := newTable(t)
	tab.Apply([]Op{{ID: 1, Kind: OpSet, Cells: []Cell{{0, 1}}}}, 0, nil, nil)
	stop := errors.New("stop")
	snap := tab.Snapshot()
	defer snap.Close()
	if err := snap.Pages(func(*Page) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

func TestLoadWantsRisingIDs(t *testing.T) {
	tab := newTable(t)
	if err := tab.Load(&Page{IDs: []uint64{2, 2}, Width: 1, Counts: []int64{1, 1}}); err == nil {
		t.Error("an id twice was taken")
	}
	if err := tab.Load(&Page{IDs: []uint64{1}, Width: 1, Counts: []int64{1}}); err == nil {
		t.Error("a smaller id was taken")
	}
}
