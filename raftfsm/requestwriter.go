package raftfsm

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/engine"
)

// RequestWriter appends one request section to a buffer that it owns until
// Section hands it out.
type RequestWriter struct {
	buf   []byte
	opsAt int // where the number of ops stands
	ops   uint32
}

// Reset starts a section in buf, whose contents are overwritten. Like Op it
// panics on an identity that the format has no form for.
func (w *RequestWriter) Reset(buf []byte, id *RequestID) {
	w.buf = id.appendTo(append(buf[:0], id.section(), 0, 0, 0, 0))
	w.opsAt, w.ops = len(w.buf), 0
	w.buf = append(w.buf, 0, 0, 0, 0)
}

// Op appends an op under key, which stands in place of the op's id. It panics
// on an op that the format has no form for: an entry that cannot be applied must
// not be proposed, because no replica would survive it.
func (w *RequestWriter) Op(key uint64, op *engine.Op) {
	if op.Kind == engine.OpTake || !writable(op) {
		panic(fmt.Sprintf("an op of kind %d with %d cells has no form in a log entry", op.Kind, len(op.Cells)))
	}
	w.op(key, op)
}

// TableOp is Op for a shard of the keyspace of unread numbers, whose ops say which
// table they are for.
func (w *RequestWriter) TableOp(table Table, key uint64, op *engine.Op) {
	if !writable(op) || table == TableCursors && !isCursorOp(op.Kind, op.Cells) {
		panic(fmt.Sprintf("an op of kind %d with %d cells on table %d has no form in a log entry", op.Kind, len(op.Cells), table))
	}
	w.buf = append(w.buf, byte(table))
	w.op(key, op)
}

func (w *RequestWriter) op(key uint64, op *engine.Op) {
	head := byte(op.Kind) & opKindBits
	if len(op.Cells) > 0 {
		head |= byte(len(op.Cells)-1) << 2
	}
	w.buf = binary.LittleEndian.AppendUint64(append(w.buf, head), key)
	for _, c := range op.Cells {
		w.buf = binary.AppendVarint(append(w.buf, c.Column), c.Value)
	}
	w.ops++
}

// Feed appends an op on a feed under key, which stands in place of the op's user.
// Like Op it panics on what has no form.
func (w *RequestWriter) Feed(key uint64, op *FeedOp) {
	if err := op.check(); err != nil {
		panic(err.Error())
	}
	w.buf = op.appendTo(w.buf, key)
	w.ops++
}

// Board appends an op on the board. Like Op it panics on what has no form.
func (w *RequestWriter) Board(op *BoardOp) {
	if err := op.check(); err != nil {
		panic(err.Error())
	}
	w.buf = op.appendTo(w.buf)
	w.ops++
}

// writable reports whether tableOp takes the op back.
func writable(op *engine.Op) bool {
	for i := range op.Cells {
		if c := &op.Cells[i]; c.Column >= engine.ColumnsMax || op.Kind == engine.OpTake && c.Value < 0 {
			return false
		}
	}
	switch op.Kind {
	case engine.OpAdd, engine.OpSet, engine.OpTake:
		return len(op.Cells) >= 1 && len(op.Cells) <= opCellsMax
	case engine.OpDelete:
		return len(op.Cells) == 0
	}
	return false
}

// Ops is how many ops were appended.
func (w *RequestWriter) Ops() int { return int(w.ops) }

// Section returns the finished section, which may be appended to an entry.
func (w *RequestWriter) Section() []byte {
	binary.LittleEndian.PutUint32(w.buf[1:], uint32(len(w.buf)-sectionHeadSize))
	binary.LittleEndian.PutUint32(w.buf[w.opsAt:], w.ops)
	return w.buf
}
