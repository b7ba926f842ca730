package rankings

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/countd/countd/engine"
)

// doubtMax stands for every doubt or bound that is not smaller. The sum over all buckets fits an int64.
const doubtMax = 1 << 56

// cell is what one column of a row gained in a bucket. The true gain is within doubt of gained.
type cell struct {
	key    uint64
	gained int64
	doubt  uint64
}

// size returns the absolute value of gained.
func (c *cell) size() uint64 { return uint64(max(c.gained, -c.gained)) }

// weight returns an upper bound of the absolute value of the true gain, or doubtMax.
func (c *cell) weight() uint64 { return min(doubtMax, min(c.size(), doubtMax)+c.doubt) }

// add adds to the gain. If the sum does not fit an int64, the part that is lost becomes doubt.
func (c *cell) add(delta int64) {
	sum := c.gained + delta
	if (c.gained^sum)&(delta^sum) < 0 {
		c.doubt = doubtMax
		if sum = math.MaxInt64; delta < 0 {
			sum = math.MinInt64
		}
	}
	c.gained = sum
}

// summary is a bucket while it closes.
type summary [engine.ColumnsMax]struct {
	cells []cell
	bound uint64 // no other cell gained or lost more than this
}

// cut keeps at most cellsMax cells. It keeps at most share cells of each column, those with the largest
// weights. It raises the bound of a column to the largest weight of a cell that it drops.
func (s *summary) cut(cellsMax int) {
	share := s.share(cellsMax)
	for i := range s {
		of := &s[i]
		if len(of.cells) <= share {
			continue
		}
		var sizes [ranksMax]int // cells, by rank
		for j := range of.cells {
			sizes[rank(of.cells[j].weight())]++
		}
		at, left := ranksMax-1, share // the share ends in rank at, of which left cells remain
		for ; sizes[at] <= left; at-- {
			left -= sizes[at]
		}
		ends := make([]uint64, 0, sizes[at])
		for j := range of.cells {
			if w := of.cells[j].weight(); rank(w) == at {
				ends = append(ends, w)
			}
		}
		slices.Sort(ends)
		of.bound = max(of.bound, ends[len(ends)-1-left])
		of.cells = slices.DeleteFunc(of.cells, func(c cell) bool { return c.weight() <= of.bound })
	}
}

// rank groups weights in ascending order, with 16 ranks for each power of two. So cut need not sort all
// weights.
func rank(weight uint64) int {
	shift := max(0, bits.Len64(weight)-5)
	return shift<<4 + int(weight>>shift)
}

// ranksMax is more than the rank of doubtMax.
const ranksMax = 54 << 4

// share returns how many cells a column may keep: columns with few cells leave theirs to the others.
func (s *summary) share(cellsMax int) int {
	var sizes [engine.ColumnsMax]int
	for i := range s {
		sizes[i] = len(s[i].cells)
	}
	slices.Sort(sizes[:])
	left := cellsMax
	for i, n := range sizes {
		if fair := left / (len(sizes) - i); n > fair {
			return fair
		}
		left -= n
	}
	return cellsMax
}

// sortByKey sorts cells as they are in a bucket.
func sortByKey(cells []cell) {
	slices.SortFunc(cells, func(a, b cell) int { return cmp.Compare(a.key, b.key) })
}
