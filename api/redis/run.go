package redis

import (
	"context"
	"errors"
	"time"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// flush executes the planned commands and appends their replies to the connection's output.
func (b *batch) flush() {
	defer func() {
		clear(b.late)
		b.late = b.late[:0]
		b.texts.Reset()
	}()
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
		out.Buf = b.render(out.Buf, &b.replies[i])
		if len(out.Buf) >= resp.SendBytes && out.Send() != nil {
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
	if max(cap(b.cells), cap(b.replies)) > keepRowsMax || cap(b.text) > resp.KeepBytesMax {
		b.replies, b.cells, b.text = nil, nil, nil
	}
}

// run executes the planned reads and writes. If there are writes, reads get only half of the
// remaining time, so that an unreadable shard does not make writes to other shards time out.
func (b *batch) run(deadline time.Time) {
	if len(b.late) > 0 {
		b.lookUpTexts(b.late, deadline)
	}
	for _, l := range b.late {
		l.set(l.text.Number, l.text.Err)
	}
	written, readBy := 0, deadline
	for _, t := range b.tables {
		if len(t.ops) > 0 {
			written++
		}
	}
	if written+len(b.calls.writes) > 0 {
		readBy = halfway(deadline)
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
		b.conn.server.helpers.Concurrently(len(b.tables), func(i int) { b.tables[i].apply(b.conn, deadline) })
	} else {
		for _, t := range b.tables {
			t.apply(b.conn, deadline)
		}
	}
	b.runWrites(deadline)
}

// lookUpTexts settles the texts of all until half of the time is over. If they are on a shard without a
// leader, the rest of the time is for other commands.
func (b *batch) lookUpTexts(all []late, deadline time.Time) {
	c, node := b.conn, b.conn.server.node()
	writes := []*written{c.server.writtenTo(kinds.KeyspaceUsers), c.server.writtenTo(kinds.KeyspaceUnread), c.server.writtenTo(kinds.KeyspacePosts)}
	for _, t := range b.tables {
		writes = append(writes, t.written)
	}
	texts := make([]*names.Text, len(all))
	for i, l := range all {
		texts[i], l.text.Use = l.text, max(l.text.Use, l.use)
	}
	var opt shard.ReadOptions
	c.freshness(&opt, halfway(deadline), writes...)
	node.names.Settle(texts, &opt, &shard.Write{Deadline: opt.Deadline, Permission: c}, c.server.helpers.Concurrently)
}

// halfway returns the time when half of the time until the deadline is left.
func halfway(deadline time.Time) time.Time { return deadline.Add(-time.Until(deadline) / 2) }

// runReads executes polls and reads concurrently. So a read that waits for a shard without a leader
// does not delay the others.
func (b *batch) runReads(deadline time.Time) {
	q := &b.calls
	if len(q.polls)+len(q.reads) == 0 {
		return
	}
	c := b.conn
	users, posts := c.server.writtenTo(kinds.KeyspaceUnread), c.server.writtenTo(kinds.KeyspaceUsers)
	var opt shard.ReadOptions
	c.freshness(&opt, deadline, users, posts)
	polls := q.polls
	c.server.helpers.Concurrently(len(polls)+len(q.reads), func(i int) {
		opt := opt
		if i < len(polls) {
			opt.Deadline = polls[i].until(deadline)
			polls[i].err = seeing(&opt, func() error { return c.server.node().unread.Poll(&polls[i].poll, &opt) }, users, posts)
			return
		}
		r := &q.reads[i-len(polls)]
		switch {
		case r.err != nil:
			return
		case r.table != nil:
			r.err = r.table.readSets(c, r.read, deadline)
			return
		}
		r.err = seeing(&opt, func() error { return r.read(&opt) }, users, posts)
	})
	if alone := q.pollAlone(); len(alone) > 0 {
		c.server.helpers.Concurrently(len(alone), func(i int) {
			opt := opt
			alone[i].err = seeing(&opt, func() error { return c.server.node().unread.Poll(&alone[i].poll, &opt) }, users, posts)
		})
	}
}

// runWrites executes the writes. Writes that do not depend on each other run concurrently.
func (b *batch) runWrites(deadline time.Time) {
	for i := range b.calls.writes {
		if q := &b.calls.writes[i]; q.who != nil {
			q.about.id = *q.who
		}
	}
	for all := b.calls.writes; len(all) > 0; {
		together := all[:wave(all)]
		b.conn.server.helpers.Concurrently(len(together), func(i int) { together[i].run(b.conn, deadline) })
		all = all[len(together):]
	}
}

// wave returns how many of the first writes may run concurrently.
func wave(all []call) (n int) {
	seen, used := map[subject]bool{}, keys{}
	for n < len(all) && n < gate.WaveMax && !seen[all[n].about] && all[n].about.kind == all[0].about.kind && used.add(&all[n].id) {
		seen[all[n].about] = true
		n++
	}
	return n
}

func (q *call) run(c *conn, deadline time.Time) {
	w := shard.Write{ID: q.id, Deadline: deadline, Permission: c}
	if q.err != nil {
		return
	}
	q.err = q.write(&w)
	if _, some := errors.AsType[*shard.PartialError](q.err); q.err == nil || some {
		to := kinds.KeyspaceUnread // its token also covers the keyspaces that only calls use
		if q.about.kind == ofAuthor {
			to = kinds.KeyspaceUsers
		}
		c.server.writtenTo(to).add(&w.Token)
	}
}

// render appends a reply.
func (b *batch) render(dst []byte, r *reply) []byte {
	if r.cells == nil {
		return r.other(b, dst, r)
	}
	cells := b.cells[r.from:r.to]
	if err := failureOf(cells, r.writes); err != nil {
		return b.appendFailure(dst, err)
	}
	return r.cells(dst, cells, b.conn.resp3)
}

// failureOf returns why a command failed, or nil. If only some cells of a write failed, the error
// says that the outcome is unknown.
func failureOf(cells []cell, writes bool) error {
	var failed error
	for i := range cells {
		if err := cells[i].failure(); err != nil && (failed == nil || errors.Is(err, errs.ErrOutcomeUnknown)) {
			failed = err
		}
	}
	if writes && failed != nil && failures(cells) < len(cells) && !errors.Is(failed, errs.ErrOutcomeUnknown) {
		return &partly{failed}
	}
	return failed
}

// failures returns how many cells have failed.
func failures(cells []cell) (n int) {
	for i := range cells {
		if err := cells[i].failure(); err != nil {
			n++
		}
	}
	return n
}

// A connection looks up unknown names at most once per lookEvery. Concurrent lookups of several
// connections share one call to the catalog's leader.
const lookEvery = 10 * time.Millisecond

// lookUp brings the node's keyspaces and columns up to date, once for all commands that have
// arrived together. It first executes and answers the planned commands, because a lookup may take
// half of the time until the deadline.
func (b *batch) lookUp() {
	b.flush()
	c := b.conn
	if c.out.Send() != nil {
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
