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
	opsAt     int // where the ops begin
	ops       int
	floors    *Floors
	ofMembers bool
}

// Reset starts a section for the shard of a route in buf, overwriting its contents. Like Op, it
// panics on an identity or a route that the format cannot express.
func (w *RequestWriter) Reset(buf []byte, route codec.Route, id *dedup.RequestID) {
	w.buf = id.AppendTo(route.AppendTo(append(buf[:0], id.Section(), 0, 0, 0, 0)))
	w.opsAt, w.ops = len(w.buf), 0
	w.floors, w.ofMembers = nil, false
}

// SetFloors sets the floors of the columns for the ops that follow; nil means none. Only ops with a
// delta below 0 carry a floor.
func (w *RequestWriter) SetFloors(f *Floors) { w.floors = f }

// Op appends an op of counters under key, which replaces the op's id. It panics on an op that
// the format cannot express: an entry that cannot be applied stops every replica, so it must
// not be proposed.
func (w *RequestWriter) Op(key uint64, op *engine.Op) {
	switch op.Kind {
	case engine.OpAdd:
		w.onTable(opAdd, key, op)
	case engine.OpSet:
		w.onTable(opSet, key, op)
	case engine.OpDelete:
		w.onTable(opDelete, key, op)
	case engine.OpJoin:
		if _, copied := op.Copied(); copied {
			w.ofSet(opCopy, 2, key, op)
		} else {
			w.ofSet(opJoin, 1, key, op)
		}
	case engine.OpLeave:
		w.ofSet(opLeave, 1, key, op)
	case engine.OpClearMembers:
		w.ClearMembers()
	default:
		panicOn(op)
	}
}

// TableOp is Op for a shard of unread numbers, which has two tables.
func (w *RequestWriter) TableOp(table Table, key uint64, op *engine.Op) {
	if op.Kind == 0 || op.Kind > engine.OpTake || table == TableCursors && !isCursorOp(op.Kind, op.Cells) {
		panicOn(op)
	}
	kind := [...][engine.OpTake + 1]OpKind{
		TableCounts:  {engine.OpAdd: opAdd, engine.OpSet: opSet, engine.OpDelete: opDelete, engine.OpTake: opTake},
		TableCursors: {CursorRaise: opRaise, engine.OpSet: opPlace, engine.OpDelete: opForget, CursorBegin: opBegin},
	}[table][op.Kind]
	w.onTable(kind, key, op)
}

// panicOn panics on an op that has no form.
func panicOn(op *engine.Op) {
	panic(fmt.Sprintf("an op of kind %d with %d cells has no form in a log entry", op.Kind, len(op.Cells)))
}

// begin appends the kind and the key of an op.
func (w *RequestWriter) begin(kind OpKind, key uint64) {
	w.buf = binary.LittleEndian.AppendUint64(append(w.buf, byte(kind)), key)
	w.ops++
}

func (w *RequestWriter) onTable(kind OpKind, key uint64, op *engine.Op) {
	if !writable(kind, op) {
		panicOn(op)
	}
	w.begin(kind, key)
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
		if kind == opAdd && c.Value < 0 {
			if floor, floored = w.floorOf(op.Cells, i); floored {
				mark |= columnFloored
			}
		}
		if w.buf = binary.AppendVarint(append(w.buf, mark), c.Value); floored {
			w.buf = binary.AppendVarint(w.buf, floor)
		}
	}
}

// floorOf returns the floor of a cell: the higher of the column's floor and the floor in the
// previous cell, if there is one.
func (w *RequestWriter) floorOf(cells []engine.Cell, i int) (floor int64, has bool) {
	floor, has = w.floors.Of(cells[i].Column)
	if i > 0 && cells[i-1].Column&engine.FloorMark != 0 && (!has || cells[i-1].Value > floor) {
		return cells[i-1].Value, true
	}
	return floor, has
}

// writable reports whether tableOp can read the op back.
func writable(kind OpKind, op *engine.Op) bool {
	for i := range op.Cells {
		c := &op.Cells[i]
		if c.Column&engine.FloorMark != 0 {
			if kind != opAdd || i+1 == len(op.Cells) || op.Cells[i+1].Column != c.Column&^engine.FloorMark {
				return false
			}
		} else if c.Column >= engine.ColumnsMax || kind == opTake && c.Value < 0 {
			return false
		}
	}
	return (len(op.Cells) == 0) == (op.Kind == engine.OpDelete)
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
	w.begin(OpKind(o.Kind), key)
	w.buf = o.AppendTo(w.buf)
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

// SetUse completes a section with an identity of RequestID.JudgedBy.
func (w *RequestWriter) SetUse(use dedup.Use) { dedup.SetUse(w.buf[:w.opsAt], use) }

// Ops returns the number of ops.
func (w *RequestWriter) Ops() int { return w.ops }

// Section returns the finished section, which may be appended to an entry.
func (w *RequestWriter) Section() []byte {
	binary.LittleEndian.PutUint32(w.buf[1:], uint32(len(w.buf)-codec.SectionHeadSize))
	return w.buf
}
