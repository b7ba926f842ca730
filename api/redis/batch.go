package redis

import (
	"errors"
	"slices"
	"time"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/shard"
)

const (
	// rowsMax bounds the rows that one command may name. A request of the HTTP API has the same
	// bound. rowsMax is also an approximate bound of the rows and ops of one batch.
	rowsMax = 10_000
	// keepRowsMax bounds the scratch memory that is kept for the next pipeline of any
	// connection.
	keepRowsMax = 16 << 10
	// tablesKept bounds the keyspaces for which scratch memory is kept.
	tablesKept = 8
)

// batch is the part of a pipeline that is planned but not executed yet. It plans one command
// after the other. It collects the rows that a command reads and writes in the table of their
// keyspace, and the form of the reply in batch.replies. flush executes the batch in three steps:
//
//  1. the reads that came before the first op of their table, in one Get a table, and the
//     reads of package unread;
//  2. all ops of a table, in one Write, which applies ops on one id in their order. A read
//     that comes after an op is an op too, which adds 0: so it keeps its place among the
//     ops and needs no request of its own;
//  3. the writes of package unread. A batch has those or ops, not both.
//
// So each reply is the same as if the commands were executed one by one.
type batch struct {
	conn    *conn  // the connection that uses the batch now
	out     []byte // memory of replies, kept while no connection uses the batch
	tables  []*table
	replies []reply
	cells   []cell
	calls   calls
	text    []byte // replies that were known when their command was planned
	pending int    // number of rows and ops

	number int             // index of the command that is being planned
	id     shard.RequestID // identity of its ops if they must count only once
	writes bool            // whether it may write
	atomic bool            // whether it is an EXEC; its reads are then ops too
	across bool            // whether its ops belong to one command with a key, on several keyspaces

	keyed map[[16]byte]*table // by key, the table of the ops that have it

	until   time.Time // deadline of the planned commands; zero if not set yet
	missed  bool      // whether the command being planned names something that this node does not know
	looked  bool      // whether unknown names were looked up; once for all commands that have arrived
	lookErr error     // why the lookup failed
	unsure  bool      // whether it is an EXEC with a command that failed because of lookErr

	keys   []key   // keys of the command, all parsed before any of it is planned
	values []int64 // values of the command, also parsed before any of it is planned
}

// reply is the form of a command's reply.
type reply struct {
	kind     replyKind
	writes   bool
	from, to int // range of cells, of bytes of text or of users of polls, or the index of a call
}

// cell is one count of a row that was read or written.
type cell struct {
	table  *table
	row    int32 // index into table.ids, or into the ops
	column int16 // wholeRow for the whole row
	op     bool
	set    bool // whether it is the set of the column's members
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

// newTable adds the table of a keyspace. It returns nil if no keyspace has that name and
// kind.
func (b *batch) newTable(name, kind string) *table {
	ks := b.conn.server.node().Keyspace(name)
	if ks == nil || ks.Kind != kind {
		return nil
	}
	t := &table{ks: ks, written: b.conn.server.writtenTo(ks.Name)}
	b.tables = append(b.tables, t)
	return t
}

// refresh updates the tables of an empty batch: a keyspace may have new columns, or may have been
// dropped.
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

// known plans a known reply, which appendReply appends.
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
	b.known(func(dst []byte) []byte { return resp.AppendError(dst, text) })
}

// failed plans an error reply if err is not nil, or marks the command for planning again
// after a lookup. It reports whether err is not nil.
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

// answer plans a reply of the cells that begin at index start.
func (b *batch) answer(kind replyKind, start int) {
	b.replies = append(b.replies, reply{kind, b.writes, start, len(b.cells)})
}

// misses reports whether an error concerns a name that the batch has not looked up yet. The
// command is planned again after lookUp.
func (b *batch) misses(err error) bool {
	_, unknown := errors.AsType[nameError](err)
	b.missed = b.missed || unknown && !b.looked
	return unknown && !b.looked
}
