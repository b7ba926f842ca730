package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The bodies of calls between nodes are sequences of uvarints, zigzag varints
// and byte strings behind their length. A node trusts no byte of them: a reader
// that runs past the end, or finds a bound exceeded, fails for good.

// errBadCall is returned for a request or an answer that no node of this version
// makes.
var errBadCall = errors.New("not a message of this version")

// wireReader reads one message. After the first mistake every read returns zero
// and err says what it was.
type wireReader struct {
	rest []byte
	err  error
}

func (r *wireReader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s with %d bytes left", errBadCall, what, len(r.rest))
	}
	r.rest = nil
}

func (r *wireReader) uint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail("a number")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *wireReader) int() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.fail("a signed number")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// uintTo reads a number that is at most bound.
func (r *wireReader) uintTo(bound uint64) uint64 {
	v := r.uint()
	if v > bound {
		r.fail(fmt.Sprintf("%d, above %d,", v, bound))
		return 0
	}
	return v
}

// count reads how many things follow that take at least size bytes each.
func (r *wireReader) count(size int) int {
	n := r.uint()
	if n > uint64(len(r.rest)/size) {
		r.fail(fmt.Sprintf("%d things", n))
		return 0
	}
	return int(n)
}

// groups reads how many groups follow that take at least size bytes each.
func (r *wireReader) groups(size int) int {
	n := r.count(size)
	if n > groupsMax {
		r.fail("too many groups")
		return 0
	}
	return n
}

// bytes returns a byte string inside the message.
func (r *wireReader) bytes() []byte {
	n := r.count(1)
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *wireReader) fixed64() uint64 {
	if len(r.rest) < 8 {
		r.fail("8 bytes")
		return 0
	}
	v := binary.LittleEndian.Uint64(r.rest)
	r.rest = r.rest[8:]
	return v
}

// end returns the first mistake, or that there are bytes behind the message.
func (r *wireReader) end() error {
	if r.err == nil && len(r.rest) > 0 {
		r.fail("an end")
	}
	return r.err
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// error reads what appendCallError wrote; nil when there was none. The reader's
// own mistakes are not returned here.
func (r *wireReader) error() error {
	told, rest, err := parseCallError(r.rest)
	if err != nil {
		r.fail("an error")
		return nil
	}
	r.rest = rest
	if told == nil {
		return nil
	}
	return told
}
