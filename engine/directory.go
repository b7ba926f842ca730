package engine

import (
	"math/bits"
	"sync/atomic"
)

// directory is the ordered list of a table's segments. starts never changes
// once readers can see it; a segment of the same range is replaced in place,
// anything else makes a new directory.
type directory struct {
	starts []uint64 // ascending; starts[0] is 0. Segment i owns ids from starts[i] up to starts[i+1]-1
	segs   []atomic.Pointer[segment]
}

// find returns the number of the segment that owns id. It is a binary search
// without branches, so that the processor need not guess which way it goes.
func (d *directory) find(id uint64) int {
	base, n := 0, len(d.starts)
	for n > 1 {
		half := n / 2
		_, below := bits.Sub64(id, d.starts[base+half], 0) // 1 when id < start
		base += half & (int(below) - 1)
		n -= half
	}
	return base
}

// last returns the last id that segment i owns.
func (d *directory) last(i int) uint64 {
	if i+1 < len(d.starts) {
		return d.starts[i+1] - 1
	}
	return 1<<64 - 1
}

// with returns a directory in which left, unless nil, replaces segment i and
// right is added behind it from start on.
func (d *directory) with(i int, left *segment, start uint64, right *segment) *directory {
	n := &directory{
		starts: make([]uint64, 0, len(d.starts)+1),
		segs:   make([]atomic.Pointer[segment], len(d.segs)+1),
	}
	n.starts = append(append(append(n.starts, d.starts[:i+1]...), start), d.starts[i+1:]...)
	for j := range d.segs {
		to := j
		if j > i {
			to++
		}
		n.segs[to].Store(d.segs[j].Load())
	}
	if left != nil {
		n.segs[i].Store(left)
	}
	n.segs[i+1].Store(right)
	return n
}
