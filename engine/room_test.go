package engine

import (
	"math/rand/v2"
	"testing"
)

// rebuildsPerSegmentMax is above the steps in which a segment grows, its splits
// and the ids that fall outside of its window.
const rebuildsPerSegmentMax = 40

// However ids come, a segment is rebuilt a number of times that does not depend
// on how many they are.
func TestRebuildsAreFew(t *testing.T) {
	shapes := map[string]func(r *rand.Rand, i int) uint64{
		"weibo falling":    func(r *rand.Rand, i int) uint64 { return uint64(3335128487-i)<<22 | r.Uint64N(1<<22) },
		"sparse falling":   func(r *rand.Rand, i int) uint64 { return uint64(1<<19-i)<<44 | r.Uint64N(1<<44) },
		"from the middle":  func(_ *rand.Rand, i int) uint64 { return 1<<52 + uint64(i/2) ^ -uint64(i&1) },
		"falling from top": func(_ *rand.Rand, i int) uint64 { return 1<<64 - 1 - uint64(i)<<20 },
	}
	for name, shape := range idShapes {
		shapes[name] = shape
	}
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			tab, rebuilds := newTable(t), 0
			for i := range 2*rowsMax + 500 {
				id := shape(r, i)
				before := tab.locate(id).s
				tab.Apply([]Op{{ID: id, Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil)
				if tab.locate(id).s != before {
					rebuilds++
				}
			}
			if segments := tab.Stats().Segments; rebuilds > rebuildsPerSegmentMax*segments {
				t.Errorf("%d rebuilds in %d segments", rebuilds, segments)
			}
		})
	}
}
