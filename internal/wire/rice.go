package wire

import (
	"encoding/binary"
	"math/bits"
)

// The Rice code (Rice and Plaunt, 1971) of a number is number>>k ones, a zero, and the k low bits
// of the number. The first bit of the code is the lowest free bit of a byte. If number>>k is
// riceOnesMax or more, the code is instead riceOnesMax ones and the 64 bits of the number.
const (
	riceOnesMax = 24
	riceKMax    = 62

	// RicePadding is how many bytes after the last code a RiceReader may load.
	RicePadding = 8
)

// RiceKOfMean returns a good k for numbers with the given mean, if their distribution is
// exponential.
func RiceKOfMean(mean uint64) uint8 { return uint8(min(max(bits.Len64(mean), 1)-1, riceKMax)) }

// RiceK returns the k for which the codes are shortest in total, by the estimate of riceCost.
// lengths[n] is the number of numbers with a length of n bits.
func RiceK(lengths *[65]int) uint8 {
	best, least := uint8(0), -1
	for k := range riceKMax + 1 {
		if cost := riceCost(lengths, k); least < 0 || cost < least {
			best, least = uint8(k), cost
		}
	}
	return best
}

// riceCost estimates how many bits the codes of the numbers take. It assumes that each number is in
// the middle of the numbers of its length.
func riceCost(lengths *[65]int, k int) int {
	cost := 0
	for length, n := range lengths {
		if n == 0 {
			continue
		}
		ones := riceOnesMax
		if over := length - k; over < 6 { // if over is 6 or more, the code would have at least 32 ones, which is above riceOnesMax
			ones = 0
			if over > 0 {
				ones = 3 << over >> 2 // ¾ of 1<<over: the middle of the numbers of over bits
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

// RiceWriter appends bits, starting at the lowest bit of a byte.
type RiceWriter struct {
	Buf  []byte
	word uint64
	n    uint // number of used bits of word; below 8 between calls
}

func (w *RiceWriter) bits(v uint64, n uint) {
	for n > 32 {
		w.bits(v&(1<<32-1), 32)
		v, n = v>>32, n-32
	}
	w.word |= v << w.n
	w.n += n
	for w.n >= 8 {
		w.Buf = append(w.Buf, byte(w.word))
		w.word >>= 8
		w.n -= 8
	}
}

// Put appends the code of v.
func (w *RiceWriter) Put(v uint64, k uint8) {
	ones := v >> k
	if ones >= riceOnesMax {
		w.bits(1<<riceOnesMax-1, riceOnesMax)
		w.bits(v, 64)
		return
	}
	w.bits(1<<ones-1, uint(ones)+1)
	w.bits(v&(1<<k-1), uint(k))
}

// End returns all bytes. No Put may follow.
func (w *RiceWriter) End() []byte {
	if w.n > 0 {
		w.Buf = append(w.Buf, byte(w.word))
	}
	return w.Buf
}

// RiceReader reads the codes that a RiceWriter wrote.
type RiceReader struct {
	Buf []byte // the written bytes, followed by RicePadding bytes
	At  uint64 // index of the next bit
}

// windowBits is the least number of valid bits in a window of 64 bits, because the next bit may be
// the last bit of the window's first byte.
const windowBits = 57

// window returns a word whose lowest bit is the next bit. At least windowBits bits of the word are
// valid.
func (r *RiceReader) window() uint64 {
	return binary.LittleEndian.Uint64(r.Buf[r.At>>3:]) >> (r.At & 7)
}

// Take reads a code and returns its number.
func (r *RiceReader) Take(k uint8) uint64 {
	w := r.window()
	ones := uint64(bits.TrailingZeros64(^w))
	if n := ones + 1 + uint64(k); n <= windowBits && ones < riceOnesMax {
		r.At += n
		return ones<<k | w>>(ones+1)&(1<<k-1)
	}
	return r.longRice(ones, k)
}

// TakeTwo reads two codes. It is faster than two calls of Take if both codes are in one window,
// which is nearly always so.
func (r *RiceReader) TakeTwo(k1, k2 uint8) (uint64, uint64) {
	w := r.window()
	ones1 := uint64(bits.TrailingZeros64(^w))
	w1 := w >> (ones1 + 1)
	w2 := w1 >> k1
	ones2 := uint64(bits.TrailingZeros64(^w2))
	n := ones1 + 1 + uint64(k1) + ones2 + 1 + uint64(k2)
	if n > windowBits || max(ones1, ones2) >= riceOnesMax {
		first := r.Take(k1)
		return first, r.Take(k2)
	}
	r.At += n
	return ones1<<k1 | w1&(1<<k1-1), ones2<<k2 | w2>>(ones2+1)&(1<<k2-1)
}

// longRice reads a code that is longer than a window. ones is the number of ones at its beginning.
func (r *RiceReader) longRice(ones uint64, k uint8) uint64 {
	if ones >= riceOnesMax {
		r.At += riceOnesMax
		low := r.window() & (1<<32 - 1)
		r.At += 32
		high := r.window() & (1<<32 - 1)
		r.At += 32
		return high<<32 | low
	}
	r.At += ones + 1
	low := r.window() & (1<<32 - 1)
	r.At += 32
	high := r.window() & (1<<(k-32) - 1)
	r.At += uint64(k - 32)
	return ones<<k | high<<32 | low
}
