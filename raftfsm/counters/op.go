package counters

import (
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/rows"
)

// opKind is the number of an op in a log entry. Integers are little-endian.
//
//	add, set, delete:                     rows/batch.go
//	join:     kind (1) | key (8) | column (1) | member (8)
//	leave:    kind (1) | key (8) | column (1) | member (8) | floor (varint), if bit 6 of column is set
//	copy:     kind (1) | key (8) | column (1) | member (8) | stamp (6)
//	purge:    kind (1) | pairs (uvarint)
//	clear:    kind (1)
//	publish, unpublish, put outbox:       kind (1) | key (8) | outbox/op.go
type opKind uint8

const (
	opAdd    opKind = rows.Add
	opSet    opKind = rows.Set
	opDelete opKind = rows.Delete

	// Ops on sets of members. They need the leader's time before them in the entry.
	opJoin         opKind = 8
	opLeave        opKind = 9
	opCopy         opKind = 10 // a restore: joins with the pair's stamp, 0 for now, and counts nothing
	opPurge        opKind = 11 // removes a number of pairs of deleted rows
	opClearMembers opKind = 12 // removes all pairs of the shard: a restore

	// Ops on the outbox of an author.
	opPublish       = opKind(outbox.Publish)
	opUnpublish     = opKind(outbox.Remove)
	opPutOutbox     = opKind(outbox.Put)
	opClearOutboxes = opKind(outbox.Clear)
)

// opNames is read only.
var opNames = [...]string{
	opAdd: "add", opSet: "set", opDelete: "delete",
	opJoin: "join", opLeave: "leave", opCopy: "copy", opPurge: "purge", opClearMembers: "clear members",
	opPublish: "publish", opUnpublish: "unpublish", opPutOutbox: "put outbox", opClearOutboxes: "clear outboxes",
}

func (k opKind) String() string { return fmt.Sprintf("op %d (%s)", uint8(k), opNames[k]) }

// AppendOp appends an op on a row or a set under key, which replaces the op's id. It panics on an op
// that the format cannot express.
func AppendOp(w *raftfsm.RequestWriter, key uint64, op *engine.Op) {
	switch op.Kind {
	case engine.OpAdd, engine.OpSet, engine.OpDelete:
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

// AppendOutbox appends an op on the outbox of an author under key, with the floor of the posts.
// It panics on an op that the format cannot express.
func AppendOutbox(w *raftfsm.RequestWriter, key uint64, op *outbox.Op) {
	if err := op.Check(); err != nil {
		panic(err.Error())
	}
	o := *op
	if o.Kind == outbox.Remove {
		o.Floor, o.HasFloor = w.Floor(PostsColumn)
	}
	w.Put(o.AppendTo(rows.AppendHead(w.Buffer(), byte(o.Kind), key)), true)
}
