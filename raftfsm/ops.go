package raftfsm

import (
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/codec"
)

// ErrOtherOps is wrapped by the error for an op that shards of the keyspace's kind do not accept.
var ErrOtherOps = errors.New("the keyspace is of another kind than the op")

// Ops are the ops of one write. Each kind has its own types of Ops. Package shard appends each op,
// which an index names, to the section of its shard. A write to several keyspaces has Ops of one
// type, which fits the kinds of all of them.
type Ops interface {
	// Len returns the number of ops.
	Len() int
	// ID returns the id of an op, or 0 for an op without an id.
	ID(op int) uint64
	// Fits returns nil if shards of a kind accept the op, and otherwise an error that wraps
	// ErrOtherOps.
	Fits(kind codec.Kind, op int) error
	// AppendTo appends an op to a section. The op must fit the shard's kind. The section contains
	// key in place of the op's id. AppendTo panics on an op that the format cannot express.
	AppendTo(w *RequestWriter, key uint64, op int)
	// See calls the visitor with an op and its key, as Kind.Check does for each op in a section.
	See(v Visitor, key uint64, op int) error
	// Refusable reports whether a shard could have refused the op. If so, refused is the refusal,
	// without its field Op. row is the op's result row, or empty for a write without results. The
	// settings are those of the columns; nil means no settings.
	Refusable(op int, row []int64, settings *Settings) (refused engine.Overflow, could bool)
}

// Visitor receives the ops of a write or of a section. It must not keep them. An error of a method
// ends the visit.
type Visitor interface {
	// Op receives each op on a row. For an op of another form that changes a count, it receives the
	// change as an op on the row.
	Op(table Table, key uint64, op *engine.Op) error
	// Body receives each op on a body, such as a feed, as a pointer to an op of the kind. In a
	// section, the calls of Body come after all calls of Op.
	Body(key uint64, op any) error
	// Member receives each pair that joins or leaves a set. In a section, the calls of Member come
	// after all calls of Op.
	Member(p members.Pair) error
}

// FitsOnly implements Ops.Fits for ops that only shards of one kind accept.
func FitsOnly(own, kind codec.Kind) error {
	if kind != own {
		return fmt.Errorf("%w: %s, not %s", ErrOtherOps, kind, own)
	}
	return nil
}
