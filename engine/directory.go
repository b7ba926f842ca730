package engine

import (
	"math/bits"
	"sync/atomic"
)

// directory is the ordered list of a table's segments. Once readers can see a directory, the ranges
// of its segments never change. A segment can be replaced in place by another one for the same
// range. Any other change makes a new directory.
type directory struct {
	step   int      // largest power of two up to len(before)
	keys   *keys    // nil if the table may have all ids
	before []uint64 // the last id before each segment, ascending; 2^64-1 for the first segment, because no id is above it
	segs   []atomic.Pointer[segment]
}

// newDirectory returns a directory of n nil segments.
func newDirectory(n int, k *keys) *directory {
	d := &directory{
		step:   1 << (bits.Len(uint(n)) - 1),
		keys:   k,
		before: make([]uint64, n),
		segs:   make([]atomic.Pointer[segment], n),
	}
	d.before[0] = 1<<64 - 1
	return d
}

// find returns the index of the segment that owns id. The binary search does not branch on
// comparisons, because the processor would mispredict such branches.
func (d *directory) find(id uint64) int {
	// Invariant: the segment is in segs[base:base+step], and step is a power of two.
	before, step := d.before, d.step
	_, above := bits.Sub64(before[len(before)-step], id, 0) // 1 if id is above that value
	base := (len(before) - step) & -int(above)
	for step >>= 1; step > 0; step >>= 1 {
		_, above = bits.Sub64(before[base+step], id, 0)
		base += step & -int(above)
	}
	return base
}

// first and last return the bounds of the range that segment i owns.
func (d *directory) first(i int) uint64 { return d.before[i] + 1 }

func (d *directory) last(i int) uint64 { return d.before[(i+1)%len(d.before)] }

// with returns a copy of d that has one more segment, named right, directly behind segment i. The
// range of right begins at start, and that of segment i ends before start. If left is not nil, left
// replaces segment i.
func (d *directory) with(i int, left *segment, start uint64, right *segment) *directory {
	n := newDirectory(len(d.segs)+1, d.keys)
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

// divide returns a directory in which pieces divide the range of segment i. Piece 0 begins where that range does, and each
// other piece j at start(j). A single piece replaces the segment in place. Several need a copy: a reader that found piece 0
// in d would miss the rows of the others.
func (d *directory) divide(i int, pieces []*segment, start func(j int) uint64) *directory {
	if len(pieces) == 1 {
		d.segs[i].Store(pieces[0])
		return d
	}
	d = d.with(i, pieces[0], start(1), pieces[1])
	for j := 2; j < len(pieces); j++ {
		d = d.with(i+j-1, nil, start(j), pieces[j])
	}
	return d
}

// without returns a directory without segment i. The previous segment takes over its range or, if i
// is 0, the next segment. The directory must have at least two segments.
func (d *directory) without(i int) *directory {
	n := newDirectory(len(d.segs)-1, d.keys)
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
