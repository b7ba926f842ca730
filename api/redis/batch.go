package redis

import (
	"errors"
	"slices"
	"time"

	"github.com/countd/countd/shard"
)

const (
	// rowsMax bounds the rows that one command may name, which is what one request
	// of the HTTP API may, and about the rows and ops that go together.
	rowsMax = 10_000
	// keepRowsMax is how much scratch memory is kept for the next pipeline, of
	// whatever connection.
	keepRowsMax = 16 << 10
	// tablesKept is for how many keyspaces scratch memory is kept.
	tablesKept = 8
)

// batch is the part of a pipeline that is planned and not executed yet. Commands
// are planned one after the other: what they read and write goes into the table
// of its keyspace, and how they are answered into replies. flush executes all of
// it at once:
//
//  1. reads that came before the first op of their table, in one Get a table, and
//     what package unread is to read;
//  2. all ops of a table in one Write, which applies ops on one id in their
//     order. A read that comes after an op is an op too, one that adds 0: it
//     takes its turn among them, and shares their wait;
//  3. what package unread is to write, of which a batch has some or ops, not both.
//
// So each reply is what it would be had the commands been executed one by one.
type batch struct {
	conn    *conn  // that has it now
	out     []byte // memory of replies, while no connection has it
	tables  []*table
	replies []reply
	cells   []cell
	calls   calls
	text    []byte // of replies that were known when they were planned
	pending int    // rows and ops

	number int             // of the command that is planned
	id     shard.RequestID // of its ops, if they are to count once
	writes bool            // it may write
	atomic bool            // it is an EXEC: its reads are ops too

	until   time.Time // deadline of what is planned; zero if nothing has set it yet
	missed  bool      // the command that is planned names what this node does not know
	looked  bool      // what it does not know was looked for, by all that has arrived
	lookErr error     // why that failed
	unsure  bool      // it is an EXEC with a command that failed for it

	keys   []key   // of the command, read before anything of it is planned
	values []int64 // likewise
}

// reply says how a command is answered.
type reply struct {
	kind     replyKind
	writes   bool
	from, to int // cells, bytes of text, users of polls, or a call and nothing
}

// cell is one count of a row that was read or written.
type cell struct {
	table  *table
	row    int32 // of table.ids, or of the ops
	column int16 // wholeRow for the row
	op     bool
}

// tableOf returns the table of a counter keyspace, or nil.
func (b *batch) tableOf(name []byte) *table {
	for _, t := range b.tables {
		if string(name) == t.ks.Name && isCounters(t.ks) {
			return t
		}
	}
	return b.newTable(string(name), shard.KindCounters)
}

// newTable adds the table of a keyspace, if there is one of that kind.
func (b *batch) newTable(name, kind string) *table {
	ks := b.conn.server.node().Keyspace(name)
	if ks == nil || ks.Kind != kind {
		return nil
	}
	t := &table{ks: ks, written: b.conn.server.writtenTo(ks.Name)}
	b.tables = append(b.tables, t)
	return t
}

// refresh makes a batch ready that is empty: keyspaces may have got columns, or be gone.
func (b *batch) refresh() {
	if len(b.tables) > tablesKept {
		b.tables = nil
	}
	b.tables = slices.DeleteFunc(b.tables, func(t *table) bool {
		ks := b.conn.server.node().Keyspace(t.ks.Name)
		if ks == nil || ks.Kind != t.ks.Kind {
			return true
		}
		t.ks = ks
		return false
	})
}

// known plans a reply that is known already. append gives it.
func (b *batch) known(appendReply func(dst []byte) []byte) {
	if len(b.replies) == 0 && !b.atomic {
		b.conn.out.buf = appendReply(b.conn.out.buf)
		return
	}
	from := len(b.text)
	b.text = appendReply(b.text)
	b.replies = append(b.replies, reply{kind: replyKnown, from: from, to: len(b.text)})
}

// fail plans an error as the reply.
func (b *batch) fail(text string) {
	b.conn.server.metrics.failed(text)
	b.known(func(dst []byte) []byte { return appendError(dst, text) })
}

// failed plans an error as the reply if there is one, or notes that the command is to
// be planned anew.
func (b *batch) failed(err error) bool {
	if err == nil || b.misses(err) {
		return err != nil
	}
	if _, unknown := errors.AsType[nameError](err); unknown && b.lookErr != nil {
		b.unsure = b.atomic
		b.known(func(dst []byte) []byte { return b.appendFailure(dst, b.lookErr) })
		return true
	}
	b.fail(err.Error())
	return true
}

// answer plans a reply of the cells from a position on.
func (b *batch) answer(kind replyKind, from int) {
	b.replies = append(b.replies, reply{kind, b.writes, from, len(b.cells)})
}

// flush executes what is planned and appends the replies to the connection's
// output.
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
	b.replies, b.cells, b.text, b.pending = b.replies[:0], b.cells[:0], b.text[:0], 0
	b.calls.reset()
	for _, t := range b.tables {
		t.reset()
	}
	if max(cap(b.cells), cap(b.replies)) > keepRowsMax || cap(b.text) > keepBytesMax {
		b.replies, b.cells, b.text = nil, nil, nil
	}
}

// run has the backend do what is planned. Reads leave the writes behind them half of
// the time: a shard that cannot be read is not to have others refuse what is written.
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
	if written > 1 { // keyspaces are independent of each other
		b.conn.server.sideBySide(len(b.tables), func(i int) { b.tables[i].apply(b.conn, deadline) })
	} else {
		for _, t := range b.tables {
			t.apply(b.conn, deadline)
		}
	}
	b.runWrites(deadline)
}
