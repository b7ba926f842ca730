package engine

import (
	"math"
	"slices"
	"testing"
)

// floored is an op that adds to one column with a floor.
func floored(id uint64, column uint8, delta, floor int64) Op {
	return Op{ID: id, Kind: OpAdd, Cells: []Cell{{FloorMark | column, floor}, {column, delta}}}
}

func TestFloor(t *testing.T) {
	for _, test := range []struct {
		name              string
		has, delta, floor int64
		left              int64
		added             []int64 // if the floor cut the delta short, the amount that was added
	}{
		{"far above it", 10, -3, 0, 7, nil},
		{"down to it", 3, -3, 0, 0, nil},
		{"through it", 2, -3, 0, 0, []int64{-2}},
		{"at it", 0, -1, 0, 0, []int64{0}},
		{"below it already", -5, -1, 0, -5, []int64{0}},
		{"up from below", -5, 2, 0, -3, nil},
		{"up", 5, 2, 0, 7, nil},
		{"nothing", -5, 0, 0, -5, nil},
		{"a floor below 0", -2, -5, -4, -4, []int64{-2}},
		{"a floor above the row of zeros", 0, -5, 3, 0, []int64{0}},
		{"a sum below int64", math.MinInt64 + 1, -5, math.MinInt64, math.MinInt64, []int64{-1}},
		{"the least delta", 70_000, math.MinInt64, 0, 0, []int64{-70_000}},
		{"the most above the least floor", math.MaxInt64, math.MinInt64, math.MinInt64, -1, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			tab := newTable(t)
			rows := make([]int64, 2)
			tab.Apply([]Op{{ID: 7, Kind: OpSet, Cells: []Cell{{1, test.has}}}}, 0, nil, nil)
			overflows, err := tab.Apply([]Op{floored(7, 1, test.delta, test.floor)}, 2, rows, nil)
			if err != nil || len(overflows) > 0 || rows[1] != test.left {
				t.Errorf("row %v, refused %v: %v", rows, overflows, err)
			}
			var added []int64
			for _, c := range tab.Cuts() {
				if c.Op != 0 || c.Column != 1 {
					t.Errorf("cut %+v", c)
				}
				added = append(added, c.Added)
			}
			if !slices.Equal(added, test.added) {
				t.Errorf("added %v, want %v", added, test.added)
			}
			if tab.Get(7, rows); rows[1] != test.left {
				t.Errorf("it holds %v", rows)
			}
		})
	}
}

// Cuts returns each op that a floor cut short, but no refused op and no op of an earlier Apply.
func TestCutsNameTheirOps(t *testing.T) {
	tab := newTable(t)
	refused := Op{ID: 3, Kind: OpAdd, Cells: []Cell{{FloorMark, 0}, {0, -1}, {1, math.MaxInt64}}}
	ops := make([]Op, 100)
	for i := range ops {
		ops[i] = Op{ID: 3, Kind: OpAdd, Cells: []Cell{{1, 1}}}
	}
	ops[40], ops[70], ops[71], ops[99] = floored(9, 5, -4, 0), refused, floored(3, 1, -1000, -7), floored(3, 1, -1, 0)
	overflows, err := tab.Apply(ops, 0, nil, nil)
	if want := []Overflow{{Op: 70, Column: 1}}; err != nil || !slices.Equal(overflows, want) {
		t.Fatalf("refused %v: %v", overflows, err)
	}
	if want := []Cut{{40, 5, 0}, {71, 1, -76}}; !slices.Equal(tab.Cuts(), want) {
		t.Fatalf("cuts %v, want %v", tab.Cuts(), want)
	}
	if tab.Apply(ops[:1], 0, nil, nil); len(tab.Cuts()) != 0 {
		t.Errorf("cuts of the Apply before: %v", tab.Cuts())
	}
}

// Refusal names the cell that the present row refuses. If the row has changed so that it refuses
// none, Refusal names a cell that some count refuses.
func TestRefusal(t *testing.T) {
	two := Op{Kind: OpAdd, Cells: []Cell{{1, 1}, {2, 1}}}
	floorAndUp := Op{Kind: OpAdd, Cells: []Cell{{FloorMark | 1, 0}, {1, -1}, {2, 1}}}
	for _, test := range []struct {
		name   string
		op     Op
		row    []int64
		column uint8
	}{
		{"the first", two, []int64{0, math.MaxInt64, 0}, 1},
		{"the second", two, []int64{0, 0, math.MaxInt64}, 2},
		{"neither now", two, []int64{0, 0, 0}, 1},
		{"no row", two, nil, 1},
		{"not the floored", floorAndUp, []int64{0, math.MinInt64, 0}, 2},
		{"down", Op{Kind: OpAdd, Cells: []Cell{{3, -1}}}, nil, 3},
		{"a floor that is new", floored(1, 1, -1, 0), []int64{0, math.MinInt64}, 1},
		{"a read before", Op{Kind: OpAdd, Cells: []Cell{{0, 0}, {63, 2}}}, nil, 63},
	} {
		if got := test.op.Refusal(test.row); got != (Overflow{Column: test.column}) {
			t.Errorf("%s: %+v, want column %d", test.name, got, test.column)
		}
	}
}
