package source

import "errors"

// truncated is what a runner remembers of a queue that ended below a shard.
//
// Such a queue lost messages that were counted, or its broker was behind for a moment. In a queue
// that lost them, the next messages get positions that shards have passed. Once it has grown past
// the shards again, its end no longer shows that. The marks of the shards do, unless the messages that
// they are of are gone. So the partition stays stalled, unless
//
//   - the partition was sought; or
//   - the message of a mark, at that end or above, is still there, with its time. Then the broker was
//     behind: a queue that is truncated at that end has another message in its place, or none.
//
// That the shards have moved shows nothing: a batch whose call timed out may be applied late, and a
// shard may be restored.
//
// Invariant: end is the highest that was seen below a shard. A message that is at end or above and
// still there thus speaks against all of them.
type truncated struct {
	why error // nil for none
	end Position
}

// remember remembers a queue that ended below a shard, if err says so.
func (s *session) remember(err error) {
	stalled, is := errors.AsType[*StalledError](err)
	if !is || !stalled.Truncated || !stalled.End.Less(s.high) {
		return
	}
	s.truncated = truncated{err, higher(stalled.End, s.truncated.end)}
}

// recall returns why the partition stays stalled, if the queue ended below a shard before. there is
// the position of a mark whose message is still there.
func (s *session) recall(there Position) error {
	if t := s.truncated; t.why != nil && (there == Position{} || there.Less(t.end)) {
		return Stalled("%s; it has grown since: seek to where it was truncated, %s or below, or pause and resume to go on at %s without what stands below", t.why, t.end, s.high)
	}
	s.truncated = truncated{}
	return nil
}
