package rankings

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/countd/countd/engine"
)

// doubtMax stands for all doubts and bounds that are equal or higher. The sum over all buckets fits
// int64.
const doubtMax = 1 << 56

// cell is the gain of one column of a row in a bucket. The true gain differs from gained by at most
// doubt.
type cell struct {
	key    uint64
	gained int64
	doubt  uint64
}

// size returns the absolute value of gained.
func (c *cell) size() uint64 { return uint64(max(c.gained, -c.gained)) }

// weight returns an upper bound of the absolute value of the true gain, but at most doubtMax.
func (c *cell) weight() uint64 { return min(doubtMax, min(c.size(), doubtMax)+c.doubt) }

// add adds delta to the gain. If the sum does not fit int64, gained stays at the limit of int64,
// and the doubt becomes doubtMax.
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

// summary holds the cells of a bucket while the bucket is being closed.
type summary [engine.ColumnsMax]struct {
	cells []cell
	bound uint64 // any other key of the column gained or lost at most this
}

// cut keeps at most cellsMax cells: for each column, at most share of the cells with the largest
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
		at, left := ranksMax-1, share // the column keeps all cells of ranks above at, and at most left cells of rank at
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

// ranksMax is above all ranks: no weight exceeds doubtMax.
const ranksMax = 54 << 4

// share returns the number of cells that a column may keep. Columns with fewer cells leave the rest
// of their share to the other columns.
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

// sortByKey sorts cells by key, as in a bucket.
func sortByKey(cells []cell) {
	slices.SortFunc(cells, func(a, b cell) int { return cmp.Compare(a.key, b.key) })
}
