package raftfsm

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/outbox"
)

// RequestWriter writes one request section into a buffer. It owns the buffer until
// Section returns it.
type RequestWriter struct {
	buf       []byte
	opsAt     int // where the number of ops is stored
	ops       uint32
	floors    *Floors
	ofMembers bool
}

// Reset starts a section in buf, overwriting its contents. Like Op, it panics on an
// identity that the format cannot express.
func (w *RequestWriter) Reset(buf []byte, id *dedup.RequestID) {
	w.buf = id.AppendTo(append(buf[:0], id.Section(), 0, 0, 0, 0))
	w.opsAt, w.ops = len(w.buf), 0
	w.buf = append(w.buf, 0, 0, 0, 0)
	w.floors, w.ofMembers = nil, false
}

// SetFloors sets the floors of the columns for the ops that follow; nil means none. A floor that
// no delta can reach is left out.
func (w *RequestWriter) SetFloors(f *Floors) { w.floors = f }

// Op appends an op under key, which replaces the op's id. It panics on an op that the
// format cannot express: an entry that cannot be applied stops every replica, so it must
// not be proposed.
func (w *RequestWriter) Op(key uint64, op *engine.Op) {
	if op.Kind == engine.OpTake || !writable(op) {
		panic(fmt.Sprintf("an op of kind %d with %d cells has no form in a log entry", op.Kind, len(op.Cells)))
	}
	switch {
	case op.OfMember():
		w.member(key, op)
		return
	case op.Kind == engine.OpClearMembers:
		w.ClearMembers()
		return
	}
	w.op(key, op)
}

// TableOp is Op for a shard of unread numbers, whose ops state their table.
func (w *RequestWriter) TableOp(table Table, key uint64, op *engine.Op) {
	if !writable(op) || op.OfMember() || op.Kind == engine.OpClearMembers || table == TableCursors && !isCursorOp(op.Kind, op.Cells) {
		panic(fmt.Sprintf("an op of kind %d with %d cells on table %d has no form in a log entry", op.Kind, len(op.Cells), table))
	}
	w.buf = append(w.buf, byte(table))
	w.op(key, op)
}

func (w *RequestWriter) op(key uint64, op *engine.Op) {
	head := byte(op.Kind) & opKindBits
	if n := cellsOf(op.Cells); n > 0 {
		head |= byte(n-1) << 2
	}
	w.buf = binary.LittleEndian.AppendUint64(append(w.buf, head), key)
	for i := range op.Cells {
		switch c := &op.Cells[i]; {
		case c.Column&engine.FloorMark != 0:
		case c.Value < 0 && op.Kind == engine.OpAdd:
			w.decrement(op.Cells, i)
		default:
			w.buf = binary.AppendVarint(append(w.buf, c.Column), c.Value)
		}
	}
	w.ops++
}

// decrement appends a negative delta with a floor: the higher of its own, which is the
// previous cell, and the column's.
func (w *RequestWriter) decrement(cells []engine.Cell, i int) {
	c := &cells[i]
	floor, has := w.floors.Of(c.Column)
	if i > 0 && cells[i-1].Column&engine.FloorMark != 0 && (!has || cells[i-1].Value > floor) {
		floor, has = cells[i-1].Value, true
	}
	if !has {
		w.buf = binary.AppendVarint(append(w.buf, c.Column), c.Value)
		return
	}
	w.buf = binary.AppendVarint(append(w.buf, engine.FloorMark|c.Column), c.Value)
	w.buf = binary.AppendVarint(w.buf, floor)
}

// cellsOf returns the number of cells that are not floors.
func cellsOf(cells []engine.Cell) int {
	n := len(cells)
	for i := range cells {
		if cells[i].Column&engine.FloorMark != 0 {
			n--
		}
	}
	return n
}

// Outbox appends an op on the outbox of an author under key, with the floor of the posts.
// Like Op, it panics on an op that the format cannot express.
func (w *RequestWriter) Outbox(key uint64, op *outbox.Op) {
	if err := op.Check(); err != nil {
		panic(err.Error())
	}
	o := *op
	if o.Kind == outbox.Remove {
		o.Floor, o.HasFloor = w.floors.Of(PostsColumn)
	}
	w.buf = o.AppendTo(binary.LittleEndian.AppendUint64(append(w.buf, o.Kind.Head()), key))
	w.ops++
}

// Feed appends an op on a feed under key, which replaces the op's user. Like Op, it
// panics on an op that the format cannot express.
func (w *RequestWriter) Feed(key uint64, op *FeedOp) {
	if err := op.check(); err != nil {
		panic(err.Error())
	}
	w.buf = op.appendTo(w.buf, key)
	w.ops++
}

// Board appends an op on the board. Like Op, it panics on an op that the format cannot
// express.
func (w *RequestWriter) Board(op *BoardOp) {
	if err := op.check(); err != nil {
		panic(err.Error())
	}
	w.buf = op.appendTo(w.buf)
	w.ops++
}

// writable reports whether tableOp can read the op back.
func writable(op *engine.Op) bool {
	if op.OfMember() {
		_, copied := op.Copied()
		return len(op.Cells) == 1 || copied && len(op.Cells) == 2 && op.Cells[0].Column < engine.ColumnsMax
	}
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
	switch op.Kind {
	case engine.OpAdd, engine.OpSet, engine.OpTake:
		n := cellsOf(op.Cells)
		return n >= 1 && n <= opCellsMax
	case engine.OpDelete, engine.OpClearMembers:
		return len(op.Cells) == 0
	}
	return false
}

// SetUse completes a section whose identity RequestID.JudgedBy made.
func (w *RequestWriter) SetUse(use dedup.Use) { dedup.SetUse(w.buf, use) }

// Ops returns the number of ops.
func (w *RequestWriter) Ops() int { return int(w.ops) }

// Section returns the finished section, which may be appended to an entry.
func (w *RequestWriter) Section() []byte {
	binary.LittleEndian.PutUint32(w.buf[1:], uint32(len(w.buf)-codec.SectionHeadSize))
	binary.LittleEndian.PutUint32(w.buf[w.opsAt:], w.ops)
	return w.buf
}
