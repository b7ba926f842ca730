package raftfsm

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// Followee is one that a user follows, and what the user saw of them.
type Followee struct {
	ID    uint64
	Posts int64 // when they were last seen
}

// The followees of one user in memory, ascending by id:
//
//	number (uvarint) | first id (uvarint) | k of gaps (1) | k of posts (1) | bits, to a whole byte
//	bits, for each:   gap to the id before less 1, not of the first; posts
//
// A number is a Rice code (Rice and Plaunt, 1971) from the lowest bit of a byte up:
// number>>k ones, a zero, the k low bits of the number. One of riceOnesMax ones or
// more is that many ones and 64 bits. Posts that are below 0 have riceSigned in
// their k: all are zigzag coded then. Rice codes suit gaps between ids that lie
// anyhow, which are within half a bit of what can be (Golomb, 1966), and a k of its
// own lets each user's posts be as large as they are.
const (
	riceOnesMax = 24
	riceKMax    = 62
	riceSigned  = 1 << 7

	// ricePadding is how many bytes behind the bits a reader may load.
	ricePadding = 8
)

// appendFollowees appends followees in their form in memory. None has one byte.
func appendFollowees(dst []byte, followees []Followee) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(followees)))
	if len(followees) == 0 {
		return dst
	}
	first, last := followees[0].ID, followees[len(followees)-1].ID
	dst = binary.AppendUvarint(dst, first)
	gapK := uint8(0)
	if n := uint64(len(followees) - 1); n > 0 {
		gapK = riceMean((last - first) / n)
	}
	k := postsK(followees)
	w := bitWriter{dst: append(dst, gapK, k)}
	for i, f := range followees {
		if i > 0 {
			w.rice(f.ID-followees[i-1].ID-1, gapK)
		}
		w.rice(posts(f.Posts, k), k&^riceSigned)
	}
	return w.end()
}

// posts is a number of posts as it is coded.
func posts(n int64, k uint8) uint64 {
	if k&riceSigned != 0 {
		return uint64(n)<<1 ^ uint64(n>>63)
	}
	return uint64(n)
}

// riceMean returns the k that suits numbers of an exponential distribution.
func riceMean(mean uint64) uint8 { return uint8(min(max(bits.Len64(mean), 1)-1, riceKMax)) }

// postsK returns the k that makes the posts shortest.
func postsK(followees []Followee) uint8 {
	signed := uint8(0)
	for _, f := range followees {
		if f.Posts < 0 {
			signed = riceSigned
		}
	}
	var lengths [65]int // how many numbers have so many bits
	for _, f := range followees {
		lengths[bits.Len64(posts(f.Posts, signed))]++
	}
	best, least := uint8(0), -1
	for k := range riceKMax + 1 {
		if cost := riceCost(&lengths, k); least < 0 || cost < least {
			best, least = uint8(k), cost
		}
	}
	return best | signed
}

// riceCost returns about how many bits numbers take, by how many there are of each
// length. A number is taken for one in the middle of its length.
func riceCost(lengths *[65]int, k int) int {
	cost := 0
	for length, n := range lengths {
		if n == 0 {
			continue
		}
		ones := riceOnesMax
		if over := length - k; over < 6 { // 32 and more are past riceOnesMax
			ones = 0
			if over > 0 {
				ones = 3 << over >> 2 // ¾ of the next power of two
			}
		}
		if ones >= riceOnesMax {
			cost += n * (riceOnesMax + 64)
		} else {
			cost += n * (ones + 1 + k)
		}
	}
	return cost
}

// decodeFollowees appends what appendFollowees made to dst. data is the package's
// own, with ricePadding bytes behind it.
func decodeFollowees(dst []Followee, data []byte) []Followee {
	n, size := binary.Uvarint(data)
	if n == 0 {
		return dst
	}
	id, m := binary.Uvarint(data[size:])
	at := size + m
	gapK, k := data[at], data[at+1]&^riceSigned
	signed := data[at+1]&riceSigned != 0
	r := bitReader{data: data[:cap(data):cap(data)], at: uint64(at+2) * 8}
	v := r.rice(k)
	for left := n - 1; ; left-- {
		if signed {
			v = v>>1 ^ -(v & 1)
		}
		dst = append(dst, Followee{id, int64(v)})
		if left == 0 {
			return dst
		}
		var gap uint64
		gap, v = r.rices(gapK, k)
		id += gap + 1
	}
}

// bitWriter appends bits, the first in the lowest bit of a byte.
type bitWriter struct {
	dst  []byte
	word uint64
	n    uint // bits in word, below 8 between calls
}

func (w *bitWriter) bits(v uint64, n uint) {
	for n > 32 {
		w.bits(v&(1<<32-1), 32)
		v, n = v>>32, n-32
	}
	w.word |= v << w.n
	w.n += n
	for w.n >= 8 {
		w.dst = append(w.dst, byte(w.word))
		w.word >>= 8
		w.n -= 8
	}
}

func (w *bitWriter) rice(v uint64, k uint8) {
	ones := v >> k
	if ones >= riceOnesMax {
		w.bits(1<<riceOnesMax-1, riceOnesMax)
		w.bits(v, 64)
		return
	}
	w.bits(1<<ones-1, uint(ones)+1)
	w.bits(v&(1<<k-1), uint(k))
}

func (w *bitWriter) end() []byte {
	if w.n > 0 {
		w.dst = append(w.dst, byte(w.word))
	}
	return w.dst
}

// bitReader reads what bitWriter wrote.
type bitReader struct {
	data []byte // ricePadding bytes more than there are bits
	at   uint64 // next bit
}

// windowBits is how many bits a window has at least: one may begin at the last bit of
// its first byte.
const windowBits = 57

// window returns the next windowBits, or some more.
func (r *bitReader) window() uint64 {
	return binary.LittleEndian.Uint64(r.data[r.at>>3:]) >> (r.at & 7)
}

func (r *bitReader) rice(k uint8) uint64 {
	w := r.window()
	ones := uint64(bits.TrailingZeros64(^w))
	if n := ones + 1 + uint64(k); n <= windowBits && ones < riceOnesMax {
		r.at += n
		return ones<<k | w>>(ones+1)&(1<<k-1)
	}
	return r.longRice(ones, k)
}

// rices reads two numbers, from one window if they are in it: most are.
func (r *bitReader) rices(k1, k2 uint8) (uint64, uint64) {
	w := r.window()
	ones1 := uint64(bits.TrailingZeros64(^w))
	w1 := w >> (ones1 + 1)
	w2 := w1 >> k1
	ones2 := uint64(bits.TrailingZeros64(^w2))
	n := ones1 + 1 + uint64(k1) + ones2 + 1 + uint64(k2)
	if n > windowBits || max(ones1, ones2) >= riceOnesMax {
		first := r.rice(k1)
		return first, r.rice(k2)
	}
	r.at += n
	return ones1<<k1 | w1&(1<<k1-1), ones2<<k2 | w2>>(ones2+1)&(1<<k2-1)
}

// longRice reads a number that takes more than a window, of which the ones are known.
func (r *bitReader) longRice(ones uint64, k uint8) uint64 {
	if ones >= riceOnesMax {
		r.at += riceOnesMax
		low := r.window() & (1<<32 - 1)
		r.at += 32
		high := r.window() & (1<<32 - 1)
		r.at += 32
		return high<<32 | low
	}
	r.at += ones + 1
	low := r.window() & (1<<32 - 1)
	r.at += 32
	high := r.window() & (1<<(k-32) - 1)
	r.at += uint64(k - 32)
	return ones<<k | high<<32 | low
}

// Unread returns how many of a followee's posts, of which there are so many now,
// are new: none if there are fewer than there were.
func (f Followee) Unread(now int64) int64 {
	if now <= f.Posts {
		return 0
	}
	if n := uint64(now) - uint64(f.Posts); n <= math.MaxInt64 {
		return int64(n)
	}
	return math.MaxInt64
}
