package engine

import "testing"

// A division left a segment's cold rows in several pieces, and all rows of one of them
// were deleted since. Warming that piece, whose range goes to a neighbour then, leaves
// the neighbour's cold rows alone.
func TestWarmBesideAPieceWithoutRows(t *testing.T) {
	const added = 4 // rows beside each one
	for name, piece := range map[string]int{"the first": 0, "the second": 1} {
		t.Run(name, func(t *testing.T) {
			tab, ids := filled(t, 25_000)
			cold := &memCold{}
			freeze(t, tab, cold, 1)
			end := tab.dir.Load().last(0)
			for _, id := range ids {
				if id <= end { // so many that the segment is divided
					for i := range uint64(added) {
						add(t, tab, id+1+i, 1)
					}
				}
			}
			d := tab.dir.Load()
			if d.last(1) >= end || d.segs[0].Load().cold == nil || d.segs[1].Load().cold == nil || d.segs[2].Load().cold == nil {
				t.Fatalf("the rows up to %d are not in three pieces", end)
			}
			want := model{}
			for _, id := range ids {
				for i := range uint64(1 + added) {
					if i > 0 && id > end {
						break
					}
					if id+i >= d.first(piece) && id+i <= d.last(piece) {
						mustApply(t, tab, Op{ID: id + i, Kind: OpDelete})
					} else {
						want[id+i] = append([]int64{1}, make([]int64, ColumnsMax-1)...)
					}
				}
			}
			want.equalCold(t, tab)
			from, to := d.first(piece), d.last(piece)
			if _, _, more, err := tab.Warm(from, to, 1<<20); more || err != nil {
				t.Fatalf("more %v, %v", more, err)
			}
			want.equalCold(t, tab)
			if _, _, more, err := tab.Warm(0, 1<<64-1, 1<<20); more || err != nil {
				t.Fatalf("more %v, %v", more, err)
			}
			want.equalCold(t, tab)
			if n := cold.needed(); n != 0 {
				t.Errorf("%d generations are needed", n)
			}
		})
	}
}
