package cold

import "math/bits"

// bitWriter appends bits to buf, the first into the highest bit of a byte.
type bitWriter struct {
	buf  []byte
	word uint64 // the last bits, those not in buf yet; the others are 0
	n    uint   // of them, below 8 between two calls
}

// put appends the low n bits of v, n up to 64. The others must be 0.
func (w *bitWriter) put(v uint64, n uint) {
	if n > 56 {
		w.put(v>>32, n-32)
		v, n = v&(1<<32-1), 32
	}
	w.word = w.word<<n | v
	w.n += n
	for w.n >= 8 {
		w.n -= 8
		w.buf = append(w.buf, byte(w.word>>w.n))
	}
	w.word &= 1<<w.n - 1
}

// flush fills the last byte with zeros.
func (w *bitWriter) flush() {
	if w.n > 0 {
		w.buf = append(w.buf, byte(w.word<<(8-w.n)))
		w.word, w.n = 0, 0
	}
}

// bits is how many were written.
func (w *bitWriter) bits() int { return 8*len(w.buf) + int(w.n) }

// bitReader reads what a bitWriter wrote. Past the end it reads zeros and
// remembers that.
type bitReader struct {
	buf  []byte
	at   int // the next bit
	past bool
}

// peek returns the next 57 bits or more, the first of them highest.
func (r *bitReader) peek() uint64 {
	i := r.at >> 3
	var w uint64
	if i+8 <= len(r.buf) {
		b := r.buf[i : i+8]
		w = uint64(b[7]) | uint64(b[6])<<8 | uint64(b[5])<<16 | uint64(b[4])<<24 |
			uint64(b[3])<<32 | uint64(b[2])<<40 | uint64(b[1])<<48 | uint64(b[0])<<56
	} else {
		for j := range 8 {
			w <<= 8
			if i+j < len(r.buf) {
				w |= uint64(r.buf[i+j])
			}
		}
	}
	return w << (r.at & 7)
}

// take reads n bits, up to 64.
func (r *bitReader) take(n uint) uint64 {
	if n > 56 {
		high := r.take(n - 32)
		return high<<32 | r.take(32)
	}
	w := r.peek() >> 1 >> (63 - n)
	r.skip(int(n))
	return w
}

func (r *bitReader) skip(n int) {
	r.at += n
	r.past = r.past || r.at > 8*len(r.buf)
}

// A value is coded by an exponential Golomb code (Teuhola, 1978) of parameter k:
// with q = (v >> k) + 1 of b bits, b-1 zeros, then q, then the k low bits of v.
// Gaps between ids and counts have a peak and a long tail, for which it is within
// a tenth of their entropy; and no value takes more than 127 bits.

// putGolomb appends v. v>>k must not be 2^64-1.
func (w *bitWriter) putGolomb(v uint64, k uint) {
	q := v>>k + 1
	b := uint(bits.Len64(q))
	w.put(0, b-1)
	w.put(q, b)
	w.put(v&(1<<k-1), k)
}

// takeGolomb reads a value.
func (r *bitReader) takeGolomb(k uint) uint64 {
	w := r.peek()
	zeros := uint(bits.LeadingZeros64(w))
	if n := 2*zeros + 1 + k; n <= 56 {
		w = w << zeros >> 1 >> (62 - zeros - k)
		r.skip(int(n))
		return w - 1<<k
	}
	return r.takeLong(k)
}

func (r *bitReader) takeLong(k uint) uint64 {
	zeros := uint(0)
	for r.take(1) == 0 {
		if zeros++; zeros > 63 || r.past {
			r.past = true
			return 0
		}
	}
	q := 1<<zeros | r.take(zeros)
	return (q-1)<<k | r.take(k)
}

// golombK returns about the best k for values, of which sizes counts those of
// each number of bits.
func golombK(sizes *[65]int) uint {
	best, bestCost := 0, -1
	for k := range 63 {
		cost := 0 // in half bits
		for size, n := range sizes {
			if size <= k {
				cost += n * 2 * (1 + k)
			} else {
				// Half of these get one more bit of q by the 1 that is added.
				cost += n * (2*(2*(size-k)-1+k) + 2)
			}
		}
		if bestCost < 0 || cost < bestCost {
			best, bestCost = k, cost
		}
	}
	return uint(best)
}
