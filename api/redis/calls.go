package redis

import (
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

const (
	// feedRows is the weight of a command that reads a user's feed, in rows read together:
	// about the number of followees. A hundred such commands are as much as one poll of the
	// HTTP API may request.
	feedRows = rowsMax / unread.PollUsersMax
	// pollsKept is the number of lists of channels and dots for which memory is kept.
	pollsKept = 8
)

// calls is the part of a batch that package unread answers, because it joins several keyspaces,
// and the reads of sets of members. Its reads run with the batch's reads, its writes last. plan
// executes the batch first if a command must see the effects of planned commands.
type calls struct {
	polls  []pollCall
	polled []polled // users of the polls, one for each in a reply
	reads  []call
	writes []call
}

// call is one command.
type call struct {
	read  func(opt *shard.ReadOptions) error // for a read
	of    *table                             // for a read of sets: their keyspace
	write func(w *shard.Write) error         // for a write
	about subject                            // for a write
	id    shard.RequestID                    // for a write that is to count once
	err   error
	reply func(dst []byte, resp3 bool) []byte // if there was no error
}

// subject is what a write changes. Writes to one subject keep their order. So do writes of
// different kinds, because the result of one may depend on the other: a position on its channel,
// a feed on outboxes.
type subject struct {
	kind subjectKind
	id   uint64 // of the user or author; 0 for ofAll
	name string // of the channel or dot; "" for a feed and an outbox
}

type subjectKind uint8

const (
	ofAll    subjectKind = iota // a channel or a dot
	ofUser                      // a user's position in one, or a user's feed
	ofAuthor                    // an author's outbox
)

// isJoined reports whether a read of unread numbers may read the keyspace.
func isJoined(ks *shard.Keyspace) bool {
	return ks.Kind != shard.KindCounters || ks.Name == unread.PostsKeyspace
}

// appendCall appends the reply of a call.
func (b *batch) appendCall(dst []byte, q *call) []byte {
	if q.err != nil {
		return b.appendFailure(dst, q.err)
	}
	return q.reply(dst, b.conn.resp3)
}

// reset clears the calls and their results.
func (q *calls) reset() {
	clear(q.reads)
	clear(q.writes)
	q.reads, q.writes, q.polled = q.reads[:0], q.writes[:0], q.polled[:0]
	if q.polls = q.polls[:0]; cap(q.polls) > pollsKept {
		q.polls = nil
	}
}

// pollCall joins the polls of a pipeline for the same channels and dots into one poll.
type pollCall struct {
	poll unread.Poll
	err  error
}

// polled is one user of one poll, by their indexes.
type polled struct{ poll, user int }
