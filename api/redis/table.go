package redis

import (
	"cmp"
	"slices"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
)

// table is the part of a batch for one keyspace.
type table struct {
	ks *shard.Keyspace

	ids    []uint64 // ids to read before the ops
	rows   []int64  // the rows of ids
	unread []error  // errors by index in ids; nil if all rows were read

	ops     []engine.Op
	counts  []int64       // the row after each op
	failed  []error       // errors by op; nil if none failed
	joined  []bool        // for each op, whether it changed a set of members; nil if no op did
	units   []unit        // one for each command, in order of its ops
	execs   [][2]int      // for each EXEC, its first op and the op after its last
	fetched []int32       // indexes of ops that only read; readInstead can read their rows instead
	cells   []engine.Cell // memory for the ops' cells; each planned op keeps its part

	written *written
	write   shard.Write  // reused by plain writes
	sent    counters.Ops // memory of write.Ops
	query   rows.Query   // query that get uses
	opt     shard.ReadOptions
}

// unit has the ops of one command, from index first up to the first op of the next unit. The shard
// refuses all ops of a unit together.
type unit struct {
	number int // number of the command in its batch
	first  int
	id     dedup.RequestID // only for a write that must be applied only once
}

func (t *table) width() int { return len(t.ks.Columns) }

// reset clears the reads and the ops.
func (t *table) reset() {
	clear(t.units) // so that units keep no names of producers in memory
	t.ids, t.unread, t.failed, t.joined, t.ops = t.ids[:0], nil, nil, nil, t.ops[:0]
	t.cells, t.units, t.execs, t.fetched = t.cells[:0], t.units[:0], t.execs[:0], t.fetched[:0]
	if cap(t.rows) > keepRowsMax {
		t.rows, t.ids = nil, nil
	}
	if cap(t.counts) > keepRowsMax {
		t.counts, t.ops, t.cells = nil, nil, nil
	}
}

// op plans an op of the command that is being planned, on the row of a key.
func (b *batch) op(k key, kind engine.OpKind, cells ...engine.Cell) int32 {
	t := k.table
	if len(t.units) == 0 || t.units[len(t.units)-1].number != b.number {
		t.units = append(t.units, unit{b.number, len(t.ops), b.id})
	}
	from := len(t.cells)
	t.cells = append(t.cells, cells...)
	t.ops = append(t.ops, engine.Op{ID: k.id, Kind: kind, Cells: t.cells[from:len(t.cells):len(t.cells)]})
	b.pending++
	at := len(t.ops) - 1
	if k.late != nil {
		b.await(k.late, b.useOf(&t.ops[at]), func(number uint64, err error) {
			t.ops[at].ID = number
			t.lose(at, err)
		})
	}
	return int32(at)
}

// useOf returns what an op of the command that is being planned does with its texts.
func (b *batch) useOf(op *engine.Op) names.Use {
	switch {
	case !b.writes:
		return names.Reads
	case op.Kind == engine.OpTake || !op.HasValue():
		return names.Removes
	}
	return names.Adds
}

// before plans an op that reads a row. The read sees the ops that were planned before it, but not
// the later ones.
func (b *batch) before(k key) int32 { return b.op(k, engine.OpAdd, engine.Cell{}) }

// fetch plans the read of a row or count. The result is the next cell of the reply.
func (b *batch) fetch(k key) {
	t := k.table
	if len(t.ops) == 0 && !b.atomic {
		if n := len(t.ids); n == 0 || t.ids[n-1] != k.id || k.late != nil { // consecutive keys of one row share a read
			t.ids = append(t.ids, k.id)
			b.pending++
			if k.late != nil {
				b.await(k.late, names.Reads, func(number uint64, err error) { t.got(n, number, err) })
			}
		}
		b.cells = append(b.cells, cell{table: t, row: int32(len(t.ids) - 1), column: int16(k.column), op: false, set: k.set})
		return
	}
	op := b.before(k)
	if !b.atomic {
		t.fetched = append(t.fetched, op)
	}
	b.wrote(k, op)
}

// wrote adds the next cell of the reply: the count of a key right after an op.
func (b *batch) wrote(k key, op int32) {
	b.cells = append(b.cells, cell{table: k.table, row: op, column: int16(k.column), op: true, set: k.set})
}

// got sets the id of a read, or why it is unknown.
func (t *table) got(read int, id uint64, err error) {
	if t.ids[read] = id; err != nil {
		if t.unread == nil {
			t.unread = make([]error, len(t.ids))
		}
		t.unread[read] = err
	}
}

func (t *table) fail(op int, err error) {
	if t.failed == nil {
		t.failed = make([]error, len(t.ops))
	}
	if t.failed[op] == nil {
		t.failed[op] = err
	}
}

// lose records why an op lacks an id, if err is not nil. apply does not write the op's unit.
func (t *table) lose(op int, err error) {
	if err != nil {
		t.fail(op, err)
		t.fetched = slices.DeleteFunc(t.fetched, func(read int32) bool { return int(read) == op })
	}
}

// lost returns why a unit that was not written yet cannot be written, or nil.
func (t *table) lost(number int) (err error) {
	for op := t.units[number].first; t.failed != nil && op < t.end(number); op++ {
		err = cmp.Or(err, t.failed[op])
	}
	return err
}

// end returns the index after the last op of a unit.
func (t *table) end(number int) int {
	if number+1 < len(t.units) {
		return t.units[number+1].first
	}
	return len(t.ops)
}

// value returns the count of a cell, or the first count of a whole row. If the count is unknown, it
// returns the reason.
func (c *cell) value() (int64, error) {
	row, err := c.rowOf()
	if err != nil {
		return 0, err
	}
	return row[max(c.column, 0)], nil
}

// failure returns why the row of a cell is unknown, or nil.
func (c *cell) failure() error {
	errs := c.table.unread
	if c.op {
		errs = c.table.failed
	}
	if errs == nil {
		return nil
	}
	return errs[c.row]
}

// rowOf returns the row of a cell, with zeros in dropped columns.
func (c *cell) rowOf() ([]int64, error) {
	if err := c.failure(); err != nil {
		return nil, err
	}
	t, width, at := c.table, c.table.width(), int(c.row)
	rows := t.rows
	if c.op {
		rows = t.counts
	}
	row := rows[at*width : (at+1)*width]
	for _, dropped := range t.ks.Dropped {
		row[dropped] = 0
	}
	return row, nil
}

// exists reports whether a cell's key exists. The key of a count of 0 does not exist.
func (c *cell) exists() (bool, error) {
	row, err := c.rowOf()
	if err != nil {
		return false, err
	}
	if c.column != wholeRow {
		return row[c.column] != 0, nil
	}
	return slices.ContainsFunc(row, func(count int64) bool { return count != 0 }), nil
}

// freshness sets opt so that a connection's reads see all writes through this node to the given
// keyspaces. Reads of a READONLY connection may be stale instead. freshness reuses opt's memory.
func (c *conn) freshness(opt *shard.ReadOptions, deadline time.Time, writes ...*written) {
	*opt = shard.ReadOptions{Token: shard.Token{At: opt.Token.At[:0]}, Deadline: deadline}
	if c.stale {
		opt.Consistency = shard.Stale
		return
	}
	for _, w := range writes { // append is enough, because no two keyspaces share a group
		if token := w.token.Load(); token != nil {
			opt.Token.Cluster = token.Cluster
			opt.Token.At = append(opt.Token.At, token.At...)
		}
	}
}

// readSets calls read with the options that freshness sets for the table's keyspace.
func (t *table) readSets(c *conn, read func(opt *shard.ReadOptions) error, deadline time.Time) error {
	var opt shard.ReadOptions
	c.freshness(&opt, deadline, t.written)
	return seeing(&opt, func() error { return read(&opt) }, t.written)
}

// get reads the rows of ids into dst.
func (t *table) get(c *conn, ids []uint64, dst []int64, deadline time.Time) error {
	c.freshness(&t.opt, deadline, t.written)
	t.query = rows.Query{Width: t.width(), Rows: dst}
	return seeing(&t.opt, func() error { return c.server.node().Read(t.ks, &t.query, ids, &t.opt) }, t.written)
}
