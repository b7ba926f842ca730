package engine

import "testing"

// When a segment is reshaped, a deleted row that hides no sealed row is dropped, even if an op on this
// row causes the reshaping. The row's id is then outside of the new, smaller window, where its place
// would be that of another row. So the op must insert the row.
func TestRowsBesideSealedOnesThatWiden(t *testing.T) {
	tab, ids, from, last := widerTable(t)
	inside := ids[3]
	beside := inside + 1<<narrowBits(bucketsMin)
	if beside < from || beside > last {
		t.Fatalf("id %d is not beside the sealed rows, in %d…%d", beside, from, last)
	}
	add(t, tab, inside, 4)
	add(t, tab, beside, 1)
	mustApply(t, tab, Op{ID: beside, Kind: OpDelete})
	mustApply(t, tab, Op{ID: beside, Kind: OpAdd, Cells: []Cell{{wordColumns, 7}}})
	for id, want := range map[uint64][wordColumns + 1]int64{inside: {5}, beside: {wordColumns: 7}} {
		var row [wordColumns + 1]int64
		if tab.Get(id, row[:]); row != want {
			t.Errorf("id %d reads %v, want %v", id, row, want)
		}
	}
}
