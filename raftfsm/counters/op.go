package counters

import (
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/rows"
)

// opKind is the number of an op in a log entry. Integers are little-endian.
//
//	add, set, delete:                     rows/batch.go
//	join, leave: kind (1) | key (8) | column (1) | member (8) | what rows.Bound appends
//	copy:     kind (1) | key (8) | column (1) | member (8) | stamp (6)
//	purge:    kind (1) | pairs (uvarint)
//	clear:    kind (1)
//	publish, unpublish, put outbox:       kind (1) | key (8) | postop.go
type opKind uint8

const (
	opAdd    opKind = rows.Add
	opSet    opKind = rows.Set
	opDelete opKind = rows.Delete

	// Ops on sets of members. In an entry, the leader's time must precede them.
	opJoin         opKind = 8
	opLeave        opKind = 9
	opCopy         opKind = 10 // a join with a given stamp, not counted; only for a restore
	opPurge        opKind = 11 // removes a number of pairs of deleted rows
	opClearMembers opKind = 12 // removes all pairs of the shard; only for a restore

	// Ops on the outbox of an author.
	opPublish       = opKind(Publish)
	opUnpublish     = opKind(Unpublish)
	opPutOutbox     = opKind(PutOutbox)
	opClearOutboxes = opKind(ClearOutboxes)
)

// Nobody changes opNames.
var opNames = [...]string{
	opAdd: "add", opSet: "set", opDelete: "delete",
	opJoin: "join", opLeave: "leave", opCopy: "copy", opPurge: "purge", opClearMembers: "clear members",
	opPublish: "publish", opUnpublish: "unpublish", opPutOutbox: "put outbox", opClearOutboxes: "clear outboxes",
}

func (k opKind) String() string { return fmt.Sprintf("op %d (%s)", uint8(k), opNames[k]) }

// Ops are ops on rows and on sets of members. They implement raftfsm.Ops. Shards of unread numbers
// use Ops too: ops on counts have the same encoding there. Only they have takes.
type Ops []engine.Op

func (o Ops) Len() int         { return len(o) }
func (o Ops) ID(op int) uint64 { return o[op].ID }
func (o Ops) Fits(kind codec.Kind, op int) error {
	own := codec.KindCounters
	if _, shared := rows.KindOf(byte(o[op].Kind)); o[op].Kind == engine.OpTake || shared && kind == codec.KindUnread {
		own = codec.KindUnread
	}
	return raftfsm.FitsOnly(own, kind)
}

func (o Ops) See(v raftfsm.Visitor, key uint64, op int) error {
	if o := &o[op]; o.OfMember() {
		if err := v.Member(members.Pair{Row: key, Column: o.Cells[0].Column, Member: uint64(o.Cells[0].Value)}); err != nil {
			return err
		}
	}
	return v.Op(rows.Counts, key, &o[op])
}

// Refusable implements raftfsm.Ops. A column can refuse only an addition. A read is an addition of 0,
// and a copy adds nothing. Refusable encodes the op and decodes it as Apply does, so that its cells
// have the bounds of their columns.
func (o Ops) Refusable(op int, row []int64, settings *raftfsm.Settings) (refused engine.Overflow, could bool) {
	if o[op].Kind != engine.OpAdd && !o[op].OfMember() {
		return refused, false
	}
	var w raftfsm.RequestWriter
	w.SetSettings(settings)
	o.AppendTo(&w, o[op].ID, op)
	var b batch
	if _, err := b.op(w.Buffer()); err != nil {
		panic(err) // AppendTo writes only what op can decode
	}
	b.Link()
	if !b.Ops[0].HasValue() {
		return refused, false
	}
	return b.Ops[0].Refusal(row), true
}

func (o Ops) AppendTo(w *raftfsm.RequestWriter, key uint64, i int) {
	switch op := &o[i]; op.Kind {
	case engine.OpAdd, engine.OpSet, engine.OpDelete, engine.OpTake:
		rows.AppendOp(w, byte(op.Kind), key, op, false)
	case engine.OpJoin:
		if _, copied := op.Copied(); copied {
			appendMember(w, opCopy, 2, key, op)
		} else {
			appendMember(w, opJoin, 1, key, op)
		}
	case engine.OpLeave:
		appendMember(w, opLeave, 1, key, op)
	case engine.OpClearMembers:
		AppendClearMembers(w)
	default:
		rows.PanicOn(op)
	}
}
