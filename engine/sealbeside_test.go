package engine

import (
	"math/rand/v2"
	"testing"
)

// captured captures segment i in the way that Seal does.
func captured(tab *Table, i int) *frozen {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	d := tab.dir.Load()
	s := d.segs[i].Load()
	s.watched |= toSeal
	return &frozen{first: d.first(i), last: d.last(i), s: s}
}

// Between the capture of a segment and its replacement, the test applies ops of any kind to the
// segment's rows and to rows near these. The sealed or melted segment contains the effects of the
// ops, or it does not replace the captured one.
func TestWritesWhileSealing(t *testing.T) {
	t.Parallel()
	for name, idOf := range idShapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name != "weibo nearly ordered" {
				t.Skip("another shape of ids is run in short")
			}
			writesWhileSealing(t, idOf, uint64(len(name)))
		})
	}
}

func writesWhileSealing(t *testing.T, idOf func(*rand.Rand, int) uint64, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 21))
	tab, plain, want := newTable(t), newTable(t), model{}
	known, steps := make([]uint64, 25_000), 25
	if testing.Short() {
		known, steps = known[:13_000], 20
	}
	ops := make([]Op, len(known))
	for i := range known {
		known[i] = idOf(r, i)
		ops[i] = Op{ID: known[i], Kind: OpAdd, Cells: []Cell{{uint8(i % 5), 1 + r.Int64N(300)}}}
	}
	checkApply(t, tab, plain, want, ops)
	done := map[string]int{}
	for step := range steps {
		d := tab.dir.Load()
		if len(d.segs) < 2 { // few ids
			continue
		}
		f := captured(tab, r.IntN(len(d.segs)-1))
		var c collector
		p, err := c.collectAll(f.s, 0, f.s.widest())
		if err != nil {
			t.Fatal(err)
		}
		var inside []uint64
		for _, id := range known {
			if id >= f.first && id <= f.last {
				inside = append(inside, id)
			}
		}
		ops := make([]Op, 0, 4000)
		all := r.IntN(12) == 0 // delete all rows of the segment
		if all {
			for _, id := range inside {
				ops = append(ops, Op{ID: id, Kind: OpDelete})
			}
		}
		for range []int{0, 3, 60, 1500, 3000}[r.IntN(5)] {
			id := known[r.IntN(len(known))]
			if len(inside) > 0 && r.IntN(8) > 0 {
				id = inside[r.IntN(len(inside))]
			}
			if r.IntN(6) == 0 {
				id += r.Uint64N(1 << r.IntN(22))
				known = append(known, id)
			}
			ops = append(ops, randomOp(r, id))
		}
		checkApply(t, tab, plain, want, ops)
		before := tab.dir.Load().segs[tab.dir.Load().find(f.first)].Load()
		what := "sealed"
		if f.s.cold.sealed() != nil && (r.IntN(2) == 0 || len(p.IDs) < sealRowsMin) {
			what = "melted"
			tab.melt(f)
		} else if len(p.IDs) >= sealRowsMin {
			tab.replaceSealed(f, new(Sealer).seal(p, &tab.salts))
		}
		if after := tab.dir.Load().segs[tab.dir.Load().find(f.first)].Load(); after == before {
			what = "not " + what
		}
		done[what]++
		if tab.Digest() != plain.Digest() || tab.Stats().Rows != plain.Stats().Rows {
			t.Fatalf("seed %d step %d: digest %016x of %d rows, never moved %016x of %d", seed, step,
				tab.Digest(), tab.Stats().Rows, plain.Digest(), plain.Stats().Rows)
		}
		if step%5 > 0 {
			continue
		}
		if err := tab.Check(); err != nil {
			t.Fatalf("seed %d step %d, %s: %v", seed, step, what, err)
		}
	}
	want.equal(t, tab)
	if len(done) > 0 && (done["sealed"] < 3 || done["melted"] < 2 || done["not melted"] == 0 && done["not sealed"] == 0) {
		t.Errorf("%v", done)
	}
}

// widerTable returns a sealed table and its ids. All rows with ids between from and last were
// deleted, so the table's first segment now owns that range too.
func widerTable(t *testing.T) (tab *Table, ids []uint64, from, last uint64) {
	t.Helper()
	tab, ids = sealedTable(t, 25_000)
	d := tab.dir.Load()
	from, last = d.first(1), d.last(1)
	for _, id := range ids {
		if id >= from && id <= last {
			mustApply(t, tab, Op{ID: id, Kind: OpDelete})
		}
	}
	sealAll(tab)
	if d := tab.dir.Load(); d.last(0) != last {
		t.Fatalf("the first segment owns ids up to %d, not %d", d.last(0), last)
	}
	return tab, ids, from, last
}

// A row is added and deleted in a segment with sealed rows, and then the segment is split. A later
// write of the row counts as a new row.
func TestRowsDeletedBesideSealedOnes(t *testing.T) {
	tab, _, from, last := widerTable(t)
	beside := from + (last-from)/8*7
	add(t, tab, beside, 1)
	mustApply(t, tab, Op{ID: beside, Kind: OpDelete})
	for i := range uint64(rowsMax + 1) {
		add(t, tab, from+1+2*i, 1)
	}
	if i := tab.dir.Load().find(beside); tab.dir.Load().segs[i].Load().cold != nil {
		t.Fatal("the rows were not divided where the sealed ones end")
	}
	rows := tab.Stats().Rows
	add(t, tab, beside, 1)
	if n := tab.Stats().Rows; n != rows+1 {
		t.Errorf("%d rows after one more, were %d", n, rows)
	}
}

func mustApply(t *testing.T, tab *Table, op Op) {
	t.Helper()
	if _, err := tab.Apply([]Op{op}, 0, nil, nil); err != nil {
		t.Fatal(err)
	}
}

// If a segment melts after all rows of its lower or upper half were deleted, no empty segment
// remains.
func TestMeltsWhileHalfIsDeleted(t *testing.T) {
	for name, upper := range map[string]bool{"lower half": false, "upper half": true} {
		t.Run(name, func(t *testing.T) {
			tab, ids := sealedTable(t, 25_000)
			for i := range uint64(rowsMax / 2) {
				add(t, tab, ids[i]+1, 1)
			}
			f := captured(tab, 0)
			var c collector
			p, err := c.collectAll(f.s, 0, f.s.widest())
			if err != nil {
				t.Fatal(err)
			}
			start := p.IDs[len(p.IDs)/2]
			for _, id := range p.IDs {
				if upper == (id >= start) {
					mustApply(t, tab, Op{ID: id, Kind: OpDelete})
				}
			}
			tab.melt(f)
			if err := tab.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without writes, Seal changes nothing and allocates nothing.
func TestSealAtRest(t *testing.T) {
	tab, ids := sealedTable(t, 25_000)
	add(t, tab, ids[3], 1) // too few writes to seal the segment again
	before := tab.Stats()
	n := testing.AllocsPerRun(2*restMax, func() {
		if n := sealAll(tab); n != 0 {
			t.Errorf("%d rows sealed", n)
		}
	})
	if after := tab.Stats(); n != 0 || after != before {
		t.Errorf("%v allocations, %+v, was %+v", n, after, before)
	}
}

// A segment that owns more ids than its sealed rows cover can also melt while the writer changes
// and deletes rows.
func TestSegmentsWiderThanTheirSealedRowsMelt(t *testing.T) {
	tab, ids, from, last := widerTable(t)
	for i := range uint64(rowsMax / 3) {
		add(t, tab, from+1+2*i, 1)
		add(t, tab, ids[i], 1)
	}
	f := captured(tab, 0)
	if f.last != last || f.s.cold.last >= from {
		t.Fatalf("the segment owns ids up to %d, its sealed rows are of those up to %d", f.last, f.s.cold.last)
	}
	for i := range uint64(100) {
		mustApply(t, tab, Op{ID: from + 1 + 2*i, Kind: OpDelete})
		mustApply(t, tab, Op{ID: ids[i+50], Kind: OpDelete})
	}
	func() { // drop the rows of zeros that hide no sealed row
		tab.mu.Lock()
		defer tab.unlock()
		tab.reshapeLocked(0, 1)
	}()
	add(t, tab, ids[7], 1)
	want, digest := tab.Stats().Rows, tab.Digest()
	if tab.melt(f); tab.Stats().SealedRows != 0 {
		t.Errorf("it has not melted: %+v", tab.Stats())
	}
	if err := tab.Check(); err != nil || tab.Stats().Rows != want || tab.Digest() != digest {
		t.Errorf("%v, %+v, had %d rows", err, tab.Stats(), want)
	}
	for i, want := range map[int]int64{7: 3, 8: 2, 55: 0, 149: 0, 150: 2} {
		var row [1]int64
		if tab.Get(ids[i], row[:]); row[0] != want {
			t.Errorf("row %d reads %d, want %d", i, row[0], want)
		}
	}
	if tab.Has(from+1) || !tab.Has(from+1+2*100) {
		t.Error("rows beside the sealed ones are there that were deleted, or are not")
	}
}

// Splits divide sealed rows into several parts, with other segments between them. Stats counts the
// rows once, until the last part is gone.
func TestStatsOfDividedSealedRows(t *testing.T) {
	tab, ids := sealedTable(t, 25_000)
	whole := tab.Stats().SealedRows
	for i := range uint64(3 * rowsMax) {
		add(t, tab, ids[i/3]+1+i%3, 1)
	}
	d := tab.dir.Load()
	if len(d.segs) < 5 {
		t.Fatalf("%d segments", len(d.segs))
	}
	checkStats(t, tab)
	if st := tab.Stats(); st.SealedRows != whole {
		t.Errorf("%d rows are sealed, were %d before the division", st.SealedRows, whole)
	}
	f := captured(tab, 1)
	var c collector
	p, err := c.collectAll(f.s, 0, f.s.widest())
	if err != nil {
		t.Fatal(err)
	}
	if !tab.replaceSealed(f, new(Sealer).seal(p, &tab.salts)) {
		t.Fatal("it was not sealed")
	}
	checkStats(t, tab)
	if st := tab.Stats(); st.SealedRows != whole+uint64(len(p.IDs)) {
		t.Errorf("%d rows are sealed, want %d and %d", st.SealedRows, whole, len(p.IDs))
	}
	next := reloaded(t, tab, anyAge)
	checkStats(t, next)
	for range 6 {
		sealAll(tab)
	}
	checkStats(t, tab)
}
