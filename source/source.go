// Package source reads queues into counters. It owns the configurations of sources, the decoders of
// messages, and the runner that reads one partition. Most of its subpackages implement one broker
// each. A sink.Sink applies the ops that the runner reads, so this package knows nothing of shards.
//
// Invariant: a position passes a message only if the Sink has applied its ops, the broker has
// acknowledged its dead letter, or the configuration skips bad messages. Only an operator can move
// a position otherwise, by a seek or by a restore of a shard.
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

// Mark distinguishes a message from another one that takes its position later.
type Mark = sink.Mark

// Message is one message of a queue.
type Message struct {
	Position Position
	Value    []byte
	Time     time.Time // time when the message was written; zero if unknown
	// Key distinguishes the message from others with the same Position and Time. Value does too,
	// unless Derived is set.
	Key     []byte
	Derived bool // a second read of the message may return a Value with another spelling
}

// Letter is a dead letter: a message that could not be applied, or one op of it.
type Letter struct {
	Source    string
	Partition uint32
	Position  Position
	Reason    string
	Op        string // the refused op as JSON; empty if the whole message was refused
	Value     []byte // the message

	again  int    // number of earlier dead letters for an equal op of the same message
	number uint64 // number of the source
	queue  string // identity of the queue
	mark   Mark   // mark of the message
}

// ID returns a name of the letter that is unique within a source and its queue.
func (l *Letter) ID() string {
	if l.Op == "" {
		return l.place()
	}
	return fmt.Sprintf("%s/%d/%s", l.place(), l.again, l.Op)
}

func (l *Letter) place() string {
	return fmt.Sprintf("%s/%d/%s", l.Source, l.Partition, l.Position)
}

// Key returns a name by which a broker can recognise a letter that is written twice. Unlike an ID,
// it differs for another message at the same position. There is such a message if a later source
// has the same name, or if the queue was created again or lost messages. A key has less than 200
// bytes.
func (l *Letter) Key() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %q %s", l.number, l.mark.Sum, l.queue, l.ID()))
	return fmt.Sprintf("%s/%x", l.place(), sum[:8])
}

// countAgain sets Letter.again: it numbers the letters for equal ops of one message, so that these
// letters have different IDs.
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
	// Identity returns a text that changes if the queue is created again.
	Identity(ctx context.Context) (string, error)
	// Partitions returns the numbers of the queue's partitions.
	Partitions(ctx context.Context) ([]uint32, error)
	// Bounds returns the position of the first retained message, and the position after the last
	// message.
	Bounds(ctx context.Context, partition uint32) (first, end Position, err error)
	// Read returns a Reader that begins at position from. It returns a *StalledError if a message
	// at or above that position is gone. found is the mark of a message that Again has found in the
	// queue, or the zero Mark.
	Read(ctx context.Context, partition uint32, from Position, found Mark) (Reader, error)
	// Again reads a range of positions a second time, and returns the messages that the queue now
	// has in it. The call may take long, so it calls the function progress whenever it makes
	// progress.
	Again(ctx context.Context, partition uint32, from, to Position, progress func()) (Again, error)
	// DeadLetter writes letters to the queue of dead letters, and waits until the broker has
	// acknowledged them.
	DeadLetter(ctx context.Context, letters []Letter) error
	// Denied reports whether an error of the Broker or a Reader means that the broker refuses the
	// user or a request. It reports false for a reason that may disappear by itself.
	Denied(err error) bool
	Close() error
}

// A LetterQueue is a Broker that can check its queue of dead letters.
type LetterQueue interface {
	// CheckLetters returns a *StalledError if the queue of dead letters is missing, unless a write
	// of a letter would create it.
	CheckLetters(ctx context.Context) error
}

// Fetched is a result of Reader.Next.
type Fetched struct {
	Messages []Message // in order; the caller owns them
	Next     Position  // the Reader has returned all messages below Next
	Left     int64     // number of messages at or above Next, if positions do not show it; -1 if unknown
	Silent   bool      // the broker has not answered an earlier request of the Reader
}

// Again holds the messages that a queue now has between two positions that were read before.
type Again struct {
	Messages []Message // messages at or above the first position and below the second; at most two
	// Whole is false if retention or a user may have removed the first message. Such a message is
	// not lost.
	Whole bool
}

// A Reader reads one partition in order. Commit may be called during Next.
type Reader interface {
	// Next waits a while for messages. It returns at most limit messages, and at most about
	// FetchBytesMax. It returns a *StalledError if messages were lost before they were read, or if
	// the queue was replaced.
	Next(ctx context.Context, limit int) (Fetched, error)
	// Commit tells the broker that all messages below p are handled. A source never starts at the
	// committed position, and uses it only to notice lost messages.
	Commit(ctx context.Context, p Position) error
	Close() error
}

// StalledError is returned when only an operator can decide how to continue.
type StalledError struct {
	Reason string
	Next   Position // if messages are gone, the position of the first remaining message
	// Replaced is set if the queue has other messages in the place of messages that were read.
	Replaced bool
	// Truncated is set if the queue now ends at End, below messages that were read.
	Truncated bool
	End       Position
}

func (e *StalledError) Error() string { return e.Reason }

// Stalled returns a *StalledError.
func Stalled(format string, args ...any) error {
	return &StalledError{Reason: fmt.Sprintf(format, args...)}
}

// Lost returns a *StalledError for messages that are gone. firstLeft is the position of the first
// remaining message.
func Lost(firstLeft Position, format string, args ...any) error {
	return &StalledError{Reason: fmt.Sprintf(format, args...), Next: firstLeft}
}

// Replaced returns a *StalledError for a queue that has other messages in the place of those that were read.
func Replaced(format string, args ...any) error {
	return &StalledError{Reason: fmt.Sprintf(format, args...) + ": the queue lost messages and has others in their place", Replaced: true}
}

// Truncated returns a *StalledError for a queue that now ends below messages that were read.
func Truncated(end Position, format string, args ...any) error {
	return &StalledError{Reason: fmt.Sprintf(format, args...), Truncated: true, End: end}
}
