package redis

import (
	"errors"
	"slices"
	"time"

	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

const (
	// feedRows is what a command that reads a user's feed counts as among the rows
	// that are read together: about what users follow. A hundred such commands are
	// what one poll of the HTTP API may ask for.
	feedRows = rowsMax / unread.PollUsersMax
	// pollsKept is for how many lists of channels and dots memory is kept.
	pollsKept = 8
)

// calls is the part of a batch that package unread answers: what joins several
// keyspaces. The reads among them go with the batch's reads, and the writes last; a
// command that must see what is planned otherwise has it executed first.
type calls struct {
	polls  []pollCall
	polled []polled // users of the polls, one for each that a reply shows
	reads  []call
	writes []call
}

// call is one command.
type call struct {
	read  func(opt *shard.ReadOptions) error // of a read
	write func(w *shard.Write) error         // of a write
	about subject                            // of a write
	id    shard.RequestID                    // of a write that is to count once
	err   error
	reply func(dst []byte, resp3 bool) []byte // if it went well
}

// subject is what a write changes: a channel or dot of everybody's, where a user stands
// in one, or a user's feed, which has no name. Writes to one subject keep their order,
// and so do those to everybody's and those to users', which are judged by it.
type subject struct {
	users bool // it is a user's
	user  uint64
	name  string
}

// mustWait reports whether what is planned has to be executed before a command is
// planned: because it would be executed in another order, or the command would not
// see it.
func (b *batch) mustWait(cmd *command) bool {
	switch {
	case cmd.traits&joins == 0:
		return len(b.calls.writes) > 0 && cmd.traits&(keyed|atOnce) != 0
	case cmd.traits&writes != 0:
		return slices.ContainsFunc(b.tables, func(t *table) bool { return len(t.ops) > 0 })
	}
	return len(b.calls.writes) > 0 || slices.ContainsFunc(b.tables, func(t *table) bool { return len(t.ops) > 0 && isJoined(t.ks) })
}

// isJoined tells a keyspace that unread numbers are joined from.
func isJoined(ks *shard.Keyspace) bool {
	return ks.Kind != shard.KindCounters || ks.Name == unread.PostsKeyspace
}

// read plans a call that reads about so many rows.
func (b *batch) read(rows int, q call) {
	b.calls.reads = append(b.calls.reads, q)
	b.replies = append(b.replies, reply{kind: replyRead, from: len(b.calls.reads) - 1})
	b.pending += rows
}

// change plans a call that writes.
func (b *batch) change(q call) {
	q.id = b.id
	b.calls.writes = append(b.calls.writes, q)
	b.replies = append(b.replies, reply{kind: replyWrite, writes: true, from: len(b.calls.writes) - 1})
	b.pending++
}

// runReads executes polls and reads, side by side: one that waits for a shard without
// a leader is not to hold the others up.
func (b *batch) runReads(deadline time.Time) {
	q := &b.calls
	if len(q.polls)+len(q.reads) == 0 {
		return
	}
	c := b.conn
	users, posts := c.server.writtenTo(shard.KeyspaceUnread), c.server.writtenTo(unread.PostsKeyspace)
	var opt shard.ReadOptions
	c.freshness(&opt, deadline, users, posts)
	polls := q.polls
	c.server.sideBySide(len(polls)+len(q.reads), func(i int) {
		opt := opt
		if i < len(polls) {
			opt.Deadline = polls[i].until(deadline)
			polls[i].err = seeing(&opt, func() error { return c.server.unread.Poll(&polls[i].poll, &opt) }, users, posts)
			return
		}
		r := &q.reads[i-len(polls)]
		r.err = seeing(&opt, func() error { return r.read(&opt) }, users, posts)
	})
	if alone := q.pollAlone(); len(alone) > 0 {
		c.server.sideBySide(len(alone), func(i int) {
			opt := opt
			alone[i].err = seeing(&opt, func() error { return c.server.unread.Poll(&alone[i].poll, &opt) }, users, posts)
		})
	}
}

// runWrites executes the writes, those side by side that have nothing to do with
// each other.
func (b *batch) runWrites(deadline time.Time) {
	for all := b.calls.writes; len(all) > 0; {
		together := all[:wave(all)]
		b.conn.server.sideBySide(len(together), func(i int) { together[i].run(b.conn.server, deadline) })
		all = all[len(together):]
	}
}

// wave returns how many of the writes may go side by side.
func wave(all []call) (n int) {
	seen, used := map[subject]bool{}, keys{}
	for n < len(all) && n < waveMax && !seen[all[n].about] && all[n].about.users == all[0].about.users && used.add(&all[n].id) {
		seen[all[n].about] = true
		n++
	}
	return n
}

func (q *call) run(s *Server, deadline time.Time) {
	w := shard.Write{ID: q.id, Deadline: deadline}
	q.err = q.write(&w)
	if _, some := errors.AsType[*shard.PartialError](q.err); q.err == nil || some {
		s.writtenTo(shard.KeyspaceUnread).add(&w.Token)
	}
}

// appendCall appends the reply of a call.
func (b *batch) appendCall(dst []byte, q *call) []byte {
	if q.err != nil {
		return b.appendFailure(dst, q.err)
	}
	return q.reply(dst, b.conn.resp3)
}

// reset forgets what was asked and answered.
func (q *calls) reset() {
	clear(q.reads)
	clear(q.writes)
	q.reads, q.writes, q.polled = q.reads[:0], q.writes[:0], q.polled[:0]
	if q.polls = q.polls[:0]; cap(q.polls) > pollsKept {
		q.polls = nil
	}
}
