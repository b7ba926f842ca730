package redis

import (
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

const (
	// feedRows is the weight, in rows, of a command that reads a user's feed. A hundred such
	// commands are as much as one poll of the HTTP API may request.
	feedRows = rowsMax / unread.PollUsersMax
	// pollsKept is the number of lists of channels and dots for which memory is kept.
	pollsKept = 8
)

// calls is the part of a batch that package unread answers, because it joins several keyspaces. It
// also has the reads of sets of members. Its reads run with the batch's reads, and its writes run
// last. If a command must see the effects of planned commands, plan executes the batch first.
type calls struct {
	polls  []pollCall
	polled []polled // one for each user of a poll in a reply
	reads  []call
	writes []call
}

// call is one command.
type call struct {
	read  func(opt *shard.ReadOptions) error // for a read
	of    *table                             // only for a read of sets: the table of their keyspace
	write func(w *shard.Write) error         // for a write
	about subject                            // for a write
	id    shard.RequestID                    // only for a write that must count only once
	err   error
	reply func(dst []byte, resp3 bool) []byte // appends the reply if err is nil
}

// subject is what a write changes. Writes to one subject keep their order. So do writes of
// different kinds, because the result of one may depend on the other: a position on its channel,
// a feed on outboxes.
type subject struct {
	kind subjectKind
	id   uint64 // id of the user or author; 0 for ofAll
	name string // name of the channel or dot; "" for a feed or an outbox
}

type subjectKind uint8

const (
	ofAll    subjectKind = iota // a channel or a dot
	ofUser                      // a user's position in a channel or dot, or a user's feed
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
