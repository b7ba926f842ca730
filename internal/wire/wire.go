// Package wire owns the encoding of small values: numbers and byte strings of messages, log entries
// and snapshots; codes that store mostly small numbers in few bits; a hash of numbers; and the
// forms of names. It owns no connection and knows no message format.
//
// A Reader accepts any bytes. Invariant: after the first invalid value, every read returns zero, so
// that a caller has to check for an error only once, at the end.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrBadMessage is returned for bytes that no node of this version would send as a message.
var ErrBadMessage = errors.New("not a message of this version")

// Reader reads one message. After the first invalid value, every read returns zero.
type Reader struct {
	Rest []byte // bytes that are not read yet
	Err  error  // the error for the first invalid value
}

// Fail records an error, unless one is recorded already.
func (r *Reader) Fail(what string) {
	if r.Err == nil {
		r.Err = fmt.Errorf("%w: %s with %d bytes left", ErrBadMessage, what, len(r.Rest))
	}
	r.Rest = nil
}

// Uint reads a uvarint.
func (r *Reader) Uint() uint64 {
	v, n := binary.Uvarint(r.Rest)
	if n <= 0 {
		r.Fail("a number")
		return 0
	}
	r.Rest = r.Rest[n:]
	return v
}

// Int reads a zigzag varint.
func (r *Reader) Int() int64 {
	v, n := binary.Varint(r.Rest)
	if n <= 0 {
		r.Fail("a signed number")
		return 0
	}
	r.Rest = r.Rest[n:]
	return v
}

// UintTo reads a uvarint that is at most bound.
func (r *Reader) UintTo(bound uint64) uint64 {
	v := r.Uint()
	if v > bound {
		r.Fail(fmt.Sprintf("%d, above %d,", v, bound))
		return 0
	}
	return v
}

// Count reads the number of elements that follow. It accepts no more elements than fit into the
// rest of the message, at size bytes or more each.
func (r *Reader) Count(size int) int {
	n := r.Uint()
	if n > uint64(len(r.Rest)/size) {
		r.Fail(fmt.Sprintf("%d things", n))
		return 0
	}
	return int(n)
}

// CountTo is like Count, but accepts at most bound elements.
func (r *Reader) CountTo(size, bound int) int {
	n := r.Count(size)
	if n > bound {
		r.Fail("too many elements")
		return 0
	}
	return n
}

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if b := r.Take(1); len(b) > 0 {
		return b[0]
	}
	return 0
}

// Bool reads a bool that was written as Bit.
func (r *Reader) Bool() bool {
	b := r.Byte()
	if b > 1 {
		r.Fail("a bit")
	}
	return b == 1
}

// Bytes reads a length and returns that many bytes. The result aliases the message.
func (r *Reader) Bytes() []byte { return r.Take(r.Uint()) }

// Take returns the next n bytes of the message. The result aliases the message.
func (r *Reader) Take(n uint64) []byte {
	if n > uint64(len(r.Rest)) {
		r.Fail(fmt.Sprintf("%d bytes", n))
		return nil
	}
	b := r.Rest[:n:n]
	r.Rest = r.Rest[n:]
	return b
}

// Fixed64 reads 8 bytes, little-endian.
func (r *Reader) Fixed64() uint64 {
	if b := r.Take(8); len(b) > 0 {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Fixed32 reads 4 bytes, little-endian.
func (r *Reader) Fixed32() uint32 {
	if b := r.Take(4); len(b) > 0 {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// End returns the first error. Unread bytes are an error too.
func (r *Reader) End() error {
	if r.Err == nil && len(r.Rest) > 0 {
		r.Fail("an end")
	}
	return r.Err
}

// Bit returns the byte for a bool in a message: 1 for true or 0 for false.
func Bit(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// AppendBytes appends the length of b, and then b.
func AppendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}
