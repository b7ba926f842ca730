package wire

import "math/bits"

// GolombWriter appends bits to Buf, starting at the highest bit of a byte.
type GolombWriter struct {
	Buf  []byte
	word uint64 // the low n bits are the last written bits, which are not in Buf yet; the other bits are 0
	n    uint   // number of used bits of word; below 8 between calls
}

// Put appends the low n bits of v, where n is at most 64. The other bits of v must be 0.
func (w *GolombWriter) Put(v uint64, n uint) {
	if n > 56 {
		w.Put(v>>32, n-32)
		v, n = v&(1<<32-1), 32
	}
	w.word = w.word<<n | v
	w.n += n
	for w.n >= 8 {
		w.n -= 8
		w.Buf = append(w.Buf, byte(w.word>>w.n))
	}
	w.word &= 1<<w.n - 1
}

// Flush pads the last byte with zeros.
func (w *GolombWriter) Flush() {
	if w.n > 0 {
		w.Buf = append(w.Buf, byte(w.word<<(8-w.n)))
		w.word, w.n = 0, 0
	}
}

// Bits returns how many bits were written.
func (w *GolombWriter) Bits() int { return 8*len(w.Buf) + int(w.n) }

// GolombReader reads the bits that a GolombWriter wrote. Beyond the end it reads zeros and sets
// Past.
type GolombReader struct {
	Buf  []byte
	At   int  // index of the next bit
	Past bool // set by a read beyond the end
}

// peek returns a word whose highest bit is the next bit. At least 57 bits of the word are valid.
func (r *GolombReader) peek() uint64 {
	i := r.At >> 3
	var w uint64
	if i+8 <= len(r.Buf) {
		b := r.Buf[i : i+8]
		w = uint64(b[7]) | uint64(b[6])<<8 | uint64(b[5])<<16 | uint64(b[4])<<24 |
			uint64(b[3])<<32 | uint64(b[2])<<40 | uint64(b[1])<<48 | uint64(b[0])<<56
	} else {
		for j := range 8 {
			w <<= 8
			if i+j < len(r.Buf) {
				w |= uint64(r.Buf[i+j])
			}
		}
	}
	return w << (r.At & 7)
}

// Take reads n bits, where n is at most 64.
func (r *GolombReader) Take(n uint) uint64 {
	if n > 56 {
		high := r.Take(n - 32)
		return high<<32 | r.Take(32)
	}
	w := r.peek() >> 1 >> (63 - n)
	r.Skip(int(n))
	return w
}

// Skip skips n bits.
func (r *GolombReader) Skip(n int) {
	r.At += n
	r.Past = r.Past || r.At > 8*len(r.Buf)
}

// PutValue and TakeValue use an exponential Golomb code (Teuhola, 1978) with a parameter k. The
// code of v is based on q = (v >> k) + 1. If q has b bits, the code is b-1 zeros, q, and the k low
// bits of v. It suits both gaps between ids and counts, because their distributions have a peak and
// a long tail. For both, the code is within a tenth of the entropy. No value takes more than 127
// bits.

// PutValue appends the code of v. v>>k must not be 2^64-1.
func (w *GolombWriter) PutValue(v uint64, k uint) {
	q := v>>k + 1
	b := uint(bits.Len64(q))
	w.Put(0, b-1)
	w.Put(q, b)
	w.Put(v&(1<<k-1), k)
}

// TakeValue reads a code and returns its value.
func (r *GolombReader) TakeValue(k uint) uint64 {
	w := r.peek()
	zeros := uint(bits.LeadingZeros64(w))
	if n := 2*zeros + 1 + k; n <= 56 {
		w = w << zeros >> 1 >> (62 - zeros - k)
		r.Skip(int(n))
		return w - 1<<k
	}
	return r.takeLong(k)
}

func (r *GolombReader) takeLong(k uint) uint64 {
	zeros := uint(0)
	for r.Take(1) == 0 {
		if zeros++; zeros > 63 || r.Past {
			r.Past = true
			return 0
		}
	}
	q := 1<<zeros | r.Take(zeros)
	return (q-1)<<k | r.Take(k)
}

// GolombK returns a nearly optimal k for a list of values. sizes[n] is the number of values with a
// length of n bits.
func GolombK(sizes *[65]int) uint {
	best, bestCost := 0, -1
	for k := range 63 {
		cost := 0 // unit: half a bit
		for size, n := range sizes {
			if size <= k {
				cost += n * 2 * (1 + k)
			} else {
				// If v>>k is all ones, q has one bit more, and the code takes two bits more. Of the
				// values for which v>>k has b bits, this is so for one in 2^(b-1).
				cost += n * (2*(2*(size-k)-1+k) + 4>>(size-k-1))
			}
		}
		if bestCost < 0 || cost < bestCost {
			best, bestCost = k, cost
		}
	}
	return uint(best)
}

// Zigzag maps numbers near 0 to small unsigned numbers: 0, -1, 1, -2, 2 to 0, 1, 2, 3, 4.
func Zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

// Unzigzag is the inverse of Zigzag.
func Unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }
