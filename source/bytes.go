package source

import (
	"iter"
	"sync/atomic"
)

const (
	// FetchBytesMax bounds the bytes of a batch, and of the messages that Reader.Next returns.
	// Only the last message may exceed the bound. So a reader needs a few times FetchBytesMax of
	// memory, even for large messages.
	FetchBytesMax = 8 << 20
	// MessageBytesMax is the size up to which every reader can read a message. A reader may stall
	// at a larger message.
	MessageBytesMax = 32 << 20
)

// Bytes returns the size of the messages.
func (f *Fetched) Bytes() (n int) {
	for i := range f.Messages {
		n += len(f.Messages[i].Key) + len(f.Messages[i].Value)
	}
	return n
}

// Buffered bounds the bytes of the messages that one goroutine has received and another one has not
// yet processed.
type Buffered struct {
	bytes atomic.Int64
	freed chan struct{} // capacity 1
}

// NewBuffered returns an empty Buffered.
func NewBuffered() *Buffered { return &Buffered{freed: make(chan struct{}, 1)} }

// Add adds a message of the given size. It waits while the buffered messages have FetchBytesMax
// bytes or more. If the channel ended is closed meanwhile, Add returns false. Only one goroutine
// may call it.
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

// Bytes returns the size of the buffered messages.
func (b *Buffered) Bytes() int { return int(b.bytes.Load()) }

// Remove removes a message of the given size.
func (b *Buffered) Remove(bytes int) {
	b.bytes.Add(-int64(bytes))
	select {
	case b.freed <- struct{}{}:
	default:
	}
}

// LetterBatches splits letters into parts of at most bytesMax. A larger letter is a part of its
// own. Many letters may come from one message, and each letter contains the whole message.
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
