package redis

import (
	"errors"
	"slices"
	"time"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
)

const (
	// rowsMax bounds the rows that one command may name. A request of the HTTP API has the same
	// bound. rowsMax is also an approximate bound of the rows and ops of one batch.
	rowsMax = 10_000
	// keepRowsMax bounds the scratch memory that is kept for the next pipelines.
	keepRowsMax = 16 << 10
	// tablesKept bounds the keyspaces for which scratch memory is kept.
	tablesKept = 8
)

// batch is the part of a pipeline that is planned but not executed yet. conn.plan adds one command
// after the other: the rows to read and write to the table of their keyspace, and a description of
// the reply to batch.replies. flush executes the batch in three steps:
//
//  1. the reads that came before the first op of their table, with one Get for each table, and the
//     reads of package inbox;
//  2. all ops of a table, with one Write, which applies the ops on one id in order. A read that
//     comes after an op becomes an op that adds 0. So the read keeps its place among the ops and
//     needs no separate request;
//  3. the writes of package inbox. A batch has either writes of package inbox or ops, never both.
//
// Each reply is therefore the same as if the commands were executed one by one.
type batch struct {
	conn    *conn  // the connection that uses the batch now
	out     []byte // memory of replies, kept while no connection uses the batch
	tables  []*table
	replies []reply
	cells   []cell
	calls   calls
	text    []byte // replies that were known when their command was planned
	pending int    // number of planned rows and ops

	number int             // index of the command that is being planned
	id     dedup.RequestID // identity of the command's ops, if they must be applied only once
	writes bool            // the command may write
	atomic bool            // the command is an EXEC; its reads become ops too
	across bool            // the ops belong to one command with a key, on several keyspaces

	keyed map[[16]byte]*table // idempotency key → table of the ops with this key

	texts names.Request // ids of the planned commands whose numbers were not in memory
	late  []late

	until   time.Time // deadline of the planned commands; zero if not set yet
	missed  bool      // the command being planned has a name that this node does not know
	looked  bool      // unknown names were looked up; that happens once for all commands that have arrived
	lookErr error     // why the lookup failed
	unsure  bool      // the command is an EXEC, and one of its commands failed because of lookErr

	parsed arguments // of the command
	keys   []key     // keys of the command; all are parsed before the command is planned
	values []int64   // values of the command; parsed like keys
}

// late is a part of the plan that needs the number of a text id. The plan has 0 in place of the number
// of a text that is not in memory. Before the batch is executed, flush looks up all these numbers
// together, and gives numbers to the texts of writes that add and have none. So a pipeline with new texts costs
// one more log entry, and a command that is refused costs none.
type late struct {
	text *names.Text
	use  names.Use
	set  func(number uint64, err error)
}

// reply describes the reply of a command.
type reply struct {
	cells  appendCells // for a command that reads or writes rows
	other  appendOther // for other commands; then cells is nil
	writes bool
	from   int32 // from and to are a range of cells, of bytes of text or of users of polls. For a call, from is its index.
	to     int32
}

// appendCells appends a reply that consists of cells. The caller has checked that no cell failed.
type appendCells func(dst []byte, cells []cell, resp3 bool) []byte

// appendOther appends a reply that does not consist of cells.
type appendOther func(b *batch, dst []byte, r *reply) []byte

// cell is one count of a row that was read or written.
type cell struct {
	table  *table
	row    int32 // index into table.ids, or into the ops
	column int16 // wholeRow for the whole row
	op     bool
	set    bool // the command named the set of the column's members, not its count
}

// tableOf returns the table of a counter keyspace, or nil.
func (b *batch) tableOf(name []byte) *table {
	for _, t := range b.tables {
		if string(name) == t.ks.Name && isCounters(t.ks) {
			return t
		}
	}
	return b.newTable(string(name), kinds.Counters)
}

// newTable adds the table of a keyspace. It returns nil if there is none of that name and kind.
func (b *batch) newTable(name, kind string) *table {
	ks := b.conn.server.node().Keyspace(name)
	if ks == nil || ks.Kind != kind {
		return nil
	}
	t := &table{ks: ks, written: b.conn.server.writtenTo(ks.Name)}
	b.tables = append(b.tables, t)
	return t
}

// unreadTable returns the table of the users' counts.
func (b *batch) unreadTable() (*table, error) {
	for _, t := range b.tables {
		if t.ks.Kind == kinds.Unread {
			return t, nil
		}
	}
	if t := b.newTable(kinds.KeyspaceUnread, kinds.Unread); t != nil {
		return t, nil
	}
	return nil, errNoKeyspaces // a cluster that has begun has the built-in keyspace unread
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

// known adds a reply that is known already. The reply goes to the output at once, unless earlier
// replies are planned or the command is an EXEC.
func (b *batch) known(appendReply func(dst []byte) []byte) {
	if len(b.replies) == 0 && !b.atomic {
		b.conn.out.Buf = appendReply(b.conn.out.Buf)
		return
	}
	from := len(b.text)
	b.text = appendReply(b.text)
	b.plan((*batch).appendText, from, len(b.text))
}

// fail plans an error as the reply.
func (b *batch) fail(text string) {
	b.conn.server.metrics.Failed(text)
	b.known(func(dst []byte) []byte { return resp.AppendError(dst, text) })
}

// failed reports whether err is not nil. If so, it plans an error reply. If the error concerns a
// name that a lookup may find, failed instead marks the command to be planned again after the
// lookup. If the lookup has failed, the reply is the lookup's error.
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

// answer plans a reply with the cells from index start on.
func (b *batch) answer(form appendCells, start int) {
	b.replies = append(b.replies, reply{cells: form, writes: b.writes, from: int32(start), to: int32(len(b.cells))})
}

// plan plans a reply that does not consist of cells.
func (b *batch) plan(form appendOther, from, to int) {
	b.replies = append(b.replies, reply{other: form, from: int32(from), to: int32(to)})
}

func (b *batch) appendText(dst []byte, r *reply) []byte { return append(dst, b.text[r.from:r.to]...) }

// misses reports whether an error concerns a name that the batch has not looked up yet. If so, the
// batch plans the command again after lookUp.
func (b *batch) misses(err error) bool {
	_, unknown := errors.AsType[nameError](err)
	b.missed = b.missed || unknown && !b.looked
	return unknown && !b.looked
}

func (b *batch) appendFailure(dst []byte, err error) []byte {
	text, foreseen := errorText(err)
	if !foreseen {
		b.conn.server.limited.Error("a Redis command failed", "err", err)
	}
	b.conn.server.metrics.Failed(text)
	return resp.AppendError(dst, text)
}

// await registers a part of the plan that needs the number of a text. flush passes the number, or the
// reason why it is unknown, to set.
func (b *batch) await(text *names.Text, use names.Use, set func(number uint64, err error)) {
	b.late = append(b.late, late{text, use, set})
}
