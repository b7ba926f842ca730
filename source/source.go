// Package source reads queues into counters. It owns the configurations of sources, the decoders of messages,
// and the runner that reads one partition. Each package below it knows one broker. A sink.Sink applies what
// the runner reads, so this package knows nothing of shards.
//
// Invariant: a position passes a message only after the Sink has applied the message's ops, after
// the broker has acknowledged its dead letter, or because the configuration skips bad messages.
// Nothing else in this package moves a position. Only an operator can: by a seek, or by a restore
// of a shard.
package source

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/countd/countd/source/sink"
)

// Position is a place in a partition. All messages below it have been handled.
type Position = sink.Position

// Mark distinguishes a message from one that takes its position later.
type Mark = sink.Mark

// Message is one message of a queue.
type Message struct {
	Position Position
	Value    []byte
	Time     time.Time // when the message was written; zero if the broker does not know
	// Key distinguishes the message from others with its Position and Time. So does Value, unless
	// Derived is set.
	Key     []byte
	Derived bool // the broker may spell Value differently when it returns the message again
}

// Letter is a message that could not be applied.
type Letter struct {
	Source    string
	Partition uint32
	Position  Position
	Reason    string
	Op        string // the refused op as JSON; empty if the whole message was refused
	Value     []byte // the message

	again  int    // number of earlier letters with the same op of the same message
	number uint64 // of the source
	queue  string // the identity of the queue
	mark   Mark   // of the message
}

// ID returns a name that is unique among the letters that a source has for a queue.
func (l *Letter) ID() string {
	if l.Op == "" {
		return l.place()
	}
	return fmt.Sprintf("%s/%d/%s", l.place(), l.again, l.Op)
}

func (l *Letter) place() string {
	return fmt.Sprintf("%s/%d/%s", l.Source, l.Partition, l.Position)
}

// Key returns a name by which a broker can drop a letter that was written twice. Another message
// at the same position has another key. Such a message belongs to another source with the name, or
// to a queue that was created anew or lost messages. A key has less than 200 bytes.
func (l *Letter) Key() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %q %s", l.number, l.mark.Sum, l.queue, l.ID()))
	return fmt.Sprintf("%s/%x", l.place(), sum[:8])
}

// countAgain sets again, so that letters of equal ops of one message have different IDs.
func countAgain(letters []Letter) {
	seen := map[string]int{}
	for i := range letters {
		l := &letters[i]
		id := l.ID()
		l.again = seen[id]
		seen[id]++
	}
}

// A Broker is a connection to a queue. It is safe for concurrent use.
type Broker interface {
	// Identity returns a text that changes if the queue is created anew.
	Identity(ctx context.Context) (string, error)
	// Partitions returns the numbers of the queue's partitions.
	Partitions(ctx context.Context) ([]uint32, error)
	// Bounds returns the position of the first retained message and the position of the next message.
	Bounds(ctx context.Context, partition uint32) (first, end Position, err error)
	// Read returns a Reader that begins at position from. It returns a *StalledError if a message
	// at or above that position is gone. found is the mark of a message that the queue still had a
	// moment ago, or the zero Mark.
	Read(ctx context.Context, partition uint32, from Position, found Mark) (Reader, error)
	// Again returns the messages that the queue now has between two passed positions. It calls
	// progress whenever it makes progress, because it may take long.
	Again(ctx context.Context, partition uint32, from, to Position, progress func()) (Again, error)
	// DeadLetter writes letters, and waits until the broker has acknowledged them.
	DeadLetter(ctx context.Context, letters []Letter) error
	// Denied reports whether an error of the Broker or a Reader means that the broker refuses the
	// user or a request. It reports false for a reason that passes by itself.
	Denied(err error) bool
	Close() error
}

// A LetterQueue is a Broker that needs an existing queue for its dead letters.
type LetterQueue interface {
	// CheckLetters returns a *StalledError if the queue of the dead letters is missing and writing a letter
	// would not create it.
	CheckLetters(ctx context.Context) error
}

// Fetched is what a Reader returned.
type Fetched struct {
	Messages []Message // in order; the caller owns them
	Next     Position  // the Reader has returned all messages below it
	Left     int64     // number of messages at or above Next, if positions do not show it; -1 if unknown
}

// Again holds the messages that a queue now has between two passed positions.
type Again struct {
	Messages []Message // at or above the first position and below the second; two at most
	// Whole is set unless the queue may have removed the first message without a loss: by retention, or because
	// somebody deleted it.
	Whole bool
}

// A Reader reads one partition in order. Commit may be called during Next.
type Reader interface {
	// Next waits a while for messages. It returns at most limit messages and about FetchBytesMax.
	// It returns a *StalledError if messages were lost before they were read, or if the queue was
	// replaced.
	Next(ctx context.Context, limit int) (Fetched, error)
	// Commit tells the broker that all messages below p are handled. Countd never begins there; it
	// only uses it to notice lost messages.
	Commit(ctx context.Context, p Position) error
	Close() error
}

// StalledError is returned when only an operator can decide how to continue.
type StalledError struct {
	Reason string
	Next   Position // if messages are gone: the position of the first one left
	// Truncated is set if the queue ends, at End, below messages that were read.
	Truncated bool
	End       Position
}

func (e *StalledError) Error() string { return e.Reason }

// Stalled returns a *StalledError.
func Stalled(format string, args ...any) error {
	return &StalledError{Reason: fmt.Sprintf(format, args...)}
}

// Lost returns a *StalledError for messages that are gone. next is the position of the first
// message that is left.
func Lost(next Position, format string, args ...any) error {
	return &StalledError{Reason: fmt.Sprintf(format, args...), Next: next}
}

// Truncated returns a *StalledError for a queue whose end is now below messages that were read.
func Truncated(end Position, format string, args ...any) error {
	return &StalledError{Reason: fmt.Sprintf(format, args...), Truncated: true, End: end}
}
