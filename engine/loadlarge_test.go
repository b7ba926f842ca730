package engine

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A table that loads large pages equals one to which the same rows were added one by one. It uses
// at most a quarter more memory, and can be written to.
func TestLoadLargePages(t *testing.T) {
	t.Parallel()
	for name, idOf := range idShapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name != "weibo nearly ordered" {
				t.Skip("another shape of ids is run in short")
			}
			r := rand.New(rand.NewPCG(uint64(len(name)), 32))
			all := pageOfShape(r, 5*rowsMax, 6, idOf, func(r *rand.Rand) int64 {
				if r.IntN(100) == 0 {
					return countOf(r)
				}
				return smallCount(r)
			})
			tab, plain, want := newTable(t), newTable(t), model{}
			for from := 0; from < len(all.IDs); {
				n := min([]int{1, appendRowsMin - 1, appendRowsMin, rowsMax, rowsMax + 1, 3 * rowsMax}[r.IntN(6)], len(all.IDs)-from)
				if err := tab.Load(all.slice(from, from+n)); err != nil {
					t.Fatal(err)
				}
				from += n
			}
			for i, id := range all.IDs {
				want[id] = append(slices.Clone(all.Row(i)), make([]int64, ColumnsMax-6)...)
				if err := plain.Load(all.slice(i, i+1)); err != nil {
					t.Fatal(err)
				}
			}
			if got, one := tab.Stats(), plain.Stats(); got.Rows != one.Rows || tab.Digest() != plain.Digest() || got.Bytes > one.Bytes*5/4 {
				t.Errorf("%+v, digest %016x, want %+v, %016x", got, tab.Digest(), one, plain.Digest())
			}
			if err := tab.Load(all.slice(0, appendRowsMin)); err == nil {
				t.Error("rows below others were loaded")
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
