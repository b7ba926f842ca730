package redis

import (
	"errors"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
)

// table is the part of a batch for one keyspace.
type table struct {
	ks *shard.Keyspace

	ids    []uint64 // ids to read before the ops
	rows   []int64  // the rows of ids
	unread []error  // errors by index of ids; nil if all were read

	ops     []engine.Op
	counts  []int64       // the row of each op, right after it
	failed  []error       // errors by op; nil if none failed
	joined  []bool        // ops that changed a set of members; nil if none did
	units   []unit        // of the ops, in ascending order
	fetched []int32       // indexes of ops that only read; readInstead can read their rows as well
	cells   []engine.Cell // memory for the ops' cells; each planned op keeps its part

	written *written
	write   shard.Write // reused by plain writes
	query   rows.Query  // of get
	opt     shard.ReadOptions
}

// unit is the ops of one command, from index first up to the next unit's. They are
// refused together.
type unit struct {
	number int // number of the command in its batch
	first  int
	id     shard.RequestID // only for a write that must count only once
}

var (
	// errOverflow is returned for an op whose sum does not fit an int64.
	errOverflow = errors.New("the sum does not fit")
	// errForgotten is returned for an op of a repeated request that the shard applied or refused
	// before, if the shard no longer remembers which.
	errForgotten = errors.New("whether this op was applied or overflowed before is no longer known")
)

func (t *table) width() int { return len(t.ks.Columns) }

// reset clears the reads and the ops.
func (t *table) reset() {
	clear(t.units) // units refer to the names of producers
	t.ids, t.unread, t.failed, t.joined, t.ops = t.ids[:0], nil, nil, nil, t.ops[:0]
	t.cells, t.units, t.fetched = t.cells[:0], t.units[:0], t.fetched[:0]
	if cap(t.rows) > keepRowsMax {
		t.rows, t.ids = nil, nil
	}
	if cap(t.counts) > keepRowsMax {
		t.counts, t.ops, t.cells = nil, nil, nil
	}
}

// op plans an op of the command that is being planned.
func (b *batch) op(t *table, id uint64, kind engine.OpKind, cells ...engine.Cell) int32 {
	if len(t.units) == 0 || t.units[len(t.units)-1].number != b.number {
		t.units = append(t.units, unit{b.number, len(t.ops), b.id})
	}
	from := len(t.cells)
	t.cells = append(t.cells, cells...)
	t.ops = append(t.ops, engine.Op{ID: id, Kind: kind, Cells: t.cells[from:len(t.cells):len(t.cells)]})
	b.pending++
	return int32(len(t.ops) - 1)
}

// before plans an op that reads a row at its place among the ops.
func (b *batch) before(t *table, id uint64) int32 { return b.op(t, id, engine.OpAdd, engine.Cell{}) }

// fetch plans the read of a row, or of the count of a key, as the next cell of the reply.
func (b *batch) fetch(k key) {
	t := k.table
	if len(t.ops) == 0 && !b.atomic {
		if n := len(t.ids); n == 0 || t.ids[n-1] != k.id { // consecutive keys of one row share a read
			t.ids = append(t.ids, k.id)
			b.pending++
		}
		b.cells = append(b.cells, cell{t, int32(len(t.ids) - 1), int16(k.column), false, k.set})
		return
	}
	op := b.before(t, k.id)
	if !b.atomic {
		t.fetched = append(t.fetched, op)
	}
	b.wrote(k, op)
}

// wrote plans, as the next cell of the reply, the count that a key has right after an op.
func (b *batch) wrote(k key, op int32) {
	b.cells = append(b.cells, cell{k.table, op, int16(k.column), true, k.set})
}

// end returns the index after the last op of a unit.
func (t *table) end(number int) int {
	if number+1 < len(t.units) {
		return t.units[number+1].first
	}
	return len(t.ops)
}

// resized returns a slice of n values with arbitrary contents. It reuses the array if
// that is large enough.
func resized(values []int64, n int) []int64 {
	return slices.Grow(values[:0], n)[:n]
}

// value returns the count of a cell, or the first count of a whole row, or why it is
// unknown.
func (c *cell) value() (int64, error) {
	row, err := c.rowOf()
	if err != nil {
		return 0, err
	}
	return row[max(c.column, 0)], nil
}

// rowOf returns the row of a cell, with zeros in dropped columns.
func (c *cell) rowOf() ([]int64, error) {
	t, width, at := c.table, c.table.width(), int(c.row)
	rows, errs := t.rows, t.unread
	if c.op {
		rows, errs = t.counts, t.failed
	}
	if errs != nil && errs[at] != nil {
		return nil, errs[at]
	}
	row := rows[at*width : (at+1)*width]
	for _, dropped := range t.ks.Dropped {
		row[dropped] = 0
	}
	return row, nil
}

// exists reports whether a key exists. A count of 0 does not exist.
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
