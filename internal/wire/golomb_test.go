package wire

import (
	"math/bits"
	"testing"
)

// Values of any size are read back as they were written, with any parameter.
func TestValues(t *testing.T) {
	for k := range uint(63) {
		var values []uint64
		for size := range 64 {
			values = append(values, 1<<size-1, 1<<size, 1<<size|1<<size>>1)
		}
		var w GolombWriter
		for i, v := range values {
			w.PutValue(v, k)
			w.Put(uint64(i&3), 2)
		}
		wrote := w.Bits()
		w.Flush()
		r := GolombReader{Buf: w.Buf}
		for i, want := range values {
			if v := r.TakeValue(k); v != want || r.Take(2) != uint64(i&3) {
				t.Fatalf("k %d: value %d reads %d", k, want, v)
			}
		}
		if r.At != wrote || r.Past {
			t.Errorf("k %d: read to bit %d, past the end: %v; wrote %d", k, r.At, r.Past, wrote)
		}
		if r.Take(64); !r.Past {
			t.Errorf("k %d: 64 bits behind the end", k)
		}
	}
}

// GolombK returns a parameter that needs no more bits than its two neighbours.
func TestK(t *testing.T) {
	for size := 1; size < 60; size++ {
		var sizes [65]int
		length := func(k uint) int {
			var w GolombWriter
			for i := range uint64(64) {
				v := uint64(1)<<(size-1) | i<<size>>7
				w.PutValue(v, k)
			}
			return w.Bits()
		}
		for i := range uint64(64) {
			sizes[bits.Len64(uint64(1)<<(size-1)|i<<size>>7)]++
		}
		k := GolombK(&sizes)
		for _, other := range []uint{k - min(k, 1), k + 1} {
			if length(k) > length(other) {
				t.Errorf("numbers of %d bits: %d bits with k %d, %d with %d", size, length(k), k, length(other), other)
			}
		}
	}
}

func TestZigzag(t *testing.T) {
	for want, v := range []int64{0, -1, 1, -2, 2} {
		if got := Zigzag(v); got != uint64(want) || Unzigzag(got) != v {
			t.Errorf("%d is %d, and back %d", v, got, Unzigzag(got))
		}
	}
	for _, v := range []int64{-1 << 63, 1<<63 - 1} {
		if got := Unzigzag(Zigzag(v)); got != v {
			t.Errorf("%d is %d", v, got)
		}
	}
}

// TakeValue decodes arbitrary bytes without a panic, and always advances until it is past their
// end.
func FuzzTakeValue(f *testing.F) {
	f.Add([]byte{0x80, 0, 0, 0, 0, 0, 0, 0, 0, 1}, uint8(3))
	f.Add(make([]byte, 20), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, k uint8) {
		r := GolombReader{Buf: b}
		for !r.Past {
			at := r.At
			if r.TakeValue(uint(k % 63)); r.At <= at {
				t.Fatalf("stands at bit %d", at)
			}
		}
	})
}
