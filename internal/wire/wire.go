// Package wire owns the encoding of small values: numbers and byte strings of messages, log entries
// and snapshots; codes that store mostly small numbers in few bits; a hash of numbers; and the
// forms of names. It owns no connection and knows no message.
//
// A Reader trusts no byte. Invariant: after the first mistake every read returns zero, so a caller
// checks once, at the end.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrBadMessage is returned for a request or an answer that no node of this version
// makes.
var ErrBadMessage = errors.New("not a message of this version")

// Reader reads one message. After the first mistake every read returns zero.
type Reader struct {
	Rest []byte // what is not read yet
	Err  error  // the first mistake
}

// Fail records a mistake, unless there was one before.
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

// Count reads the number of things that follow, each of at least size bytes.
func (r *Reader) Count(size int) int {
	n := r.Uint()
	if n > uint64(len(r.Rest)/size) {
		r.Fail(fmt.Sprintf("%d things", n))
		return 0
	}
	return int(n)
}

// CountTo reads the number of elements that follow, each of at least size bytes. It accepts at most
// bound elements.
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

// Bool reads a Bit.
func (r *Reader) Bool() bool {
	b := r.Byte()
	if b > 1 {
		r.Fail("a bit")
	}
	return b == 1
}

// Bytes returns a byte string inside the message.
func (r *Reader) Bytes() []byte { return r.Take(r.Uint()) }

// Take returns the next n bytes of the message.
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

// End returns the first mistake. Bytes after the message are a mistake, too.
func (r *Reader) End() error {
	if r.Err == nil && len(r.Rest) > 0 {
		r.Fail("an end")
	}
	return r.Err
}

// Bit returns the form of a bool in a message, which Reader.Bool reads: 1 or 0.
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
