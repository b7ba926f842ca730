package engine

import (
	"math/bits"
	"sync/atomic"
)

// directory is the ordered list of a table's segments. before never changes
// once readers can see it; a segment of the same range is replaced in place,
// anything else makes a new directory.
type directory struct {
	step   int      // largest power of two that is not above len(before)
	before []uint64 // the last id before each segment, ascending; 2^64-1, which nothing is above, for the first
	segs   []atomic.Pointer[segment]
}

// newDirectory returns a directory of n segments, none of them set.
func newDirectory(n int) *directory {
	d := &directory{
		step:   1 << (bits.Len(uint(n)) - 1),
		before: make([]uint64, n),
		segs:   make([]atomic.Pointer[segment], n),
	}
	d.before[0] = 1<<64 - 1
	return d
}

// find returns the number of the segment that owns id. It is a binary search
// without branches on what it compares, so that the processor need not guess
// which way it goes.
func (d *directory) find(id uint64) int {
	// What is sought lies in segs[base:base+step], step a power of two.
	before, step := d.before, d.step
	_, above := bits.Sub64(before[len(before)-step], id, 0) // 1 when id is above
	base := (len(before) - step) & -int(above)
	for step >>= 1; step > 0; step >>= 1 {
		_, above = bits.Sub64(before[base+step], id, 0)
		base += step & -int(above)
	}
	return base
}

// first and last return the ends of the range that segment i owns.
func (d *directory) first(i int) uint64 { return d.before[i] + 1 }

func (d *directory) last(i int) uint64 { return d.before[(i+1)%len(d.before)] }

// with returns a directory in which left, unless nil, replaces segment i and
// right is added behind it from start on.
func (d *directory) with(i int, left *segment, start uint64, right *segment) *directory {
	n := newDirectory(len(d.segs) + 1)
	copy(n.before, d.before[:i+1])
	n.before[i+1] = start - 1
	copy(n.before[i+2:], d.before[i+1:])
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

// without returns a directory in which the segment before segment i owns its
// range too, or, when i is the first, the one behind it. There are others.
func (d *directory) without(i int) *directory {
	n := newDirectory(len(d.segs) - 1)
	copy(n.before, d.before[:i])
	copy(n.before[i:], d.before[i+1:])
	n.before[0] = d.before[0]
	for j := range n.segs {
		from := j
		if j >= i {
			from++
		}
		n.segs[j].Store(d.segs[from].Load())
	}
	return n
}
