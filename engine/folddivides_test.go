package engine

import (
	"math/rand/v2"
	"testing"
)

// The test adds ids to cold segments, so few before each fold that no array gets full. Nevertheless
// no generation gets more rows than a segment in memory may have. Rows that are written while a
// fold splits their segment end up in the right segment.
func TestFoldsDivideColdSegments(t *testing.T) {
	tab, ids := filled(t, 30_000)
	want := model{}
	for _, id := range ids {
		want.apply(Op{ID: id, Kind: OpAdd, Cells: []Cell{{0, 1}}})
	}
	cold, r := &memCold{}, rand.New(rand.NewPCG(1, 2))
	freeze(t, tab, cold, 100)
	last := tab.dir.Load().last(0)
	write := func(rows int) {
		for i := range rows {
			op := Op{ID: r.Uint64N(last + 1), Kind: OpAdd, Cells: []Cell{{uint8(r.IntN(5)), r.Int64N(1 << 20)}}}
			if i%8 == 0 {
				op = Op{ID: ids[r.IntN(10_000)], Kind: OpDelete}
			}
			mustApply(t, tab, op)
			want.apply(op)
		}
	}
	for range 12 {
		write(4000)
		cold.writing = func() { write(100) }
		freeze(t, tab, cold, 100)
		cold.writing = nil
	}
	for i, g := range cold.made {
		if g.needed.Load() > 0 && g.Rows() > rowsMax {
			t.Errorf("generation %d has %d rows, more than the %d of a segment", i, g.Rows(), rowsMax)
		}
	}
	want.equalCold(t, tab)
	if needed, parts := cold.needed(), int(tab.coldParts.Load()); needed != parts {
		t.Errorf("%d generations are needed, by %d parts", needed, parts)
	}
}

// A generation that has grown too large is folded and split once it has as many changed rows as a
// full segment needs for a fold.
func TestLargeGenerationsAreDivided(t *testing.T) {
	cold, p := &memCold{}, &Page{Width: 1}
	for id := range uint64(40_000) {
		p.add(id<<20, []int64{1})
	}
	made, err := cold.Write([]*Page{p})
	if err != nil {
		t.Fatal(err)
	}
	tab, want := newTable(t), model{}
	if err := tab.LoadCold(&Part{Page: &Page{Width: 1}, Cold: made[0], First: 0, Last: p.IDs[len(p.IDs)-1]}); err != nil {
		t.Fatal(err)
	}
	digest := uint64(0)
	for i, id := range p.IDs {
		want.apply(Op{ID: id, Kind: OpSet, Cells: []Cell{{0, 1}}})
		digest += RowDigest(id, p.Row(i))
	}
	tab.Adopt(int64(len(p.IDs)), digest)
	for i := range rowsMax/foldShare + 1 {
		op := Op{ID: p.IDs[i*100], Kind: OpAdd, Cells: []Cell{{0, 1}}}
		mustApply(t, tab, op)
		want.apply(op)
	}
	if rows := freeze(t, tab, cold, 100); rows != len(p.IDs) {
		t.Errorf("%d rows were written anew, want %d", rows, len(p.IDs))
	}
	for i, g := range cold.made {
		if g.needed.Load() > 0 && g.Rows() > rowsMax {
			t.Errorf("generation %d has %d rows, more than the %d of a segment", i, g.Rows(), rowsMax)
		}
	}
	want.equalCold(t, tab)
}
