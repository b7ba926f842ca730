package engine

import "testing"

// words returns the number of words per row of each segment of a table.
func words(tab *Table) (words []int) {
	d := tab.dir.Load()
	for i := range d.segs {
		words = append(words, d.segs[i].Load().words())
	}
	return words
}

// A wide cell makes all rows of its segment wide. Once the cell is gone, the rows become narrow again when
// the segment shrinks, is split, or returns from disk.
func TestWideCellsThatAreGoneTakeNoMemory(t *testing.T) {
	wide := func(id uint64, v int64) Op {
		return Op{ID: id, Kind: OpSet, Cells: []Cell{{ColumnsMax - 1, v}, {0, 1}}}
	}
	widen := func(t *testing.T, tab *Table, ids []uint64) {
		t.Helper()
		mustApply(t, tab, wide(ids[0], 1))
		if most := words(tab)[0]; most != ColumnsMax/wordColumns {
			t.Fatalf("%d words", most)
		}
		mustApply(t, tab, wide(ids[0], 0))
	}
	narrow := func(t *testing.T, tab *Table) {
		t.Helper()
		for i, n := range words(tab) {
			if n != 1 {
				t.Errorf("segment %d has %d words", i, n)
			}
		}
		if err := tab.Check(); err != nil {
			t.Error(err)
		}
	}
	t.Run("shrinks", func(t *testing.T) {
		tab, ids := filled(t, 2000)
		widen(t, tab, ids)
		for _, id := range ids[:1900] {
			mustApply(t, tab, Op{ID: id, Kind: OpDelete})
		}
		narrow(t, tab)
	})
	t.Run("is divided", func(t *testing.T) {
		tab, ids := filled(t, 5000)
		widen(t, tab, ids)
		for id := ids[0] + 1; tab.Stats().Segments < 3; id += 2 { // the last of the 3 segments is for new ids
			mustApply(t, tab, Op{ID: id, Kind: OpSet, Cells: []Cell{{0, 1}}})
		}
		narrow(t, tab)
	})
	t.Run("is divided, and one half is wide", func(t *testing.T) {
		tab, ids := filled(t, 5000)
		mustApply(t, tab, wide(ids[len(ids)-1], 1))
		for id := ids[0] + 1; tab.Stats().Segments < 2; id += 2 {
			mustApply(t, tab, Op{ID: id, Kind: OpSet, Cells: []Cell{{0, 1}}})
		}
		if is := words(tab); is[0] != 1 || is[1] != ColumnsMax/wordColumns {
			t.Errorf("%v words", is)
		}
	})
}

// A copy of a segment has no overflow table if it needs none.
func TestOverflowThatIsGoneTakesNoMemory(t *testing.T) {
	tab, ids := filled(t, 5000)
	before := tab.Stats().Bytes
	set := func(v int64) {
		for _, id := range ids {
			mustApply(t, tab, Op{ID: id, Kind: OpSet, Cells: []Cell{{0, v}}})
		}
	}
	set(1 << 40)
	set(1)
	mustApply(t, tab, Op{ID: ids[0], Kind: OpSet, Cells: []Cell{{0, 1 << 40}}})
	tab.Snapshot().Close()
	snap := tab.Snapshot()
	defer snap.Close()
	mustApply(t, tab, Op{ID: ids[1], Kind: OpSet, Cells: []Cell{{0, 2}}})
	if after := tab.Stats().Bytes; after > before+1000 {
		t.Errorf("%d bytes, %d before the counts were large", after, before)
	}
}
