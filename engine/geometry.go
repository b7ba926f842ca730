package engine

import (
	"math/bits"

	"github.com/countd/countd/internal/wire"
)

const (
	// A bucket is one cache line of 64-bit words. A narrow bucket has five tags of 32 bits in three
	// words, and five words of counts. A wide bucket has four tags of 64 bits and four words of
	// counts.
	lineWords      = 8
	tagWordsNarrow = 3
	tagWordsWide   = 4
	slotsNarrow    = lineWords - tagWordsNarrow
	slotsWide      = lineWords - tagWordsWide

	// A segment has 8, 16, 32, 64 or a multiple of 128 buckets. So its memory exactly fills an
	// allocator size class or pages of 8 KiB. The largest takes 128 KiB. To copy it for a snapshot
	// delays a write by only some 20 µs. Its header and its entry in the directory take less than
	// 0.05 B a row.
	bucketsMin  = 8
	bucketsStep = 128
	bucketsMax  = 2048

	// bucketsLimit bounds the buckets of a segment: rowsMax rows with wide tags fill five
	// eighths of them.
	bucketsLimit = 2 * bucketsMax

	// Cuckoo hashing with two buckets per key reaches a load of 0.98 with four slots a bucket, and
	// 0.99 with five (Dietzfelbinger and Weidling). Up to the load below, short searches find an
	// empty slot.
	loadNumerator, loadDenominator = 98, 100
	rowsMax                        = bucketsMax * slotsNarrow * loadNumerator / loadDenominator

	narrowRemainderBits = 30
)

// SegmentRowsMax bounds the rows of a segment, not counting its cold part.
const SegmentRowsMax = rowsMax

// geometry maps the ids of a segment's window one to one to places.
//
// A bijection mixes the id's offset in the window. The mixed value is read as a fraction below 1
// and multiplied by the number of buckets. The integer part of the product is the bucket, and the
// rest is the remainder. The position of a tag implies the bucket, so a tag stores only the
// remainder (quotienting; Knuth, TAOCP 6.4, exercise 13) and two bits. One bit is always set. The
// other is set if the tag is in the second of the row's two buckets:
//
//	narrow: 30 bits of remainder, so a window of 2^30 ids a bucket, 4 B a tag
//	wide:   every id, 8 B a tag
//
// All ids of a segment may be equal mod a stride (see Class). Then the window's numbers are the
// offsets divided by the stride. The division costs a lookup nothing. The offset is a multiple of
// the stride. So to divide by the odd factor of the stride is to multiply by its inverse mod 2^64,
// and factor already contains that inverse. To divide by the power of two in the stride is to shift
// by fewer bits. An id that is not equal mod the stride could have the place of another id, so
// nobody may look it up (keys.dirOf).
//
// A stored tag is never 0; 0 is an empty slot.
//
// A salt decides the bijection: x → factor · (x + addend), then a fixed bijection. The results of
// two ids are practically independent; only the number of their equal low bits stays. So without
// the salt, nobody can predict the place of an id from the places of other ids. No set of ids
// collides under more than a few salts.
type geometry struct {
	base   uint64 // first id of the window
	span   uint64 // last id of the window - base
	addend uint64 // a number derived from the salt, times the stride, minus base
	factor uint64 // another number derived from the salt, divided by the odd factor of the stride; always odd

	unused    uint8 // number of low bits of a word that are not mixed
	shift     uint8 // unused, minus the number of factors 2 in the stride
	fold      uint8 // at least half the mixed bits, so that x → x ^ x>>fold is its own inverse
	truncated uint8 // number of low bits of the fraction that the remainder omits
	wide      bool
	stride    uint16 // all ids are base mod stride
}

const (
	mixA = 0x9e3779b97f4a7c15
	mixB = 0xd6e8feb86659fd93
	// The inverse of mixB, mod 2^64.
	mixBInverse = 0xcfee444d8b59a89b
)

// Layout of a stored tag.
const (
	tagUsed   = 1
	tagSecond = 2 // set if the tag is in the row's second bucket
	tagShift  = 2 // the remainder is above these bits
)

// newGeometry returns the geometry of an array. base must be an id of the class. A wide window
// begins at the first id of the class.
func newGeometry(buckets int, wide bool, base uint64, class Class, salt uint64) geometry {
	if wide {
		g := geometryOf(64, buckets, class.Residue, class.Stride, salt)
		g.wide = true
		return g
	}
	return geometryOf(narrowBits(buckets), buckets, base, class.Stride, salt)
}

// geometryOf returns the geometry of a window of 2^n numbers that begins at base, or of all numbers
// from base on if there are fewer.
func geometryOf(n, buckets int, base uint64, stride uint16, salt uint64) geometry {
	twos := bits.TrailingZeros16(stride)
	n = min(n, 64-twos)
	g := geometry{base: base, stride: stride, unused: uint8(64 - n), shift: uint8(64 - n - twos), fold: uint8((n + 1) / 2)}
	high, span := bits.Mul64(g.mask()>>g.unused, uint64(stride))
	if g.span = 1<<64 - 1 - g.base; high == 0 {
		g.span = min(span, g.span)
	}
	g.addend = wire.Mix(salt)*uint64(stride) - g.base
	g.factor = (wire.Mix(salt+mixA) | 1) * inverseOf(uint64(stride)>>twos)
	// The remainders of two mixed values of one bucket differ by at least buckets<<unused. So they
	// still differ if the bits below that difference are dropped.
	g.truncated = g.unused + uint8(bits.Len(uint(buckets))-1)
	return g
}

// narrowBits returns the number of bits of a number that a narrow segment can distinguish.
func narrowBits(buckets int) int { return bits.Len(uint(buckets)) - 1 + narrowRemainderBits }

// mask returns a word in which the mixed bits are set.
func (g *geometry) mask() uint64 { return ^uint64(0) << (g.unused & 63) }

// covers reports whether the window contains id.
func (g *geometry) covers(id uint64) bool { return id-g.base <= g.span }

// place is the two possible positions of an id: bucket first with tag, or bucket second
// with tag | tagSecond.
type place struct{ first, second, tag uint64 }

// place must not branch on the id, because ids are practically random. After a misprediction, the
// processor could not have started on the next row.
func (g *geometry) place(id, buckets uint64) place {
	x := (id + g.addend) << (g.shift & 63)
	x *= g.factor
	x ^= x >> (g.fold & 63) & g.mask()
	x *= mixB
	first, fraction := bits.Mul64(x, buckets)
	remainder := fraction >> (g.truncated & 63)
	return place{first, otherBucket(remainder, first, buckets), remainder<<tagShift | tagUsed}
}

// inverseOf returns the inverse of an odd number mod 2^64, by Newton's method: each step doubles
// the number of correct low bits.
func inverseOf(odd uint64) uint64 {
	d := odd // correct in three bits, because the square of an odd number is 1 mod 8
	for range 5 {
		d *= 2 - odd*d
	}
	return d
}

// inverse is what idAt needs to invert place.
type inverse struct {
	divisor uint64 // inverse of the factor that the salt gave
	addend  uint64 // the addend that the salt gave; the numbers of the window have no higher bits
}

func (g *geometry) inverse() inverse {
	twos := bits.TrailingZeros16(g.stride)
	odd := inverseOf(uint64(g.stride) >> twos)
	return inverse{divisor: inverseOf(g.factor) * odd, addend: (g.addend + g.base) * odd >> twos}
}

// idAt inverts place for a tag in a bucket. inv is the result of g.inverse.
func (g *geometry) idAt(bucket, tag, buckets uint64, inv inverse) uint64 {
	if tag&tagSecond != 0 {
		bucket = otherBucket(tag>>tagShift, bucket, buckets)
	}
	// The mixed value is the only one whose product with the number of buckets
	// lies in [product, product + 1<<truncated).
	step := buckets << g.unused
	x, rest := bits.Div64(bucket, tag>>tagShift<<g.truncated, step)
	if rest != 0 {
		x++
	}
	x <<= g.unused
	x *= mixBInverse
	x ^= x >> (g.fold & 63) & g.mask()
	x *= inv.divisor
	return (x>>g.unused-inv.addend)&(g.mask()>>g.unused)*uint64(g.stride) + g.base
}

// otherBucket is its own inverse for a fixed remainder.
func otherBucket(remainder, bucket, buckets uint64) uint64 {
	sum := (remainder * mixA >> 32) * buckets >> 32
	other, negative := bits.Sub64(sum, bucket, 0)
	return other + buckets&-negative
}

// bucketsFor returns the smallest number of buckets for the given number of rows. It may
// exceed bucketsMax.
func bucketsFor(rows int, wide bool) int {
	buckets := bucketsMin
	for rows > rowsFor(buckets, wide) {
		if buckets < bucketsStep {
			buckets *= 2
		} else {
			buckets += bucketsStep
		}
	}
	return buckets
}

// rowsFor returns the maximum number of rows of a segment with the given number of buckets.
func rowsFor(buckets int, wide bool) int {
	return buckets * slotsOf(wide) * loadNumerator / loadDenominator
}

func slotsOf(wide bool) int { return lineWords - firstSlot(wide) }

// firstSlot returns the number of a bucket's first slot. The last slot is always lineWords-1.
func firstSlot(wide bool) int {
	if wide {
		return tagWordsWide
	}
	return tagWordsNarrow
}
