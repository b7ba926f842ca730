package counters

import (
	"math"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/rows"
)

// OutboxOp is an op on the outbox of an author. Its result row is the row of the author. If the op
// changed nothing, the result has a Cut with UnchangedColumn for it, except for a repeated request.
// If a publish was refused as too old, the result has an Overflow with TooOldColumn.
type OutboxOp struct {
	Author uint64
	PostOp
}

// OutboxOps are ops on outboxes. They implement raftfsm.Ops.
type OutboxOps []OutboxOp

func (o OutboxOps) Len() int         { return len(o) }
func (o OutboxOps) ID(op int) uint64 { return o[op].Author }
func (o OutboxOps) Fits(kind codec.Kind, _ int) error {
	return raftfsm.FitsOnly(codec.KindCounters, kind)
}

func (o OutboxOps) See(v raftfsm.Visitor, key uint64, op int) error {
	if o[op].Kind != ClearOutboxes {
		if err := v.Body(key, &o[op].PostOp); err != nil {
			return err
		}
	}
	return v.Op(rows.Counts, key, &engine.Op{ID: key})
}

// Refusable implements raftfsm.Ops. A publish may be refused as too old, or because the number of
// posts is at its maximum.
func (o OutboxOps) Refusable(op int, row []int64, _ *raftfsm.Settings) (refused engine.Overflow, could bool) {
	if refused.Column = TooOldColumn; len(row) > PostsColumn && row[PostsColumn] == math.MaxInt64 {
		refused.Column = PostsColumn
	}
	return refused, o[op].Kind == Publish
}

// AppendTo implements raftfsm.Ops. An Unpublish contains the floor of the column of posts.
func (o OutboxOps) AppendTo(w *raftfsm.RequestWriter, key uint64, op int) {
	if err := o[op].check(); err != nil {
		panic(err.Error())
	}
	put := o[op].PostOp
	if put.Kind == Unpublish {
		put.Floor, put.HasFloor = w.Setting(column.Floor, PostsColumn)
	}
	w.Put(put.appendTo(rows.AppendHead(w.Buffer(), byte(put.Kind), key)), true)
}

// Grows implements raftfsm.Machine.
func (c *Machine) Grows(_ uint64, op any) bool {
	o, is := op.(*PostOp)
	return is && (o.Kind == Publish || o.Kind == PutOutbox)
}
