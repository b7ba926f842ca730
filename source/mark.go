package source

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/source/sink"
)

// marksMax bounds the marks that a session compares. If retention has removed the messages of the
// highest marks, it has probably removed those of lower marks too.
const marksMax = 8

// MarkOf returns the mark of a message.
func MarkOf(m *Message) sink.Mark {
	h := sha256.New()
	var head [16]byte
	if !m.Time.IsZero() {
		binary.LittleEndian.PutUint64(head[:], uint64(m.Time.UnixNano()))
	}
	binary.LittleEndian.PutUint64(head[8:], uint64(len(m.Key)))
	_, _ = h.Write(head[:]) // a hash never returns an error
	_, _ = h.Write(m.Key)
	if !m.Derived {
		_, _ = h.Write(m.Value)
	}
	var sum [sha256.Size]byte
	return sink.Mark{Position: m.Position, Sum: max(1, binary.LittleEndian.Uint64(h.Sum(sum[:0])))}
}

// marks returns the value of sink.Batch.Mark for a batch with these messages.
func (s *session) marks(messages []Message) func(below Position) sink.Mark {
	return func(below Position) sink.Mark {
		if n := firstFrom(messages, below); n > 0 {
			return MarkOf(&messages[n-1])
		}
		return s.last
	}
}

// verify compares the marks of the shards with the queue, from the highest mark down; see
// DESIGN.md. It returns a *StalledError if the queue has other messages in the place of those that
// shards have passed. If the queue still has the message of a mark, and that message has a time,
// verify returns the message's position in the result there. The time would show that the message
// is not another one at the same position.
func (s *session) verify(ctx context.Context, shards []sink.ShardPosition) (there Position, err error) {
	shards = slices.DeleteFunc(slices.Clone(shards), func(p sink.ShardPosition) bool { return !p.Known || !p.Mark.Exists() })
	slices.SortFunc(shards, func(a, b sink.ShardPosition) int {
		return cmp.Or(b.Position.Compare(a.Position), b.Mark.Position.Compare(a.Mark.Position))
	})
	shards = slices.CompactFunc(shards, func(a, b sink.ShardPosition) bool { return a.Position == b.Position && a.Mark == b.Mark })
	for _, p := range shards[:min(len(shards), marksMax)] {
		got, err := s.again(ctx, p)
		if err != nil {
			return there, s.brokerError("read the last counted message again", err)
		}
		if how := got.Differs(p.Mark); how != "" {
			return there, replaced(p.Mark, p.Position, how)
		}
		if len(got.Messages) > 0 { // the queue still has the marked message, so no message below it was replaced, and no lower mark needs a check
			s.found, s.passed = p.Mark, p.Position
			if m := &got.Messages[0]; dated(m) {
				there = m.Position
			}
			break
		}
	}
	return there, nil
}

// replaced returns the *StalledError for a queue that no longer has the message of a shard's mark.
// passed is the shard's position.
func replaced(mark sink.Mark, passed Position, how string) error {
	return Replaced("message at position %s, the last one counted below position %s, %s", mark.Position, passed, how)
}

// again reads the message of a shard's mark from the queue. It has no time limit while the broker
// makes progress. PostgreSQL may have to read a large transaction, or its whole log since an open
// transaction began.
func (s *session) again(ctx context.Context, p sink.ShardPosition) (Again, error) {
	way := s.seekPast(Position{}, "to go on without comparing it")
	s.status.set(func() {
		s.status.mu.doing = fmt.Sprintf("the message at position %s, the last one counted, is being read again, to compare it; %s", p.Mark.Position, way)
	})
	defer s.status.set(func() { s.status.mu.doing = "" })
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	gotOn := make(chan struct{}, 1)
	go func() { // ends when again returns
		for {
			select {
			case <-gotOn:
			case <-time.After(s.times.silence):
				cancel(fmt.Errorf("it does not get on for %v: %s", s.times.silence, way))
			case <-s.cfg.Ending:
				cancel(errEnding)
			case <-ctx.Done():
			}
			if ctx.Err() != nil {
				return
			}
		}
	}()
	got, err := s.cfg.Broker.Again(ctx, s.cfg.Partition, p.Mark.Position, p.Position, func() {
		select {
		case gotOn <- struct{}{}:
		default:
		}
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return got, err
}

// dated reports whether a message has a time of its own. With Redis, the time is only a part of the
// position.
func dated(m *Message) bool { return !m.Time.IsZero() && m.Time.UnixMilli() != int64(m.Position.Hi) }

// Differs describes how the messages differ from the message with the mark. It returns "" if they
// do not differ, or if the marked message is gone but retention or a delete may have removed it.
func (a *Again) Differs(mark sink.Mark) string {
	same := func(m Message) bool { return MarkOf(&m) == mark }
	at := func(m Message) bool { return m.Position == mark.Position }
	switch between := slices.IndexFunc(a.Messages, func(m Message) bool { return !at(m) }); {
	case slices.ContainsFunc(a.Messages, func(m Message) bool { return at(m) && !same(m) }):
		return "is another one now"
	case between >= 0:
		return "is followed by one at position " + a.Messages[between].Position.String() + ", where there was none"
	case len(a.Messages) == 0 && a.Whole:
		return "is gone, and nobody removed it"
	}
	return ""
}
