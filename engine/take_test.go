package engine

import (
	"math"
	"testing"
)

func TestTake(t *testing.T) {
	for _, test := range []struct {
		name             string
		has, most        int64
		took, left, rows int64
	}{
		{"less than there are", 5, 3, 3, 2, 1},
		{"all", 5, 5, 5, 0, 0},
		{"more than there are", 5, 9, 5, 0, 0},
		{"of nothing", 0, 9, 0, 0, 0},
		{"none", 5, 0, 0, 5, 1},
		{"of less than nothing", -5, 3, 0, -5, 1},
		{"of many", 70_000, math.MaxInt64, 70_000, 0, 0},
		{"down from many", 70_000, 10_000, 10_000, 60_000, 1},
		{"of the most", math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 - 1, 1, 1},
		{"of the least", math.MinInt64, math.MaxInt64, 0, math.MinInt64, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			tab := newTable(t)
			rows := make([]int64, 6)
			overflows := tab.Apply([]Op{
				{ID: 7, Kind: OpSet, Cells: []Cell{{1, test.has}}},
				{ID: 7, Kind: OpTake, Cells: []Cell{{1, test.most}}},
				{ID: 7, Kind: OpAdd, Cells: []Cell{{1, 0}}},
			}, 2, rows, nil)
			if rows[1] != test.has || rows[3] != test.took || rows[5] != test.left || len(overflows) > 0 {
				t.Errorf("rows %v, refused %v", rows, overflows)
			}
			if got := int64(tab.Stats().Rows); got != test.rows {
				t.Errorf("%d rows are left", got)
			}
		})
	}
	t.Run("several columns, the fifth among them", func(t *testing.T) {
		tab := newTable(t)
		rows := make([]int64, 5)
		tab.Apply([]Op{{ID: 1, Kind: OpAdd, Cells: []Cell{{0, 4}, {4, 9}, {2, -1}}}}, 5, rows, nil)
		tab.Apply([]Op{{ID: 1, Kind: OpTake, Cells: []Cell{{0, 1}, {4, 10}, {2, 1}, {0, 1}}}}, 5, rows, nil)
		if rows[0] != 2 || rows[4] != 9 || rows[2] != 0 {
			t.Errorf("took %v", rows)
		}
		if tab.Get(1, rows); rows[0] != 2 || rows[4] != 0 || rows[2] != -1 {
			t.Errorf("left %v", rows)
		}
	})
}
