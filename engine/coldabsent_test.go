package engine

import "testing"

// Ops that leave an absent row unchanged take no memory, even if its neighbours are on disk. So a
// memory limit need not refuse such ops.
func TestOpsOnAbsentColdRowsTakeNoMemory(t *testing.T) {
	tab, ids := filled(t, 30_000)
	cold := &memCold{}
	freeze(t, tab, cold, 100)
	before := tab.Stats()
	var ops []Op
	for _, id := range ids[:10_000] {
		ops = append(ops,
			Op{ID: id + 1, Kind: OpDelete},
			Op{ID: id + 2, Kind: OpAdd, Cells: []Cell{{0, 0}}},
			Op{ID: id + 3, Kind: OpTake, Cells: []Cell{{0, 5}}},
			floored(id+4, 0, -1, 0))
	}
	rows := make([]int64, len(ops))
	refused, err := tab.Apply(ops, 1, rows, nil)
	if err != nil || len(refused) > 0 {
		t.Fatal(refused, err)
	}
	if after := tab.Stats(); after != before {
		t.Errorf("%+v, before %+v", after, before)
	}
	id, row := ids[0]+1, make([]int64, 1)
	mustApply(t, tab, Op{ID: id, Kind: OpAdd, Cells: []Cell{{0, 7}}})
	mustApply(t, tab, Op{ID: id, Kind: OpAdd, Cells: []Cell{{0, 7}}})
	if !tab.Get(id, row) || row[0] != 14 {
		t.Errorf("a row that came beside cold ones counts %d", row[0])
	}
}
