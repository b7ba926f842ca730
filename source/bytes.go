package source

import (
	"iter"
	"sync/atomic"
)

const (
	// FetchBytesMax is how many bytes of messages Next returns, before the last one of them. A batch has
	// no more either, so that a reader holds a few times as much, whatever the messages are.
	FetchBytesMax = 8 << 20
	// MessageBytesMax is up to what a message is certain to be read. A reader may stall at a larger one.
	MessageBytesMax = 32 << 20
)

// Bytes returns the size of the messages.
func (f *Fetched) Bytes() (n int) {
	for i := range f.Messages {
		n += len(f.Messages[i].Key) + len(f.Messages[i].Value)
	}
	return n
}

// Buffered bounds the bytes of messages that one goroutine has received, and another has not taken yet.
type Buffered struct {
	bytes atomic.Int64
	freed chan struct{} // has room for one signal
}

// NewBuffered returns a Buffered without messages.
func NewBuffered() *Buffered { return &Buffered{freed: make(chan struct{}, 1)} }

// Add adds a message. It waits while FetchBytesMax are there already; it returns false if ended is
// closed before. Only one goroutine calls it.
func (b *Buffered) Add(bytes int, ended <-chan struct{}) bool {
	for b.bytes.Load() >= FetchBytesMax {
		select {
		case <-b.freed:
		case <-ended:
			return false
		}
	}
	b.bytes.Add(int64(bytes))
	return true
}

// Bytes returns how many are there.
func (b *Buffered) Bytes() int { return int(b.bytes.Load()) }

// Remove removes a message that was taken.
func (b *Buffered) Remove(bytes int) {
	b.bytes.Add(-int64(bytes))
	select {
	case b.freed <- struct{}{}:
	default:
	}
}

// LetterBatches returns letters in parts that have bytesMax at most, or one letter. Many letters may
// be of one message, which is in each of them.
func LetterBatches(letters []Letter, bytesMax int) iter.Seq[[]Letter] {
	return func(yield func([]Letter) bool) {
		for len(letters) > 0 {
			n, bytes := 1, letters[0].bytes()
			for ; n < len(letters) && bytes+letters[n].bytes() <= bytesMax; n++ {
				bytes += letters[n].bytes()
			}
			if !yield(letters[:n]) {
				return
			}
			letters = letters[n:]
		}
	}
}

func (l *Letter) bytes() int { return len(l.Value) + len(l.Op) + len(l.Reason) }
