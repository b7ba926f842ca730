package redis

import (
	"context"
	"errors"
	"time"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

// flush executes the planned commands and appends their replies to the connection's output.
func (b *batch) flush() {
	if len(b.replies) == 0 {
		b.until = time.Time{}
		return
	}
	if b.until.IsZero() {
		b.until = time.Now().Add(b.conn.server.cfg.Timeout)
	}
	b.run(b.until)
	b.until = time.Time{}
	out := &b.conn.out
	for i := range b.replies {
		out.buf = b.render(out.buf, &b.replies[i])
		if len(out.buf) >= sendBytes && out.send() != nil {
			b.conn.closing = true
			break
		}
	}
	b.replies, b.cells, b.text, b.pending, b.across = b.replies[:0], b.cells[:0], b.text[:0], 0, false
	b.keyed = nil
	b.calls.reset()
	for _, t := range b.tables {
		t.reset()
	}
	if max(cap(b.cells), cap(b.replies)) > keepRowsMax || cap(b.text) > keepBytesMax {
		b.replies, b.cells, b.text = nil, nil, nil
	}
}

// run executes the planned reads and writes. If there are writes, reads get only half of the
// remaining time. An unreadable shard must not make writes to other shards time out.
func (b *batch) run(deadline time.Time) {
	written, readBy := 0, deadline
	for _, t := range b.tables {
		if len(t.ops) > 0 {
			written++
		}
	}
	if written+len(b.calls.writes) > 0 {
		readBy = deadline.Add(-time.Until(deadline) / 2)
	}
	for _, t := range b.tables {
		if len(t.ids) > 0 {
			t.read(b.conn, readBy)
		}
	}
	b.runReads(readBy)
	if b.across {
		b.applyAcross(deadline)
	} else if written > 1 { // the keyspaces do not depend on each other
		b.conn.server.concurrently(len(b.tables), func(i int) { b.tables[i].apply(b.conn, deadline) })
	} else {
		for _, t := range b.tables {
			t.apply(b.conn, deadline)
		}
	}
	b.runWrites(deadline)
}

// runReads executes polls and reads concurrently. So a read that waits for a shard without a leader
// does not delay the others.
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
			r.err = r.of.readSets(c, r.read, deadline)
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
		b.conn.server.concurrently(len(together), func(i int) { together[i].run(b.conn, deadline) })
		all = all[len(together):]
	}
}

// wave returns how many of the writes may run concurrently.
func wave(all []call) (n int) {
	seen, used := map[subject]bool{}, keys{}
	for n < len(all) && n < waveMax && !seen[all[n].about] && all[n].about.kind == all[0].about.kind && used.add(&all[n].id) {
		seen[all[n].about] = true
		n++
	}
	return n
}

func (q *call) run(c *conn, deadline time.Time) {
	w := shard.Write{ID: q.id, Deadline: deadline, Permission: c}
	q.err = q.write(&w)
	if _, some := errors.AsType[*shard.PartialError](q.err); q.err == nil || some {
		to := shard.KeyspaceUnread // for all keyspaces that no other command reads
		if q.about.kind == ofAuthor {
			to = shard.KeyspaceUsers
		}
		c.server.writtenTo(to).add(&w.Token)
	}
}

// render appends a reply.
func (b *batch) render(dst []byte, r *reply) []byte {
	switch r.kind {
	case replyKnown:
		return append(dst, b.text[r.from:r.to]...)
	case replyRead:
		return b.appendCall(dst, &b.calls.reads[r.from])
	case replyWrite:
		return b.appendCall(dst, &b.calls.writes[r.from])
	case replyPoll, replyPolls:
		return b.appendPolls(dst, r)
	}
	cells := b.cells[r.from:r.to]
	if r.kind == replyCounts {
		return b.appendCounts(dst, cells)
	}
	if err := failureOf(cells, r.writes); err != nil {
		return b.appendFailure(dst, err)
	}
	resp3 := b.conn.resp3
	switch r.kind {
	case replyCount:
		n, _ := cells[0].value()
		return resp.AppendInt(dst, n)
	case replyOK:
		return resp.AppendOK(dst)
	case replyString:
		return appendCell(dst, &cells[0], resp3)
	case replyArray:
		dst = resp.AppendArray(dst, len(cells))
		for i := range cells {
			dst = appendCell(dst, &cells[i], resp3)
		}
		return dst
	case replyThere:
		return resp.AppendInt(dst, int64(there(cells)))
	case replyAbsent:
		return resp.AppendInt(dst, int64(len(cells)-there(cells)))
	case replyMembers:
		return resp.AppendInt(dst, int64(changes(cells)))
	case replyTTL, replyType:
		return appendAbout(dst, r.kind, &cells[0])
	case replyRow:
		return appendWholeRow(dst, &cells[0], resp3)
	case replyReset:
		return appendReset(dst, &cells[0], &cells[1], resp3)
	}
	return appendRow(dst, r.kind, &cells[0], resp3)
}

// A connection makes the node look up unknown names at most once per lookEvery. The client's next
// command waits at most that long. Concurrent lookups of several connections make one call to the
// catalog's leader.
const lookEvery = 10 * time.Millisecond

// lookUp brings the node's keyspaces and columns up to date, once for all commands that have
// arrived together. It first executes and answers the planned commands, because a lookup may take
// half of the time until the deadline.
func (b *batch) lookUp() {
	b.flush()
	c := b.conn
	if c.out.send() != nil {
		c.closing = true
	}
	if wait := lookEvery - time.Since(c.lookedAt); wait > 0 {
		time.Sleep(wait)
	}
	timeout := c.server.cfg.Timeout
	b.until = time.Now().Add(timeout)
	ctx, cancel := context.WithDeadline(context.Background(), b.until.Add(-timeout/2))
	defer cancel()
	b.lookErr = c.server.node().CatchUp(ctx)
	b.missed, b.looked, c.lookedAt = false, true, time.Now()
	b.refresh()
}
