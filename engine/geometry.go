package engine

import "math/bits"

const (
	// bucketSlots makes a bucket's tags half a cache line and its four-column
	// counts one whole line.
	bucketSlots = 8

	// A segment has 8, 16, 32 or a multiple of 64 buckets, so that its arrays
	// fill allocator size classes exactly. The largest, 4096 slots, takes
	// 48 KiB: small enough that a copy for a snapshot delays a write by some
	// 10 µs, large enough that the directory costs under 0.05 B a row.
	bucketsMin  = 8
	bucketsStep = 64
	bucketsMax  = 512

	// Cuckoo search with two buckets of eight finds room well past 0.95.
	loadNumerator, loadDenominator = 95, 100
	rowsMax                        = bucketsMax * bucketSlots * loadNumerator / loadDenominator

	narrowRemainderBits = 31
)

// geometry maps the ids of a segment's window one to one to places.
//
// An id's offset in the window is mixed by a bijection on bits bits; the mixed
// value m splits into a bucket, m mod buckets, and a remainder, m div buckets.
// The bucket is implied by where a tag stands, so only the remainder is stored
// (quotienting; Knuth, TAOCP 6.4, exercise 13), with one bit that says whether
// it stands in its first or its second bucket:
//
//	narrow: 31 bits of remainder, so a window of 2^31 ids a bucket, 4 B a tag
//	wide:   every id, 8 B a tag
//
// A stored tag is never 0; 0 is an empty slot.
type geometry struct {
	base    uint64 // first id of the window
	span    uint64 // last id of the window - base
	salt    uint64 // chosen anew when a set of ids finds no room
	mask    uint64 // of the mixed bits
	inverse uint64 // of buckets: ⌊(2^64-1)/buckets⌋
	buckets uint32
	words   uint16 // 64-bit words of counts a row
	shift   uint8  // at least half the mixed bits, so that x ^ x>>shift undoes itself
	wide    bool
	second  uint32 // the bit of a stored tag that says it stands in its second bucket
}

const (
	mixA = 0x9e3779b97f4a7c15
	mixB = 0xd6e8feb86659fd93
	// The inverses of the two, mod 2^64 and so mod every smaller power of two.
	mixAInverse = 0xf1de83e19937733d
	mixBInverse = 0xcfee444d8b59a89b
	mixSalt     = 0xbf58476d1ce4e5b9
)

func newGeometry(buckets, words int, wide bool, base, salt uint64) geometry {
	g := geometry{base: base, buckets: uint32(buckets), words: uint16(words), salt: salt * mixSalt, wide: wide,
		inverse: (1<<64 - 1) / uint64(buckets), second: 1}
	n := 64
	if wide {
		g.base, g.span, g.second = 0, 1<<64-1, 2
	} else {
		n = narrowBits(buckets)
		g.span = min(1<<n-1, 1<<64-1-base)
	}
	g.mask = 1<<n - 1
	g.shift = uint8((n + 1) / 2)
	return g
}

// narrowBits returns how many bits of id a narrow segment can tell apart.
func narrowBits(buckets int) int { return bits.Len(uint(buckets)) - 1 + narrowRemainderBits }

// covers says whether the window holds id.
func (g *geometry) covers(id uint64) bool { return id-g.base <= g.span }

// place is where an id may stand: in bucket first with tag lo, or in bucket
// second with the tag lo | geometry.second. hi is the rest of a wide tag.
type place struct{ first, second, lo, hi uint32 }

func (g *geometry) place(id uint64) place {
	x := (id - g.base + g.salt) & g.mask
	x = x * mixA & g.mask
	x ^= x >> (g.shift & 63)
	x = x * mixB & g.mask
	x ^= x >> (g.shift & 63)
	remainder, first := g.divide(x)
	second := uint32(g.otherBucket(remainder, first))
	if g.wide {
		return place{uint32(first), second, uint32(remainder<<2) | 1, uint32(remainder >> 30)}
	}
	if remainder == 0 { // its first tag would be that of an empty slot
		return place{second, second, g.second, 0}
	}
	return place{uint32(first), second, uint32(remainder << 1), 0}
}

// divide returns x div and mod buckets by a multiplication: the product with
// the inverse is at most one too small. Here and in otherBucket nothing
// branches on what is as good as random.
func (g *geometry) divide(x uint64) (quotient, remainder uint64) {
	buckets := uint64(g.buckets)
	quotient, _ = bits.Mul64(x, g.inverse)
	remainder = x - quotient*buckets
	_, exact := bits.Sub64(remainder, buckets, 0)
	return quotient + 1 - exact, remainder - buckets&(exact-1)
}

// idAt is the inverse of place, for a tag that stands in a bucket.
func (g *geometry) idAt(bucket uint64, lo, hi uint32) uint64 {
	remainder, second := g.split(lo, hi)
	if second {
		bucket = g.otherBucket(remainder, bucket)
	}
	x := remainder*uint64(g.buckets) + bucket
	x ^= x >> (g.shift & 63)
	x = x * mixBInverse & g.mask
	x ^= x >> (g.shift & 63)
	x = x * mixAInverse & g.mask
	return (x-g.salt)&g.mask + g.base
}

// split takes a stored tag apart.
func (g *geometry) split(lo, hi uint32) (remainder uint64, second bool) {
	if g.wide {
		return uint64(hi)<<30 | uint64(lo>>2), lo&g.second != 0
	}
	return uint64(lo >> 1), lo&g.second != 0
}

// moved returns the tag lo as it stands in the other one of its two buckets.
func (g *geometry) moved(lo uint32) uint32 { return lo ^ g.second }

// alternative returns the other bucket of a tag that stands in bucket, and
// false when it has none.
func (g *geometry) alternative(bucket uint64, lo, hi uint32) (uint64, bool) {
	remainder, _ := g.split(lo, hi)
	if remainder == 0 && !g.wide {
		return 0, false
	}
	return g.otherBucket(remainder, bucket), true
}

// otherBucket is its own inverse for a fixed remainder.
func (g *geometry) otherBucket(remainder, bucket uint64) uint64 {
	buckets := uint64(g.buckets)
	sum := (remainder * mixA >> 32) * buckets >> 32
	other, negative := bits.Sub64(sum, bucket, 0)
	return other + buckets&-negative
}

// bucketsFor returns the smallest size of a segment that holds rows, and false
// when none does.
func bucketsFor(rows int) (int, bool) {
	buckets := bucketsMin
	for rows > rowsFor(buckets) {
		switch {
		case buckets < bucketsStep:
			buckets *= 2
		case buckets < bucketsMax:
			buckets += bucketsStep
		default:
			return 0, false
		}
	}
	return buckets, true
}

// rowsFor returns how many rows a segment of that many buckets takes.
func rowsFor(buckets int) int {
	return buckets * bucketSlots * loadNumerator / loadDenominator
}
