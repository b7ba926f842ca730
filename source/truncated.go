package source

import "errors"

// truncated remembers that a runner saw the queue end below a shard.
//
// Such a queue has lost counted messages, or its broker was behind for a moment. If messages are
// lost, new messages get positions that shards have passed. Once the queue has grown past the
// shards' positions, its end no longer shows the loss. The marks show it, unless retention has
// removed their messages. So the partition stays stalled until
//
//   - an operator seeks it; or
//   - the queue still has the message of a mark at or above end, with the same time. Then the
//     broker was only behind: a queue that was truncated at end would have another message at that
//     position, or none.
//
// A move of the shards does not end the stall: a batch whose call timed out may be applied late,
// and a shard may be restored.
//
// Invariant: end is the highest end that the runner saw below a shard, so a message at or above end
// disproves all truncations that the runner saw.
type truncated struct {
	why error // nil for none
	end Position
}

// remember records a truncation if err reports one.
func (s *session) remember(err error) {
	stalled, is := errors.AsType[*StalledError](err)
	if !is || !stalled.Truncated || !stalled.End.Less(s.high) {
		return
	}
	s.truncated = truncated{err, higher(stalled.End, s.truncated.end)}
}

// recall returns the reason why the partition stays stalled, or nil. marked is the position of a
// mark whose message the queue still has, or zero.
func (s *session) recall(marked Position) error {
	if t := s.truncated; t.why != nil && (marked == Position{} || marked.Less(t.end)) {
		return Stalled("%s; it has grown since: seek to where it was truncated, %s or below; or pause and resume, and each shard goes on at its position without what stands below", t.why, t.end)
	}
	s.truncated = truncated{}
	return nil
}
