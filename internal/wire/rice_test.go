package wire

import (
	"slices"
	"testing"
)

// slowRice reads a code bit by bit, as rice.go describes it.
func slowRice(data []byte, at *uint64, k uint8) uint64 {
	bit := func() uint64 {
		b := uint64(data[*at>>3]>>(*at&7)) & 1
		*at++
		return b
	}
	low := func(n uint8) (v uint64) {
		for i := range n {
			v |= bit() << i
		}
		return v
	}
	ones := uint64(0)
	for ones < riceOnesMax && bit() == 1 {
		ones++
	}
	if ones == riceOnesMax {
		return low(64)
	}
	return ones<<k | low(k)
}

// FuzzRice:
//
//  1. Numbers of any size and any k are read back from any bit on, in pairs as well as one at a
//     time.
//  2. From arbitrary bits, a reader returns the same numbers as slowRice, and does not load bytes
//     beyond RicePadding.
func FuzzRice(f *testing.F) {
	f.Add(uint64(0), uint64(0), uint8(0), uint8(0), uint8(0), []byte{})
	f.Add(^uint64(0), uint64(1)<<62, uint8(62), uint8(62), uint8(7), []byte{0xff, 0xff, 0xff})
	f.Add(uint64(23), uint64(24), uint8(0), uint8(0), uint8(1), slices.Repeat([]byte{0xff}, 30))
	f.Add(uint64(1)<<33, uint64(22)<<34, uint8(33), uint8(34), uint8(5), slices.Repeat([]byte{0xfe}, 30))
	f.Fuzz(func(t *testing.T, a, b uint64, k1, k2, first uint8, noise []byte) {
		k1, k2, first = k1%(riceKMax+1), k2%(riceKMax+1), first%8
		w := RiceWriter{}
		w.bits(0, uint(first))
		w.Put(a, k1)
		w.Put(b, k2)
		ends := uint64(8*len(w.Buf)) + uint64(w.n)
		data := append(w.End(), make([]byte, RicePadding)...)
		r := RiceReader{Buf: data, At: uint64(first)}
		if v, u := r.TakeTwo(k1, k2); v != a || u != b || r.At != ends {
			t.Errorf("%d, %d with %d, %d came back as %d, %d at bit %d of %d", a, b, k1, k2, v, u, r.At, ends)
		}
		// Add enough bytes for two codes of the greatest length, whatever the bits are.
		noise = append(noise, make([]byte, 2*(riceOnesMax+64)/8+1+RicePadding)...)
		slow, fast := uint64(first), RiceReader{Buf: noise, At: uint64(first)}
		want1 := slowRice(noise, &slow, k1)
		want2 := slowRice(noise, &slow, k2)
		if v, u := fast.TakeTwo(k1, k2); v != want1 || u != want2 || fast.At != slow {
			t.Errorf("%x with %d, %d from bit %d: %d, %d up to %d, want %d, %d up to %d", noise, k1, k2, first, v, u, fast.At, want1, want2, slow)
		}
	})
}
