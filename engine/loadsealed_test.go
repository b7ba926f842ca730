package engine

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Rows that LoadSealed has loaded equal the given rows, whatever the sizes of the pages, and can be
// written to.
func TestLoadSealed(t *testing.T) {
	t.Parallel()
	for name, idOf := range idShapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name != "weibo nearly ordered" {
				t.Skip("another shape of ids is run in short")
			}
			r := rand.New(rand.NewPCG(uint64(len(name)), 31))
			all := pageOfShape(r, 3*rowsMax, 4, idOf, countOf)
			tab, plain, want := newTable(t), newTable(t), model{}
			with := new(Sealer)
			for from := 0; from < len(all.IDs); {
				n := min([]int{1, sealRowsMin - 1, sealRowsMin, rowsMax, rowsMax + 1, 2 * rowsMax}[r.IntN(6)], len(all.IDs)-from)
				p := &Page{all.IDs[from : from+n], 4, all.Counts[4*from : 4*(from+n)]}
				load := func() error { return tab.LoadSealed(p, with) }
				if r.IntN(4) == 0 { // young rows between
					load = func() error { return tab.Load(p) }
				}
				if err := load(); err != nil {
					t.Fatal(err)
				}
				if err := plain.Load(p); err != nil {
					t.Fatal(err)
				}
				from += n
			}
			for i, id := range all.IDs {
				want[id] = append(slices.Clone(all.Row(i)), make([]int64, ColumnsMax-4)...)
			}
			if tab.Digest() != plain.Digest() || len(all.IDs) > rowsMax && tab.Stats().SealedRows == 0 {
				t.Errorf("%+v, digest %016x, want %016x", tab.Stats(), tab.Digest(), plain.Digest())
			}
			ops := make([]Op, 2000)
			for i := range ops {
				ops[i] = randomOp(r, all.IDs[r.IntN(len(all.IDs))]+r.Uint64N(2))
			}
			checkApply(t, tab, plain, want, ops)
			want.equal(t, tab)
		})
	}
}

func TestLoadSealedRefuses(t *testing.T) {
	page := func(first uint64, change func(*Page)) *Page {
		p := &Page{Width: 1}
		for i := range uint64(sealRowsMin) {
			p.add(first+i, []int64{1})
		}
		change(p)
		return p
	}
	for name, p := range map[string]*Page{
		"before the last": page(5000, func(*Page) {}),
		"out of order":    page(9000, func(p *Page) { p.IDs[7] = p.IDs[6] }),
		"a row of zeros":  page(9000, func(p *Page) { p.Counts[3] = 0 }),
		"no width":        page(9000, func(p *Page) { p.Width = 0 }),
		"too few counts":  page(9000, func(p *Page) { p.Counts = p.Counts[1:] }),
	} {
		tab := newTable(t)
		if err := tab.LoadSealed(page(5000, func(*Page) {}), new(Sealer)); err != nil {
			t.Fatal(err)
		}
		before := tab.Stats()
		if err := tab.LoadSealed(p, new(Sealer)); err == nil || tab.Stats() != before {
			t.Errorf("%s: %v, %+v", name, err, tab.Stats())
		}
	}
	tab := newTable(t)
	last := page(1<<64-sealRowsMin, func(*Page) {})
	if err := tab.LoadSealed(last, new(Sealer)); err != nil {
		t.Fatal(err)
	}
	if err := tab.Load(&Page{IDs: []uint64{1<<64 - 1}, Width: 1, Counts: []int64{1}}); err == nil {
		t.Error("a row is loaded behind the last there may be")
	}
	add(t, tab, 1<<64-1, 1)
	var row [1]int64
	if tab.Get(1<<64-1, row[:]); row[0] != 2 {
		t.Errorf("the last row reads %v", row)
	}
}

// LoadSealed allocates hardly more than the packed rows.
func TestLoadSealedAllocatesLittle(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	p, with := pageOfShape(r, rowsMax, 4, idShapes["weibo in order"], smallCount), new(Sealer)
	if err := newTableOf(testSecret, allIDs).LoadSealed(p, with); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(20, func() {
		if err := newTableOf(testSecret, allIDs).LoadSealed(p, with); err != nil {
			t.Fatal(err)
		}
	}); n > 40 {
		t.Errorf("%v allocations", n)
	}
}
