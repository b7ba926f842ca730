package engine

import (
	"math/bits"
	"sync/atomic"
)

// bucket is one cache line: the first word of counts and the tag of each of
// its slots. A row that stands in its first bucket costs one cache miss.
//
//	word      0   1   2   3   4   5       6       7
//	narrow  c0  c1  c2  c3  c4  t3:t0   t4:t1    0:t2     (high:low half)
//	wide    c0  c1  c2  c3  t0  t1      t2       t3
type bucket [lineWords]uint64

const (
	lowHalves  = 0x00000001_00000001
	highHalves = lowHalves << 31
)

// matchNarrow returns the bucket (0 or 1) and the slot there where the tag stands,
// in a with first, in b with second, and false when in neither. Only that has a
// branch: which slot it is is as good as random, and a wrong guess would keep
// the processor from starting on the next row while this one's memory is on its
// way. For the same reason both buckets are read, and their misses overlap.
func matchNarrow(a, b *bucket, first uint64) (bucket, slot uint64, ok bool) {
	first *= lowHalves
	second := first | tagSecond*lowHalves
	m := zeroHalves(atomic.LoadUint64(&a[5])^first)>>31 |
		zeroHalves(atomic.LoadUint64(&a[6])^first)>>30 |
		zeroHalves(atomic.LoadUint64(&a[7])^first)>>29 |
		zeroHalves(atomic.LoadUint64(&b[5])^second)>>23 |
		zeroHalves(atomic.LoadUint64(&b[6])^second)>>22 |
		zeroHalves(atomic.LoadUint64(&b[7])^second)>>21
	if m == 0 {
		return 0, 0, false
	}
	i := uint64(bits.TrailingZeros64(m)) // 0…2 of a, 8…10 of b, 32 more in a high half
	return i >> 3 & 1, i&7 + i>>5*3, true
}

// matchWide is the same for wide tags.
func matchWide(a, b *bucket, first uint64) (bucket, slot uint64, ok bool) {
	second := first | tagSecond
	m := isZero(atomic.LoadUint64(&a[4])^first) |
		isZero(atomic.LoadUint64(&a[5])^first)<<1 |
		isZero(atomic.LoadUint64(&a[6])^first)<<2 |
		isZero(atomic.LoadUint64(&a[7])^first)<<3 |
		isZero(atomic.LoadUint64(&b[4])^second)<<4 |
		isZero(atomic.LoadUint64(&b[5])^second)<<5 |
		isZero(atomic.LoadUint64(&b[6])^second)<<6 |
		isZero(atomic.LoadUint64(&b[7])^second)<<7
	if m == 0 {
		return 0, 0, false
	}
	i := uint64(bits.TrailingZeros64(m))
	return i >> 2, i & 3, true
}

// zeroHalves sets the top bit of each half of x that is zero. It may err in the
// high half when the low one is zero.
func zeroHalves(x uint64) uint64 { return (x - lowHalves) &^ x & highHalves }

func isZero(x uint64) uint64 {
	_, borrow := bits.Sub64(x, 1, 0)
	return borrow
}

// tagAt says which word and which bits of it hold the tag of a slot.
func tagAt(slot int, wide bool) (word int, shift uint, mask uint64) {
	switch {
	case wide:
		return slotsWide + slot, 0, 1<<64 - 1
	case slot < 3:
		return slotsNarrow + slot, 0, 1<<32 - 1
	}
	return slotsNarrow + slot - 3, 32, 1<<32 - 1
}

// tag returns the tag of a slot; 0 is an empty one.
func (b *bucket) tag(slot int, wide bool) uint64 {
	word, shift, mask := tagAt(slot, wide)
	return b[word] >> shift & mask
}

// setTag changes one tag. The writer alone calls it.
func (b *bucket) setTag(slot int, wide bool, tag uint64) {
	word, shift, mask := tagAt(slot, wide)
	atomic.StoreUint64(&b[word], b[word]&^(mask<<shift)|tag<<shift)
}

// empty returns an empty slot, or -1.
func (b *bucket) empty(wide bool) int {
	for slot := range slotsOf(wide) {
		if b.tag(slot, wide) == 0 {
			return slot
		}
	}
	return -1
}
