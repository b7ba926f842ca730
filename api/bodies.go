package api

import (
	"sync/atomic"
)

const (
	// smallBodyBytesMax is how much of a body fasthttp reads before it calls the handler. The bound
	// on connections also bounds the memory of such bodies.
	smallBodyBytesMax = 8 << 10
	// discardBytesMax is how much of a refused body the server reads and drops to reuse the
	// connection: the size of a batch of 10,000 ops. It closes the connection of a longer body.
	discardBytesMax = 512 << 10
	// lengthOfNone is fasthttp's ContentLength of a request without a body.
	lengthOfNone = -2
)

// bodies bounds the memory of the bodies that are being read or served, except the small ones.
type bodies struct {
	bytesMax int64
	bytes    atomic.Int64
}

// acquire reserves n bytes, or returns false if they are not free.
func (b *bodies) acquire(n int) bool {
	if b.bytes.Add(int64(n)) <= b.bytesMax {
		return true
	}
	b.release(n)
	return false
}

// fits reports whether n more bytes are free.
func (b *bodies) fits(n int) bool { return b.bytes.Load()+int64(n) <= b.bytesMax }

func (b *bodies) release(n int) { b.bytes.Add(-int64(n)) }

// isSmall reports whether a body of n bytes has arrived when fasthttp calls the handler. n is
// below 0 for a body in chunks.
func isSmall(n int) bool { return n >= 0 && n <= smallBodyBytesMax }
