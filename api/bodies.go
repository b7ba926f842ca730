package api

import (
	"sync/atomic"
)

const (
	// smallBodyBytesMax is how much of a body fasthttp reads before it calls the handler.
	// The number of connections bounds such bodies.
	smallBodyBytesMax = 8 << 10
	// discardBytesMax is how much of a refused body is read and dropped so that the
	// connection can be reused: a batch of 10,000 ops. For a longer body the connection is
	// closed.
	discardBytesMax = 512 << 10
	// lengthUntold is fasthttp's ContentLength of a request without a body.
	lengthUntold = -2
)

// bodies bounds the memory of the bodies that are being read or served, all but
// the small ones.
type bodies struct {
	bytesMax int64
	bytes    atomic.Int64
}

// take reserves n bytes and reports whether there was room.
func (b *bodies) take(n int) bool {
	if b.bytes.Add(int64(n)) <= b.bytesMax {
		return true
	}
	b.give(n)
	return false
}

// fits reports whether there is room for n more bytes.
func (b *bodies) fits(n int) bool { return b.bytes.Load()+int64(n) <= b.bytesMax }

func (b *bodies) give(n int) { b.bytes.Add(-int64(n)) }

// isSmall reports whether a body of n bytes, below 0 for in chunks, is there
// when the handler is called.
func isSmall(n int) bool { return n >= 0 && n <= smallBodyBytesMax }
