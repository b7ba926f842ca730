package source

import (
	"context"
	"crypto/sha256"
	"errors"
)

// truncated is what a runner remembers of a queue that ended below a shard.
//
// Such a queue lost messages that were counted, or its broker was behind for a moment. In a queue
// that lost them, the next messages get positions that shards have passed. Once it has grown past
// the shards again, its end no longer shows that. So the partition stays stalled, unless
//
//   - the partition was sought; or
//   - a message that was counted, at that end or above, is still there. Then the broker was behind: a
//     queue that is truncated at that end has another message in its place, or none.
//
// That the shards have moved shows nothing: a batch whose call timed out may be applied late, and a
// shard may be restored.
//
// Invariant: end is the highest that was seen below a shard. A message that is at end or above and
// still there thus speaks against all of them.
type truncated struct {
	why   error // nil for none
	end   Position
	start Position // that was recorded then; a seek records another
}

// mark tells a message from another that is written at its position later. Values repeat, so it needs
// a time too, other than the one in the position of a Redis entry. A producer may set the time of Kafka's
// messages, and send one again: there, Read also refuses a position whose leader epoch has diverged.
type mark struct {
	position Position
	nanos    int64 // when it was written, as the broker knows; 0 if it does not
	value    [sha256.Size]byte
}

func markOf(m *Message) mark {
	of := mark{position: m.Position, value: sha256.Sum256(m.Value)}
	if !m.Time.IsZero() && m.Time.UnixMilli() != int64(m.Position.Hi) {
		of.nanos = m.Time.UnixNano()
	}
	return of
}

// remember remembers a queue that ended below a shard, if err says so.
func (s *session) remember(err error) {
	stalled, is := errors.AsType[*StalledError](err)
	if !is || !stalled.Truncated || !stalled.End.Less(s.high) {
		return
	}
	now := truncated{err, stalled.End, s.start}
	if before := s.truncated; before.why != nil && before.start == now.start && now.end.Less(before.end) {
		now.end = before.end
	}
	s.truncated = now
}

// recall returns why the partition stays stalled, if the queue ended below a shard before.
func (s *session) recall(ctx context.Context) error {
	if t := s.truncated; t.why != nil && t.start == s.start && !s.isThere(ctx, t.end) {
		return Stalled("%s; it has grown since: seek to where it was truncated, %s or below, or pause and resume to go on at %s without what stands below", t.why, t.end, s.high)
	}
	s.truncated = truncated{}
	return nil
}

// isThere reports whether the last message that this runner applied is at end or above, and still
// in the queue.
func (s *session) isThere(ctx context.Context, end Position) bool {
	if s.last.nanos == 0 || s.last.position.Less(end) {
		return false
	}
	r, err := s.cfg.Broker.Read(ctx, s.cfg.Partition, s.last.position)
	if err != nil {
		return false // the next session asks again
	}
	defer r.Close()
	for {
		got, err := r.Next(ctx, 1)
		if err != nil {
			return false
		}
		if len(got.Messages) > 0 {
			return markOf(&got.Messages[0]) == s.last
		}
	}
}
