package unread

import (
	"fmt"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/rows"
)

// opKind is the number of an op in a log entry. Ops on cursors and the sweep need the leader's time
// before them in the entry. The value of a cursor is at least 1, and one more than the number of its
// notice or firing.
type opKind uint8

const (
	opTake   opKind = 4 // subtracts the values, but not below 0
	opRaise  opKind = 24
	opBegin  opKind = 25 // sets the cursors that are not set
	opPlace  opKind = 26 // a restore: sets the cursors, also to 0, and the day
	opForget opKind = 27 // deletes the row: a restore
	opSweep  opKind = 28
)

// form is the meaning of the number of an op.
type form struct {
	name  string
	table raftfsm.Table
	kind  engine.OpKind
}

// forms has the name, the table and the change of each op. It is read only.
var forms = [...]form{
	rows.Add: {"add", rows.Counts, engine.OpAdd}, rows.Set: {"set", rows.Counts, engine.OpSet},
	rows.Delete: {"delete", rows.Counts, engine.OpDelete}, opTake: {"take", rows.Counts, engine.OpTake},
	opRaise: {"raise", Cursors, Raise}, opBegin: {"begin", Cursors, Begin},
	opPlace: {"place", Cursors, engine.OpSet}, opForget: {"forget", Cursors, engine.OpDelete},
	opSweep: {"sweep", tableSweep, engine.OpAdd},
}

func (k opKind) String() string { return fmt.Sprintf("op %d (%s)", uint8(k), forms[k].name) }

// AppendOp appends an op on a table under key, which replaces the op's id. It panics on an op that
// has no form.
func AppendOp(w *raftfsm.RequestWriter, table raftfsm.Table, key uint64, op *engine.Op) {
	number := slices.IndexFunc(forms[:], func(f form) bool { return f.name != "" && f.table == table && f.kind == op.Kind })
	if number < 0 || table > Cursors || table == Cursors && !isCursorOp(op.Kind, op.Cells) {
		rows.PanicOn(op)
	}
	rows.AppendOp(w, byte(number), key, op, table == Cursors)
}
