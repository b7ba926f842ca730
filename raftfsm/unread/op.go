package unread

import (
	"fmt"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/rows"
)

// opKind is the number of an op in a log entry. An entry with ops on cursors or a step of the sweep
// has a clock section before them. The value of a cursor in an op is 1 plus the number of the last
// notice or firing that the user has seen.
type opKind uint8

const (
	opTake   opKind = 4 // subtracts the values, but not below 0
	opRaise  opKind = 24
	opBegin  opKind = 25 // sets cursors that are not set yet
	opPlace  opKind = 26 // sets cursors and the day, to any values; only for a restore
	opForget opKind = 27 // deletes the row; only for a restore
	opSweep  opKind = 28
)

// form is the meaning of a number of an op.
type form struct {
	name  string
	table raftfsm.Table
	kind  engine.OpKind
}

// forms maps the number of an op to its form. It is read only.
var forms = [...]form{
	rows.Add: {"add", rows.Counts, engine.OpAdd}, rows.Set: {"set", rows.Counts, engine.OpSet},
	rows.Delete: {"delete", rows.Counts, engine.OpDelete}, opTake: {"take", rows.Counts, engine.OpTake},
	opRaise: {"raise", Cursors, Raise}, opBegin: {"begin", Cursors, Begin},
	opPlace: {"place", Cursors, engine.OpSet}, opForget: {"forget", Cursors, engine.OpDelete},
	opSweep: {"sweep", tableSweep, engine.OpAdd},
}

func (k opKind) String() string { return fmt.Sprintf("op %d (%s)", uint8(k), forms[k].name) }

// CursorOps are ops on cursors. They implement raftfsm.Ops. For ops on counts, use counters.Ops.
type CursorOps []engine.Op

func (o CursorOps) Len() int                                                                  { return len(o) }
func (o CursorOps) ID(op int) uint64                                                          { return o[op].ID }
func (o CursorOps) Refusable(int, []int64, *raftfsm.Settings) (_ engine.Overflow, could bool) { return }
func (o CursorOps) Fits(kind codec.Kind, _ int) error {
	return raftfsm.FitsOnly(codec.KindUnread, kind)
}
func (o CursorOps) See(v raftfsm.Visitor, key uint64, op int) error {
	return v.Op(Cursors, key, &o[op])
}

func (o CursorOps) AppendTo(w *raftfsm.RequestWriter, key uint64, op int) {
	number := slices.IndexFunc(forms[:], func(f form) bool { return f.name != "" && f.table == Cursors && f.kind == o[op].Kind })
	if number < 0 || !isCursorOp(o[op].Kind, o[op].Cells) {
		rows.PanicOn(&o[op])
	}
	rows.AppendOp(w, byte(number), key, &o[op], true)
}
