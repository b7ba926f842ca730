package redis

import (
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
)

const (
	// feedRows is the weight, in rows, of a command that reads a user's feed. A hundred such
	// commands have the weight of the largest poll of the HTTP API.
	feedRows = rowsMax / inbox.PollUsersMax
	// pollsKept is the number of lists of channels and dots for which memory is kept.
	pollsKept = 8
)

// calls is the part of a batch that package inbox answers, because the answers need several
// keyspaces. Its reads include those of sets of members. The reads run with the batch's reads, and
// the writes run last. If a command must see the effects of planned commands, plan executes the
// batch first.
type calls struct {
	polls  []pollCall
	polled []polled // one for each user whose poll is in a reply
	reads  []call
	writes []call
}

// call is one command.
type call struct {
	read  func(opt *shard.ReadOptions) error // for a read
	table *table                             // only for a read of sets: the table of their keyspace
	write func(w *shard.Write) error         // for a write
	about subject                            // for a write
	who   *uint64                            // the id of about, which is known when the plan is executed; nil for ofAll
	id    dedup.RequestID                    // only for a write that must be applied only once
	err   error
	reply func(dst []byte, resp3 bool) []byte // appends the reply if err is nil
}

// subject identifies what a write changes. Writes to the same subject keep their order. Writes to
// subjects of different kinds keep their order too, because one may depend on the other: a user's
// position in a channel depends on the channel.
type subject struct {
	kind subjectKind
	id   uint64 // id of the user or author, set before the writes run; 0 for ofAll
	name string // name of the channel or dot; "" for a feed or an outbox
}

type subjectKind uint8

const (
	ofAll    subjectKind = iota // a channel or a dot
	ofUser                      // a user's position in a channel or dot, or a user's feed
	ofAuthor                    // an author's outbox
)

// isJoined reports whether calls of package inbox may read the keyspace.
func isJoined(ks *shard.Keyspace) bool {
	return ks.Kind != kinds.Counters || ks.Name == kinds.KeyspaceUsers
}

func (b *batch) appendRead(dst []byte, r *reply) []byte {
	return b.appendCall(dst, &b.calls.reads[r.from])
}

func (b *batch) appendWrite(dst []byte, r *reply) []byte {
	return b.appendCall(dst, &b.calls.writes[r.from])
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

// pollCall serves consecutive polls of a pipeline that have the same channels and dots, with one
// poll.
type pollCall struct {
	poll inbox.Poll
	err  error
}

// polled has the index of a poll in calls.polls, and the index of one of the poll's users.
type polled struct {
	poll, user int
	err        error // why the user's number is unknown
}

// planRead plans a call that reads about as many rows as the parameter rows. For a read of sets,
// setsOf is the table of their keyspace; otherwise it is nil. If an argument has a fault, the fault
// becomes the reply.
func planRead[R any](a *arguments, setsOf *table, rows int, read func(opt *shard.ReadOptions) (R, error), answer func(dst []byte, r R, resp3 bool) []byte) {
	b := a.b
	if b.failed(a.Err) {
		return
	}
	var r R
	b.calls.reads = append(b.calls.reads, call{
		table: setsOf,
		read:  func(opt *shard.ReadOptions) (err error) { r, err = read(opt); return err },
		reply: func(dst []byte, resp3 bool) []byte { return answer(dst, r, resp3) },
	})
	at := len(b.calls.reads) - 1
	if len(a.late) > 0 {
		a.await(names.Reads, func() *call { return &b.calls.reads[at] })
	}
	b.plan((*batch).appendRead, at, 0)
	b.pending += rows
}

// planWrite plans a call that changes a subject, whose id is *who unless who is nil. rows is the approximate number of
// rows that it reads. If an argument has a fault, the fault becomes the reply.
func planWrite[R any](a *arguments, about subject, who *uint64, rows int, write func(w *shard.Write) (R, error), answer func(dst []byte, r R, resp3 bool) []byte) {
	b := a.b
	if b.failed(a.Err) {
		return
	}
	var r R
	b.calls.writes = append(b.calls.writes, call{
		id:    b.id,
		about: about,
		who:   who,
		write: func(w *shard.Write) (err error) { r, err = write(w); return err },
		reply: func(dst []byte, resp3 bool) []byte { return answer(dst, r, resp3) },
	})
	at := len(b.calls.writes) - 1
	if len(a.late) > 0 {
		use := names.Adds
		if a.removes {
			use = names.Removes
		}
		a.await(use, func() *call { return &b.calls.writes[at] })
	}
	b.plan((*batch).appendWrite, at, 0)
	b.pending += rows
}
