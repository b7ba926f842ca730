package engine

import "testing"

// A reader may have loaded a directory just before several segments took the place of one, and look a row up only
// afterwards. It then finds all rows that were there before. The tests are such a reader.

// checkFound looks ids up in a directory that the table may have replaced meanwhile. Each has the count 1.
func (d *directory) checkFound(t *testing.T, ids []uint64) {
	t.Helper()
	for _, id := range ids {
		var row [1]int64
		s := d.segs[d.find(id)].Load()
		if !(s.covers(id) && s.readAt(s.place(id), row[:])) && !s.cold.read(id, row[:]) {
			continue // on disk
		}
		if row[0] != 1 {
			t.Fatalf("row %d has count %d", id, row[0])
		}
	}
}

// addOnes adds 1 to n rows, step apart.
func addOnes(t *testing.T, tab *Table, first, step, n uint64) (ids []uint64) {
	for i := range n {
		ids = append(ids, first+i*step)
		mustApply(t, tab, Op{ID: ids[i], Kind: OpAdd, Cells: []Cell{{0, 1}}})
	}
	return ids
}

func TestReadersBesideAFoldThatDivides(t *testing.T) {
	tab, disk := newTable(t), &memCold{}
	ids := addOnes(t, tab, 0, 2, 9900)
	tab.Cut(1 << 40)
	addOnes(t, tab, 1<<40, 1, 10)
	freeze(t, tab, disk, 1)
	ids = append(ids, addOnes(t, tab, 1, 2, 5000)...)
	d := tab.dir.Load()
	freeze(t, tab, disk, 1)
	if n := len(tab.dir.Load().segs); n != len(d.segs)+1 {
		t.Fatalf("%d segments, want one more than %d", n, len(d.segs))
	}
	d.checkFound(t, ids)
}

// A part of a table whose segments on disk were divided has the same number of rows on disk after a restart.
func TestSharesOfDividedSegmentsCount(t *testing.T) {
	tab, disk := newTable(t), &memCold{}
	addOnes(t, tab, 0, 4, 9900)
	tab.Cut(1 << 40)
	addOnes(t, tab, 1<<40, 1, 10)
	frozen := freeze(t, tab, disk, 100)
	addOnes(t, tab, 1, 2, 18_000)
	if len(tab.cold()) < 2 {
		t.Fatal("the segment on disk was not divided")
	}
	g := begunParting(t, tab, byHash{3})
	partAll(t, g)
	parts, err := Split(tab, g.by)
	if err != nil {
		t.Fatal(err)
	}
	all := 0
	for i, part := range parts {
		rows := part.Stats().ColdRows
		all += int(rows)
		if again := reloaded(t, part, nil).Stats().ColdRows; again != rows {
			t.Errorf("part %d has %d rows on disk, and after a restart %d", i, rows, again)
		}
	}
	if all != frozen {
		t.Errorf("the parts have %d rows on disk, want %d", all, frozen)
	}
}

func TestReadersBesideAStepThatDivides(t *testing.T) {
	tab := newTable(t)
	ids := addOnes(t, tab, 0, 1, 9000)
	for _, first := range []uint64{1 << 50, 1 << 60} {
		tab.Cut(first)
		addOnes(t, tab, first, 1, 9000)
	}
	g := begunParting(t, tab, byResidue{allIDs, 1})
	for divided, more := 0, true; more; {
		var err error
		part := tab.dir.Load().parted().tables[0]
		d := part.dir.Load()
		moved := min(len(ids), int(part.Stats().Rows))
		if more, err = g.Step(); err != nil {
			t.Fatal(err)
		}
		if d.checkFound(t, ids[:moved]); len(part.dir.Load().segs) > len(d.segs) {
			divided++
		}
		if !more && divided == 0 {
			t.Fatal("no step divided the last segment of the part")
		}
	}
}
