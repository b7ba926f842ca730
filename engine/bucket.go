package engine

import (
	"math/bits"
	"sync/atomic"
)

// bucket is one cache line: the tags of its slots, then one word of counts for each slot. A slot's
// number is the index of its word of counts in the line. A lookup of a row in its first bucket
// costs one cache miss.
//
//	word      0      1     2    3   4   5   6   7     (high:low half)
//	narrow  t4:t3  t6:t5  0:t7  c3  c4  c5  c6  c7
//	wide     t4     t5     t6   t7  c4  c5  c6  c7
type bucket [lineWords]uint64

// matchNarrowGo returns bit i if the i-th tag of a is tag. It returns bit lineWords+i if the i-th
// tag of b is tag|tagSecond. Only the lowest set bit of the result is valid, because a tag is in
// one slot only. The function has no branch, because the slot is practically random and a branch
// would often be mispredicted. A misprediction would keep the processor from starting on the next
// row while it waits for the memory of this row.
func matchNarrowGo(a, b *bucket, tag uint64) uint64 {
	return a.matchHalves(tag) | b.matchHalves(tag|tagSecond)<<lineWords
}

func (b *bucket) matchHalves(tag uint64) uint64 {
	tag *= lowBits
	m := equalHalves(atomic.LoadUint64(&b[0]), tag) |
		equalHalves(atomic.LoadUint64(&b[1]), tag)<<2 |
		equalHalves(atomic.LoadUint64(&b[2]), tag)<<4
	return (m | m>>31) & (1<<slotsNarrow - 1)
}

const lowBits = 0x00000001_00000001 // the lowest bit of each half of a word

// equalHalves compares the two halves of x and y. For each equal half, it sets the lowest bit of
// that half in the result. The result for the high half may be wrong if the low halves are equal.
func equalHalves(x, y uint64) uint64 {
	x ^= y
	return ((x - lowBits) &^ x) >> 31 & lowBits
}

// matchWide is like matchNarrowGo, but for wide tags.
func matchWide(a, b *bucket, tag uint64) uint64 {
	second := tag | tagSecond
	return isZero(atomic.LoadUint64(&a[0])^tag) |
		isZero(atomic.LoadUint64(&a[1])^tag)<<1 |
		isZero(atomic.LoadUint64(&a[2])^tag)<<2 |
		isZero(atomic.LoadUint64(&a[3])^tag)<<3 |
		isZero(atomic.LoadUint64(&b[0])^second)<<(lineWords+0) |
		isZero(atomic.LoadUint64(&b[1])^second)<<(lineWords+1) |
		isZero(atomic.LoadUint64(&b[2])^second)<<(lineWords+2) |
		isZero(atomic.LoadUint64(&b[3])^second)<<(lineWords+3)
}

func isZero(x uint64) uint64 {
	_, borrow := bits.Sub64(x, 1, 0)
	return borrow
}

// tagAt returns the index of the word that contains the tag of a slot, and the tag's shift and mask
// in that word.
func tagAt(slot int, wide bool) (word int, shift uint, mask uint64) {
	if wide {
		return slot - tagWordsWide, 0, 1<<64 - 1
	}
	i := uint(slot - tagWordsNarrow)
	return int(i / 2), i % 2 * 32, 1<<32 - 1
}

// tag returns the tag of a slot, 0 if the slot is empty.
func (b *bucket) tag(slot int, wide bool) uint64 {
	word, shift, mask := tagAt(slot, wide)
	return b[word] >> shift & mask
}

// setTag changes one tag. Only the writer calls it.
func (b *bucket) setTag(slot int, wide bool, tag uint64) {
	word, shift, mask := tagAt(slot, wide)
	atomic.StoreUint64(&b[word], b[word]&^(mask<<shift)|tag<<shift)
}

func (b *bucket) empty(wide bool) int {
	for slot := firstSlot(wide); slot < lineWords; slot++ {
		if b.tag(slot, wide) == 0 {
			return slot
		}
	}
	return -1
}
