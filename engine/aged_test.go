package engine

import "testing"

// Least returns an id of the first segment's rows, although the range of that segment begins at 0.
func TestLeast(t *testing.T) {
	tab := newTable(t)
	want := func(what string, id uint64) {
		t.Helper()
		if got := tab.Least(); got != id {
			t.Errorf("%s: the least id is %d, want %d", what, got, id)
		}
	}
	want("no rows", 0)
	ops := make([]Op, 3*rowsMax)
	for i := range ops {
		ops[i] = Op{ID: 1_000_000 + uint64(len(ops)-i), Kind: OpAdd, Cells: []Cell{{0, 1}}}
	}
	if _, err := tab.Apply(ops, 0, nil, nil); err != nil {
		t.Fatal(err)
	}
	want("rows", 1_000_001)
	freeze(t, tab, &memCold{}, 1)
	want("the first rows are cold", 0)
	if _, err := tab.Apply(ops[len(ops)-5:len(ops)-4], 0, nil, nil); err != nil {
		t.Fatal(err)
	}
	want("one is written to", 1_000_005)
}

// After a segment with sealed rows was divided, the highest id of each part is that of its own
// rows.
func TestHighestOfDividedSealedRows(t *testing.T) {
	tab, ids := sealedTable(t, 25_000)
	for i := range uint64(3 * rowsMax) {
		add(t, tab, ids[i/3]+1+i%3, 1)
	}
	d := tab.dir.Load()
	if len(d.segs) < 5 {
		t.Fatalf("%d segments", len(d.segs))
	}
	for i := range d.segs {
		if s := d.segs[i].Load(); s.highest() > d.last(i) {
			t.Errorf("segment %d owns ids %d…%d and has one of %d", i, d.first(i), d.last(i), s.highest())
		}
	}
}
