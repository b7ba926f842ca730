// Package source reads queues into counters: configurations, the decoders of messages, and
// the runner that reads one partition. Packages below it know one broker each. It knows
// nothing of shards: a sink.Sink applies what it read.
//
// Invariant: a position passes a message only after the Sink has applied the message's ops,
// or after the broker has acknowledged its dead letter, or because the configuration says
// that bad messages are skipped. Nothing here sets a position back or forth by itself.
package source

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/countd/countd/source/sink"
)

// Position is a place in a partition: everything below it has been handled.
type Position = sink.Position

// Mark tells a message from another that stands at its position later.
type Mark = sink.Mark

// Message is one message of a queue.
type Message struct {
	Position Position
	Value    []byte
	Time     time.Time // when it was written, as the broker knows; zero if it does not
	// Key and, unless it is Derived, Value tell the message from another of its Position and Time.
	Key     []byte
	Derived bool // Value may be spelled in another way when the message is read again
}

// Letter is a message that could not be applied.
type Letter struct {
	Source    string
	Partition uint32
	Position  Position
	Reason    string
	Op        string // as JSON, if the message's other ops were applied; otherwise empty
	Value     []byte // the message

	again  int    // how many of the letters before it have the same op of the same message
	number uint64 // of the source
	queue  string // the identity of the queue
	mark   Mark   // of the message
}

// ID names a letter among those of a source that reads one queue.
func (l *Letter) ID() string {
	if l.Op == "" {
		return l.place()
	}
	return fmt.Sprintf("%s/%d/%s", l.place(), l.again, l.Op)
}

func (l *Letter) place() string {
	return fmt.Sprintf("%s/%d/%s", l.Source, l.Partition, l.Position)
}

// Key names a letter in a queue of dead letters, so that a broker can drop one that was written
// twice. It differs from the letters of other messages that had the position: of another source
// of the name, or of a queue that was made anew or lost messages. It has less than 200 bytes,
// however long the op is.
func (l *Letter) Key() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %q %s", l.number, l.mark.Sum, l.queue, l.ID()))
	return fmt.Sprintf("%s/%x", l.place(), sum[:8])
}

// countAgain tells letters of equal ops of one message apart.
func countAgain(letters []Letter) {
	seen := map[string]int{}
	for i := range letters {
		l := &letters[i]
		id := l.ID()
		l.again = seen[id]
		seen[id]++
	}
}

// A Broker is a connection to a queue. Its methods may be called at once.
type Broker interface {
	// Identity returns a text that differs if the queue was made anew.
	Identity(ctx context.Context) (string, error)
	// Partitions returns the numbers of the queue's partitions.
	Partitions(ctx context.Context) ([]uint32, error)
	// Bounds returns the position of the first message that is retained, and the position of
	// the message that will be written next.
	Bounds(ctx context.Context, partition uint32) (first, end Position, err error)
	// Read returns a reader that begins at from. It returns a *StalledError if a message at or
	// above from is gone. The queue had the message of the mark found a moment ago, the zero Mark for none.
	Read(ctx context.Context, partition uint32, from Position, found Mark) (Reader, error)
	// Again reads what was read before: see Again. It may take long, and calls progress while it gets on.
	Again(ctx context.Context, partition uint32, from, to Position, progress func()) (Again, error)
	// DeadLetter returns once the broker has acknowledged the letters.
	DeadLetter(ctx context.Context, letters []Letter) error
	// Denied reports whether an error of the other methods, or of a Reader, means that the
	// broker does not accept the user, or refuses what the source needs for another reason that does not
	// pass by itself.
	Denied(err error) bool
	Close() error
}

// A LetterQueue is a Broker whose dead letters need a queue that is made before.
type LetterQueue interface {
	// CheckLetters returns a *StalledError if the queue of the dead letters is missing, and writing a
	// dead letter does not make it.
	CheckLetters(ctx context.Context) error
}

// Fetched is what a Reader returned.
type Fetched struct {
	Messages []Message // in order; the caller owns them
	Next     Position  // all below it was returned, or holds no message
	Left     int64     // messages at and above Next, if positions do not count them; -1 if nothing does
}

// Again is what a queue has now between two positions that were passed.
type Again struct {
	Messages []Message // at and above the first position, and below the second; two at most
	// Whole is set unless the queue may have removed the first message without losing others: by
	// retention, or because somebody deleted it.
	Whole bool
}

// A Reader reads one partition, from front to back. Commit may be called during Next.
type Reader interface {
	// Next waits for messages and returns at most limit, and about FetchBytesMax; none if there were
	// none for a while.
	// It returns a *StalledError if a message was lost before it was read, or if the queue is
	// not the one that the reader began with.
	Next(ctx context.Context, limit int) (Fetched, error)
	// Commit tells the broker that all below p is handled. Nothing here reads it back.
	Commit(ctx context.Context, p Position) error
	Close() error
}

// StalledError is returned where only an operator can decide how to go on.
type StalledError struct {
	Reason string
	// Next is set where messages are gone: it is the first that is left.
	Next Position
	// Truncated is set where the queue ends before what was read. It ended at End.
	Truncated bool
	End       Position
}

func (e *StalledError) Error() string { return e.Reason }

// Stalled returns a *StalledError.
func Stalled(format string, args ...any) error {
	return &StalledError{Reason: fmt.Sprintf(format, args...)}
}

// Lost is Stalled for messages that are gone; next is the first that is left.
func Lost(next Position, format string, args ...any) error {
	return &StalledError{Reason: fmt.Sprintf(format, args...), Next: next}
}

// Truncated is Stalled for a queue that ends before what was read; end is where.
func Truncated(end Position, format string, args ...any) error {
	return &StalledError{Reason: fmt.Sprintf(format, args...), Truncated: true, End: end}
}
