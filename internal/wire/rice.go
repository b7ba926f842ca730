package wire

import (
	"encoding/binary"
	"math/bits"
)

// The Rice code (Rice and Plaunt, 1971) of a number is number>>k ones, a zero, and the k low
// bits of the number. It begins at the lowest bit of a byte. A number that would take
// riceOnesMax ones or more is riceOnesMax ones and 64 bits.
const (
	riceOnesMax = 24
	riceKMax    = 62

	// RicePadding is the number of bytes that a RiceReader may load after the bits.
	RicePadding = 8
)

// RiceKOfMean returns the best k for numbers of an exponential distribution.
func RiceKOfMean(mean uint64) uint8 { return uint8(min(max(bits.Len64(mean), 1)-1, riceKMax)) }

// RiceK returns the k with the shortest code. lengths counts the numbers by their length in bits.
func RiceK(lengths *[65]int) uint8 {
	best, least := uint8(0), -1
	for k := range riceKMax + 1 {
		if cost := riceCost(lengths, k); least < 0 || cost < least {
			best, least = uint8(k), cost
		}
	}
	return best
}

// riceCost returns about how many bits the numbers take. It assumes that each number is in the
// middle of the range of its length.
func riceCost(lengths *[65]int, k int) int {
	cost := 0
	for length, n := range lengths {
		if n == 0 {
			continue
		}
		ones := riceOnesMax
		if over := length - k; over < 6 { // from 6 on there are 32 ones or more, above riceOnesMax
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

// RiceWriter appends bits, starting at the lowest bit of a byte.
type RiceWriter struct {
	Buf  []byte
	word uint64
	n    uint // bits in word, below 8 between calls
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

// Put appends a number.
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

// End returns all bytes; no Put may follow.
func (w *RiceWriter) End() []byte {
	if w.n > 0 {
		w.Buf = append(w.Buf, byte(w.word))
	}
	return w.Buf
}

// RiceReader reads what RiceWriter wrote.
type RiceReader struct {
	Buf []byte // RicePadding bytes longer than the bits
	At  uint64 // the next bit
}

// windowBits is the least number of valid bits in a window, which may begin at the last bit of
// its first byte.
const windowBits = 57

// window returns the next windowBits, or some more.
func (r *RiceReader) window() uint64 {
	return binary.LittleEndian.Uint64(r.Buf[r.At>>3:]) >> (r.At & 7)
}

// Take reads a number.
func (r *RiceReader) Take(k uint8) uint64 {
	w := r.window()
	ones := uint64(bits.TrailingZeros64(^w))
	if n := ones + 1 + uint64(k); n <= windowBits && ones < riceOnesMax {
		r.At += n
		return ones<<k | w>>(ones+1)&(1<<k-1)
	}
	return r.longRice(ones, k)
}

// TakeTwo reads two numbers. Nearly always both are in one window.
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

// longRice reads a number that is longer than a window and begins with the given ones.
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
