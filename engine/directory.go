package engine

import (
	"math/bits"
	"sync/atomic"
)

// directory is the ordered list of a table's segments. starts never changes
// once readers can see it; a segment of the same range is replaced in place,
// anything else makes a new directory.
type directory struct {
	step   int      // largest power of two that is not above len(starts)
	starts []uint64 // ascending; starts[0] is 0. Segment i owns ids from starts[i] up to starts[i+1]-1
	segs   []atomic.Pointer[segment]
}

// newDirectory returns one with room for n segments.
func newDirectory(n int) *directory {
	return &directory{
		step:   1 << (bits.Len(uint(n)) - 1),
		starts: make([]uint64, 0, n),
		segs:   make([]atomic.Pointer[segment], n),
	}
}

// find returns the number of the segment that owns id. It is a binary search
// without branches on what it compares, so that the processor need not guess
// which way it goes.
func (d *directory) find(id uint64) int {
	// What is sought lies in starts[base:base+step], step a power of two.
	starts, step := d.starts, d.step
	_, reached := bits.Sub64(starts[len(starts)-step], id, 1)
	base := (len(starts) - step) & -int(reached)
	for step >>= 1; step > 0; step >>= 1 {
		_, reached := bits.Sub64(starts[base+step], id, 1) // 1 when start <= id
		base += step & -int(reached)
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
	n := newDirectory(len(d.segs) + 1)
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
