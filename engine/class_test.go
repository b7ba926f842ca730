package engine

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// place is one to one on the ids of a class, idAt inverts it, and no id of the class is outside of
// a wide window.
func TestPlacesOfAClass(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		class := ClassOf(rapid.Uint64Range(1, 1<<16-1).Draw(rt, "stride"), rapid.Uint64().Draw(rt, "residue"))
		buckets := rapid.SampledFrom([]int{8, 16, 64, 128, 2048, 4096}).Draw(rt, "buckets")
		base := class.floor(rapid.Uint64().Draw(rt, "base"))
		salt := rapid.Uint64().Draw(rt, "salt")
		narrow := newGeometry(buckets, false, base, class, salt)
		packed := geometryOf(rapid.IntRange(13, 64).Draw(rt, "bits"), buckets, base, class.Stride, salt)
		wide := newGeometry(buckets, true, 0, class, salt)
		for range 200 {
			id := class.floor(rapid.Uint64().Draw(rt, "id") >> rapid.IntRange(0, 63).Draw(rt, "shift"))
			near := class.floor(base + id)
			if !wide.covers(id) {
				rt.Fatalf("the wide window %d+%d does not cover %d", wide.base, wide.span, id)
			}
			for _, g := range []geometry{narrow, packed, wide} {
				inv := g.inverse()
				for _, id := range []uint64{id, near, base, class.floor(g.base + g.span)} {
					if !g.covers(id) {
						continue
					}
					p := g.place(id, uint64(buckets))
					first, second := g.idAt(p.first, p.tag, uint64(buckets), inv), g.idAt(p.second, p.tag|tagSecond, uint64(buckets), inv)
					if p.first >= uint64(buckets) || first != id || second != id || !g.wide && p.tag>>tagShift >= 1<<narrowRemainderBits && g == narrow {
						rt.Fatalf("%+v: id %d has place %+v, which is that of %d and %d", g, id, p, first, second)
					}
				}
			}
		}
	})
}

// A table of a class behaves like any other: its ids stay as they are, also those of sealed rows.
// Other ids read as zeros.
func TestTableOfAClass(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		class := ClassOf(rapid.SampledFrom([]uint64{2, 3, 7, 12, 81, 65535}).Draw(rt, "stride"), rapid.Uint64().Draw(rt, "residue"))
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		names := []string{"dense in order", "weibo nearly ordered", "any 64 bits", "10 to 19 digits", "both ends"}
		shape := idShapes[rapid.SampledFrom(names).Draw(rt, "shape")]
		ids := make([]uint64, rapid.IntRange(1, 9000).Draw(rt, "ids"))
		for i := range ids {
			ids[i] = class.floor(shape(r, i))
		}
		tab, m := newTableOf(testSecret, class), model{}
		for range rapid.IntRange(1, 20).Draw(rt, "batches") {
			applyBatch(rt, r, tab, m, ids, 5)
			sealAll(tab)
		}
		if err := tab.Check(); err != nil {
			rt.Fatal(err)
		}
		m.equal(rt, tab)
		row, rows := []int64{1}, []int64{1}
		for _, id := range ids[:min(len(ids), 100)] {
			other := id + 1
			if class.Has(other) { // id + 1 is 0
				continue
			}
			if cold := tab.GetMany([]uint64{other}, 1, rows, nil); !tab.Get(other, row) || len(cold) > 0 || row[0] != 0 || rows[0] != 0 {
				rt.Fatalf("id %d of another class reads %d, %d", other, row[0], rows[0])
			}
			if err := tab.ReadCold(context.Background(), other, row); err != nil || tab.Has(other) {
				rt.Fatalf("id %d of another class: %v", other, err)
			}
		}
	})
}

// An id of another class, a power of two above an id of the class, would have the place of its row.
func TestOtherClassesHaveNoRows(t *testing.T) {
	for _, class := range []Class{ClassOf(3, 0), ClassOf(6, 3)} {
		tab := newTableOf(testSecret, class)
		tab.Apply([]Op{{ID: 3, Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil)
		for n := range 64 {
			row := []int64{1}
			if other := uint64(3) + 1<<n; !tab.Get(other, row) || row[0] != 0 {
				t.Errorf("id 3 + 2^%d reads %d", n, row[0])
			}
		}
	}
}

// The ids of a table are numbers times 81, in a range that needs wide tags without the division.
func TestClassSavesMemory(t *testing.T) {
	t.Parallel()
	const stride = 81
	size := func(class Class, seal bool) float64 {
		tab := newTableOf(testSecret, class)
		r := rand.New(rand.NewPCG(1, 1))
		ids := make([]uint64, 0, 60_000)
		for i := range uint64(cap(ids)) {
			ids = append(ids, (i<<25|r.Uint64N(1<<25))*stride)
		}
		ids = slices.Compact(ids)
		for _, id := range ids {
			tab.Apply([]Op{{ID: id, Kind: OpAdd, Cells: []Cell{{0, 1 + r.Int64N(200)}}}}, 0, nil, nil)
		}
		for range 3 {
			if seal {
				sealAll(tab)
			}
		}
		if err := tab.Check(); err != nil {
			t.Fatal(err)
		}
		st := tab.Stats()
		return float64(st.Bytes) / float64(st.Rows)
	}
	with, without := size(ClassOf(stride, 0), false), size(allIDs, false)
	if with > 15.2 || without < 16.2 {
		t.Errorf("%.1f B a row with a class, %.1f without", with, without)
	}
	t.Logf("%.1f B a row with a class, %.1f without; sealed %.2f and %.2f", with, without, size(ClassOf(stride, 0), true), size(allIDs, true))
}

// An op on an id of another class would have the place of another row.
func TestApplyRefusesOtherClasses(t *testing.T) {
	tab := newTableOf(testSecret, ClassOf(3, 1))
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
		if err := tab.Check(); err != nil || tab.Stats().Rows != 0 {
			t.Error(tab.Stats().Rows, err)
		}
	}()
	tab.Apply([]Op{{ID: 1, Kind: OpAdd, Cells: []Cell{{0, 1}}}, {ID: 2, Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil)
}

// An op that changes nothing, as those of a refused section, finds no row of another class, and changes no row.
// Rows are in the table or in its parts, and packed or not.
func TestVoidOpsOnOtherClasses(t *testing.T) {
	t.Parallel()
	for _, parted := range []bool{false, true} {
		class := ClassOf(3, 1)
		tab := newTableOf(testSecret, class)
		fill := make([]Op, 3*rowsMax)
		for i := range fill {
			fill[i] = Op{ID: uint64(i)*3 + 1, Kind: OpAdd, Cells: []Cell{{0, 1 + int64(i%99)}}}
		}
		tab.Apply(fill, 0, nil, nil)
		sealAll(tab)
		sealAll(tab)
		if parted {
			if _, err := begunParting(t, tab, byResidue{class, 2}).Step(); err != nil {
				t.Fatal(err)
			}
		}
		rows, digest := tab.Stats().Rows, tab.Digest()
		r := rand.New(rand.NewPCG(1, 1))
		ops, got := make([]Op, 40_000), make([]int64, 40_000)
		for i := range ops {
			id := r.Uint64N(uint64(len(fill)) * 3)
			if i == 0 {
				id = 1<<64 - 1
			}
			ops[i] = Op{ID: id, Kind: []OpKind{OpAdd, OpSet, OpTake}[i%3]}
		}
		for _, some := range [][]Op{ops[:1], ops[1:]} {
			if _, err := tab.Apply(some, 1, got[len(ops)-len(some):][:len(some)], nil); err != nil {
				t.Fatal(err)
			}
		}
		for i := range ops {
			if !class.Has(ops[i].ID) && got[i] != 0 {
				t.Fatalf("parted %t: id %d reads %d", parted, ops[i].ID, got[i])
			}
		}
		if err := tab.Check(); err != nil || tab.Stats().Rows != rows || tab.Digest() != digest {
			t.Fatalf("parted %t: %d rows, want %d, %v", parted, tab.Stats().Rows, rows, err)
		}
	}
}

// A page with an id of another class is not loaded.
func TestLoadRefusesOtherClasses(t *testing.T) {
	t.Parallel()
	for _, rows := range []int{2, appendRowsMin} {
		page := &Page{Width: 1}
		for i := range rows {
			page.add(uint64(i)*3+1, []int64{1})
		}
		page.IDs[rows-1]++
		for _, load := range []func(*Table) error{
			func(tab *Table) error { return tab.Load(page) },
			func(tab *Table) error { return tab.LoadSealed(page, new(Sealer)) },
		} {
			tab := newTableOf(testSecret, ClassOf(3, 1))
			if err := load(tab); err == nil || tab.Stats().Rows != 0 {
				t.Errorf("%d rows: %v, %d loaded", rows, err, tab.Stats().Rows)
			}
		}
	}
}
