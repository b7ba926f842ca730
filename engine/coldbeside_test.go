package engine

import "testing"

// A row is added and deleted in a segment with cold rows, and then the segment is split. A later
// write of the row counts as a new row.
func TestRowsDeletedBesideColdOnes(t *testing.T) {
	tab, ids := filled(t, 25_000)
	d := tab.dir.Load()
	from, last := d.first(1), d.last(1)
	cold := &memCold{}
	tab.Watch(anyAge, true)
	idle, _ := tab.Watch(anyAge, true)
	if _, err := tab.Freeze(cold, idle[:1]); err != nil {
		t.Fatal(err)
	}
	apply := func(op Op) {
		t.Helper()
		if _, err := tab.Apply([]Op{op}, 0, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	add := func(id uint64) { apply(Op{ID: id, Kind: OpAdd, Cells: []Cell{{0, 1}}}) }
	remove := func(id uint64) { apply(Op{ID: id, Kind: OpDelete}) }
	for _, id := range ids {
		if id >= from && id <= last {
			remove(id)
		}
	}
	if d := tab.dir.Load(); d.last(0) != last {
		t.Fatalf("the first segment owns ids up to %d, not %d", d.last(0), last)
	}
	beside := from + (last-from)/8*7
	add(beside)
	remove(beside)
	for i := range uint64(rowsMax + 1) {
		add(from + 1 + 2*i)
	}
	if i := tab.dir.Load().find(beside); tab.dir.Load().segs[i].Load().cold != nil {
		t.Fatal("the rows were not divided where the cold ones end")
	}
	rows := tab.Stats().Rows
	add(beside)
	if n := tab.Stats().Rows; n != rows+1 {
		t.Errorf("%d rows after one more, were %d", n, rows)
	}
}
