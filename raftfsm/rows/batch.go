// Package rows owns what kinds of shards with rows of counts share: the encoding of ops on rows, the
// sections of rows in snapshots, reads of rows, and the split of their tables. It never decides
// whether an op applies.
//
// Invariant: equal rows have equal sections, and equal parts after a split, whatever tables and
// segments a replica has them in.
//
// In a log entry, an op on a row has this form; integers are little-endian:
//
//	kind (1) | key (8) | cell …, unless it deletes the row
//	cell:     column (1) | delta or value (varint) | floor (varint), if bit 6 of column is set
//
// Bits 0 to 5 of a column are its number. Bit 6 means that a floor follows, which only a delta
// below 0 has. Bit 7, in a cell, means that another cell follows. Other ops that change a count,
// such as ops on members, also have a column and a floor in this form: see Bound and Batch.Delta.
package rows

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// The numbers of the ops that all kinds with rows accept.
const (
	Add    = 1
	Set    = 2
	Delete = 3
)

// KindOf returns the engine.OpKind of the op with a number, and whether all kinds with rows accept
// that op. The number and the OpKind are equal.
func KindOf(number byte) (kind engine.OpKind, is bool) {
	return engine.OpKind(number), number >= Add && number <= Delete
}

// Counts is the table of counts, which all kinds with rows have.
const Counts raftfsm.Table = 0

// The bits of a column in an op.
const (
	ColumnNumber  = 1<<6 - 1
	columnFloored = 1 << 6
	columnMore    = 1 << 7
)

// OpSizeMin is the size of an op's kind and key.
const OpSizeMin = 9

// Batch holds the decoded ops on rows of one entry. It reuses its memory.
type Batch struct {
	Ops   []engine.Op
	Cells []engine.Cell
	ends  []int // end of each op's cells in Cells; Link needs it, because decoding may reallocate Cells
}

// Begin discards all ops.
func (b *Batch) Begin() { b.Ops, b.Cells, b.ends = b.Ops[:0], b.Cells[:0], b.ends[:0] }

// Add appends an op. The cells of the op are those that were appended to Cells since the previous
// Add.
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

// Void turns the last n ops into ops without cells, which change nothing and return their row.
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
		mark := p[0]
		more = mark&columnMore != 0
		v, n := binary.Varint(p[1:])
		if n <= 0 || kind == engine.OpTake && v < 0 || kind != engine.OpAdd && mark&columnFloored != 0 {
			return nil, fmt.Errorf("%w: value of column %d", codec.ErrEntry, mark&ColumnNumber)
		}
		if p, err = b.Delta(p[1+n:], mark&^columnMore, v); err != nil {
			return nil, err
		}
	}
	b.Add(kind, key)
	return p, nil
}

// Delta appends the cell of a column. If mark has the bit for a floor, Delta first decodes the
// floor and appends its cell.
func (b *Batch) Delta(p []byte, mark uint8, value int64) (rest []byte, err error) {
	column := mark & ColumnNumber
	switch {
	case mark&columnMore != 0 || mark&columnFloored != 0 && value >= 0:
		return nil, fmt.Errorf("%w: column %02x with %d", codec.ErrEntry, mark, value)
	case mark&columnFloored != 0:
		floor, n := binary.Varint(p)
		if n <= 0 {
			return nil, fmt.Errorf("%w: floor of column %d", codec.ErrEntry, column)
		}
		b.Cells = append(b.Cells, engine.Cell{Column: engine.FloorMark | column, Value: floor})
		p = p[n:]
	}
	b.Cells = append(b.Cells, engine.Cell{Column: column, Value: value})
	return p, nil
}

// Bound is the limit that the settings of a column set for a delta.
type Bound struct {
	Mark  uint8 // bit to set in the column of the op; 0 for no bound
	floor int64
}

// BoundOf returns the bound of a delta of a column.
func BoundOf(w *raftfsm.RequestWriter, number uint8, delta int64) (b Bound) {
	if delta < 0 {
		if floor, has := w.Setting(column.Floor, number); has {
			b = Bound{columnFloored, floor}
		}
	}
	return b
}

// AppendTo appends the bytes that follow the delta.
func (b Bound) AppendTo(dst []byte) []byte {
	if b.Mark == 0 {
		return dst
	}
	return binary.AppendVarint(dst, b.floor)
}

// PanicOn panics because the format cannot express op.
func PanicOn(op *engine.Op) {
	panic(fmt.Sprintf("an op of kind %d with %d cells has no form in a log entry", op.Kind, len(op.Cells)))
}

// AppendHead appends the kind and the key of an op.
func AppendHead(dst []byte, number byte, key uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, number), key)
}

// AppendOp appends an op, with key in place of the op's id. It panics on an op that Batch.Op could
// not decode.
func AppendOp(w *raftfsm.RequestWriter, number byte, key uint64, op *engine.Op, clocked bool) {
	if !writable(op) {
		PanicOn(op)
	}
	buf := AppendHead(w.Buffer(), number, key)
	last := len(op.Cells) - 1
	for i := range op.Cells {
		c := &op.Cells[i]
		if c.IsBound() {
			continue
		}
		mark, bound := c.Column, Bound{}
		if i < last {
			mark |= columnMore
		}
		if op.Kind == engine.OpAdd {
			bound = BoundOf(w, c.Column, c.Value)
			if i > 0 && c.Value < 0 && op.Cells[i-1].IsBound() && (bound.Mark == 0 || op.Cells[i-1].Value > bound.floor) {
				bound = Bound{columnFloored, op.Cells[i-1].Value} // of two floors, the higher applies
			}
		}
		buf = bound.AppendTo(binary.AppendVarint(append(buf, mark|bound.Mark), c.Value))
	}
	w.Put(buf, clocked)
}

// writable reports whether Batch.Op can decode the op after AppendOp.
func writable(op *engine.Op) bool {
	for i := range op.Cells {
		c := &op.Cells[i]
		if c.IsBound() {
			if op.Kind != engine.OpAdd || i+1 == len(op.Cells) || op.Cells[i+1].Column != c.Column&^engine.FloorMark {
				return false
			}
		} else if op.Kind == engine.OpTake && c.Value < 0 {
			return false
		}
	}
	return (len(op.Cells) == 0) == (op.Kind == engine.OpDelete)
}
