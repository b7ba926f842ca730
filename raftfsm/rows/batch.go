// Package rows has what the kinds of shards with rows of counts share: the bytes of ops on rows, and
// the sections of rows in snapshots.
//
// An op on a row in a log entry; integers are little-endian:
//
//	kind (1) | key (8) | cell …, unless it deletes the row
//	cell:     column (1) | delta or value (varint) | floor (varint), if bit 6 of column is set
//
// Bits 0 to 5 of a column are its number. Bit 6 says that a floor follows, which only a delta
// below 0 has. Bit 7, in a cell, says that another cell follows.
package rows

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// The numbers of the ops that all kinds with rows have.
const (
	Add    = 1
	Set    = 2
	Delete = 3
)

// KindOf returns the kind of the op with a number, and whether all kinds with rows have that op. The
// two numbers are equal.
func KindOf(number byte) (kind engine.OpKind, is bool) {
	return engine.OpKind(number), number >= Add && number <= Delete
}

// Counts is the table of counts, which all kinds with rows have.
const Counts raftfsm.Table = 0

// The bits of a column in an op.
const (
	ColumnNumber  = 1<<6 - 1
	ColumnFloored = 1 << 6
	columnMore    = 1 << 7
)

// OpSizeMin is the size of an op's kind and key.
const OpSizeMin = 9

// Batch holds the decoded ops on rows of one entry. It reuses its memory.
type Batch struct {
	Ops   []engine.Op
	Cells []engine.Cell
	ends  []int // end of each op's cells, for Link; Cells is reallocated while ops are decoded
}

// Begin discards all ops.
func (b *Batch) Begin() { b.Ops, b.Cells, b.ends = b.Ops[:0], b.Cells[:0], b.ends[:0] }

// Add appends an op. Its cells are those appended to Cells since the previous Add.
func (b *Batch) Add(kind engine.OpKind, key uint64) {
	b.Ops = append(b.Ops, engine.Op{Kind: kind, ID: key})
	b.ends = append(b.ends, len(b.Cells))
}

// Link sets the cells of each op, once all cells are decoded.
func (b *Batch) Link() {
	start := 0
	for i, end := range b.ends {
		b.Ops[i].Cells = b.Cells[start:end]
		start = end
	}
}

// Void removes the cells of the last n ops, so that they change nothing and return their row.
func (b *Batch) Void(n int) {
	first := len(b.Ops) - n
	cells := 0
	if first > 0 {
		cells = b.ends[first-1]
	}
	b.Cells = b.Cells[:cells]
	for i := first; i < len(b.Ops); i++ {
		b.Ops[i].Kind, b.ends[i] = engine.OpAdd, cells
	}
}

// Visit links the ops and calls v.Op with each.
func (b *Batch) Visit(v raftfsm.Visitor, table func(op int) raftfsm.Table) error {
	b.Link()
	for i := range b.Ops {
		if err := v.Op(table(i), b.Ops[i].ID, &b.Ops[i]); err != nil {
			return err
		}
	}
	return nil
}

// Op decodes an op of a kind.
func (b *Batch) Op(p []byte, kind engine.OpKind) (rest []byte, err error) {
	if len(p) < OpSizeMin {
		return nil, fmt.Errorf("%w: op of %d bytes", codec.ErrEntry, len(p))
	}
	key := binary.LittleEndian.Uint64(p[1:])
	p = p[OpSizeMin:]
	for more := kind != engine.OpDelete; more; {
		if len(p) < 2 {
			return nil, fmt.Errorf("%w: cell % x", codec.ErrEntry, p)
		}
		mark, column := p[0], p[0]&ColumnNumber
		more = mark&columnMore != 0
		v, n := binary.Varint(p[1:])
		if n <= 0 || kind == engine.OpTake && v < 0 {
			return nil, fmt.Errorf("%w: value of column %d", codec.ErrEntry, column)
		}
		if p = p[1+n:]; mark&ColumnFloored != 0 {
			if kind != engine.OpAdd || v >= 0 {
				return nil, fmt.Errorf("%w: floor of column %d", codec.ErrEntry, column)
			}
			if p, err = b.Floor(p, column); err != nil {
				return nil, err
			}
		}
		b.Cells = append(b.Cells, engine.Cell{Column: column, Value: v})
	}
	b.Add(kind, key)
	return p, nil
}

// Floor decodes the floor of a column.
func (b *Batch) Floor(p []byte, column uint8) ([]byte, error) {
	floor, n := binary.Varint(p)
	if n <= 0 {
		return nil, fmt.Errorf("%w: floor of column %d", codec.ErrEntry, column)
	}
	b.Cells = append(b.Cells, engine.Cell{Column: engine.FloorMark | column, Value: floor})
	return p[n:], nil
}

// PanicOn panics on an op that has no form.
func PanicOn(op *engine.Op) {
	panic(fmt.Sprintf("an op of kind %d with %d cells has no form in a log entry", op.Kind, len(op.Cells)))
}

// AppendHead appends the kind and the key of an op.
func AppendHead(dst []byte, number byte, key uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, number), key)
}

// AppendOp appends an op under key, which replaces the op's id. It panics on an op that Batch.Op
// could not read back.
func AppendOp(w *raftfsm.RequestWriter, number byte, key uint64, op *engine.Op, clocked bool) {
	if !writable(op) {
		PanicOn(op)
	}
	buf := AppendHead(w.Buffer(), number, key)
	last := len(op.Cells) - 1
	for i := range op.Cells {
		c := &op.Cells[i]
		if c.Column&engine.FloorMark != 0 {
			continue
		}
		mark := c.Column
		if i < last {
			mark |= columnMore
		}
		floor, floored := int64(0), false
		if op.Kind == engine.OpAdd && c.Value < 0 {
			if floor, floored = floorOf(w, op.Cells, i); floored {
				mark |= ColumnFloored
			}
		}
		if buf = binary.AppendVarint(append(buf, mark), c.Value); floored {
			buf = binary.AppendVarint(buf, floor)
		}
	}
	w.Put(buf, clocked)
}

// floorOf returns the floor of a cell: the higher of the column's floor and the floor in the
// previous cell, if there is one.
func floorOf(w *raftfsm.RequestWriter, cells []engine.Cell, i int) (floor int64, has bool) {
	floor, has = w.Setting(column.Floor, cells[i].Column)
	if i > 0 && cells[i-1].Column&engine.FloorMark != 0 && (!has || cells[i-1].Value > floor) {
		return cells[i-1].Value, true
	}
	return floor, has
}

// writable reports whether Batch.Op can read the op back.
func writable(op *engine.Op) bool {
	for i := range op.Cells {
		c := &op.Cells[i]
		if c.Column&engine.FloorMark != 0 {
			if op.Kind != engine.OpAdd || i+1 == len(op.Cells) || op.Cells[i+1].Column != c.Column&^engine.FloorMark {
				return false
			}
		} else if c.Column >= engine.ColumnsMax || op.Kind == engine.OpTake && c.Value < 0 {
			return false
		}
	}
	return (len(op.Cells) == 0) == (op.Kind == engine.OpDelete)
}
