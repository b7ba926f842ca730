package redis

import (
	"errors"
	"slices"
	"time"

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

// calls is the part of a batch that package unread answers because it joins several
// keyspaces, and the reads of sets of members. Its reads run with the batch's reads, its writes last. If a command must see
// what is planned, the batch is executed first.
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
	users bool                               // a write to the keyspace of authors
	id    shard.RequestID                    // for a write that is to count once
	err   error
	reply func(dst []byte, resp3 bool) []byte // if there was no error
}

// subject is the object of a write: a channel or dot, a user's position in one, or a user's
// feed, which has no name. Writes to one subject keep their order. So do writes to channels
// and dots relative to writes to positions, whose result depends on them.
type subject struct {
	users bool // it belongs to a user
	user  uint64
	name  string
}

// mustWait reports whether the planned commands must be executed before the next command is
// planned: otherwise the order would change, or the command would not see their result.
func (b *batch) mustWait(cmd *command) bool {
	switch {
	case cmd.traits&looksIn != 0:
		return len(b.calls.writes) > 0 || slices.ContainsFunc(b.tables, func(t *table) bool { return len(t.ops) > 0 })
	case cmd.traits&joins == 0:
		return len(b.calls.writes) > 0 && cmd.traits&(keyed|atOnce) != 0
	case cmd.traits&writes != 0:
		return slices.ContainsFunc(b.tables, func(t *table) bool { return len(t.ops) > 0 })
	}
	return len(b.calls.writes) > 0 || slices.ContainsFunc(b.tables, func(t *table) bool { return len(t.ops) > 0 && isJoined(t.ks) })
}

// isJoined reports whether unread numbers are joined from a keyspace.
func isJoined(ks *shard.Keyspace) bool {
	return ks.Kind != shard.KindCounters || ks.Name == unread.PostsKeyspace
}

// read plans a call that reads about rows rows.
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

// runReads executes polls and reads concurrently: one that waits for a shard without a
// leader must not delay the others.
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
	c.server.concurrently(len(polls)+len(q.reads), func(i int) {
		opt := opt
		if i < len(polls) {
			opt.Deadline = polls[i].until(deadline)
			polls[i].err = seeing(&opt, func() error { return c.server.node().unread.Poll(&polls[i].poll, &opt) }, users, posts)
			return
		}
		r := &q.reads[i-len(polls)]
		if r.of != nil {
			r.err = r.of.look(c, r.read, deadline)
			return
		}
		r.err = seeing(&opt, func() error { return r.read(&opt) }, users, posts)
	})
	if alone := q.pollAlone(); len(alone) > 0 {
		c.server.concurrently(len(alone), func(i int) {
			opt := opt
			alone[i].err = seeing(&opt, func() error { return c.server.node().unread.Poll(&alone[i].poll, &opt) }, users, posts)
		})
	}
}

// runWrites executes the writes. Those that do not depend on each other run concurrently.
func (b *batch) runWrites(deadline time.Time) {
	for all := b.calls.writes; len(all) > 0; {
		together := all[:wave(all)]
		b.conn.server.concurrently(len(together), func(i int) { together[i].run(b.conn.server, deadline) })
		all = all[len(together):]
	}
}

// wave returns how many of the writes may run concurrently.
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
		to := shard.KeyspaceUnread // of all keyspaces that no other command reads
		if q.users {
			to = shard.KeyspaceUsers
		}
		s.writtenTo(to).add(&w.Token)
	}
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
