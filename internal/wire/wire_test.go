package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// For any bytes:
//
//  1. a reader never reads past them;
//  2. after its first error it returns zero and keeps that error;
//  3. values that are read without an error can be encoded and read again, with the same result.
func FuzzReader(f *testing.F) {
	whole := AppendBytes(binary.AppendVarint(binary.AppendUvarint(nil, 7), -9), []byte("text"))
	f.Add(append(whole, 1, 2, 3, 4, 5, 6, 7, 8), uint64(7))
	f.Add(whole, uint64(6))
	f.Add([]byte{0xff, 0xff}, uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, bound uint64) {
		read := func(b []byte) (u uint64, i int64, text []byte, fixed uint64, err error) {
			r := Reader{Rest: b}
			u, i, text, fixed = r.UintTo(bound), r.Int(), r.Bytes(), r.Fixed64()
			return u, i, text, fixed, r.End()
		}
		u, i, text, fixed, err := read(b)
		if u > bound {
			t.Fatalf("%d is above %d", u, bound)
		}
		if err != nil {
			r := Reader{Rest: b, Err: err}
			r.Fail("again")
			if !errors.Is(err, ErrBadMessage) || r.Err.Error() != err.Error() || r.Uint() != 0 || r.Int() != 0 || r.Count(1) != 0 || len(r.Bytes()) != 0 || r.Fixed64() != 0 {
				t.Fatalf("after %v the reader goes on", err)
			}
			return
		}
		again := AppendBytes(binary.AppendVarint(binary.AppendUvarint(nil, u), i), text)
		again = binary.LittleEndian.AppendUint64(again, fixed)
		if u2, i2, text2, fixed2, err := read(again); err != nil || u2 != u || i2 != i || !bytes.Equal(text2, text) || fixed2 != fixed {
			t.Fatalf("%x is read as %d %d %q %d, then as %d %d %q %d, %v", b, u, i, text, fixed, u2, i2, text2, fixed2, err)
		}
	})
}

// Count refuses a number of elements that cannot fit into the rest of the message.
func TestCountIsBounded(t *testing.T) {
	for _, c := range []struct{ things, size, left, want int }{
		{3, 2, 6, 3}, {3, 2, 5, 0}, {1 << 40, 1, 8, 0}, {0, 8, 0, 0},
	} {
		r := Reader{Rest: append(binary.AppendUvarint(nil, uint64(c.things)), make([]byte, c.left)...)}
		if got := r.Count(c.size); got != c.want || (r.Err != nil) != (c.want == 0 && c.things > 0) {
			t.Errorf("%d things of %d bytes in %d: %d, %v", c.things, c.size, c.left, got, r.Err)
		}
	}
}
