package raftfsm

import (
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/codec"
)

// ErrOtherOps is wrapped by the error for an op that shards of its keyspace's kind do not have.
var ErrOtherOps = errors.New("the keyspace is of another kind than the op")

// Ops are the ops of one write, in a form of their kind. Package shard puts each op, by its index,
// into the section of its shard. A write to several keyspaces has ops of one form, which fits the
// kinds of all of them.
type Ops interface {
	// Len returns the number of ops.
	Len() int
	// ID returns the id of an op, or 0 for an op without an id.
	ID(op int) uint64
	// Fits returns nil if shards of a kind have the op. Otherwise it wraps ErrOtherOps.
	Fits(kind codec.Kind, op int) error
	// AppendTo appends an op to a section. The op must fit the shard's kind; key replaces its id.
	// AppendTo panics on an op that the format cannot express.
	AppendTo(w *RequestWriter, key uint64, op int)
	// See calls the visitor with an op and its key, as Kind.Check does for each op of a section.
	See(v Visitor, key uint64, op int) error
	// Refusable reports whether a shard could have refused the op, and the refusal in that case, with its Op
	// unset. row is the op's result row, or nil for a write without results.
	Refusable(op int, row []int64) (refused engine.Overflow, could bool)
}

// Visitor receives the ops of a write or of a section. It must not keep them. Its error ends the visit.
type Visitor interface {
	// Op receives each op on a row. For any other op that changes a count, it receives the change.
	Op(table Table, key uint64, op *engine.Op) error
	// Body receives each op on a body, such as a feed, as a pointer to an op of the kind. In a
	// section, the calls of Body come after all calls of Op.
	Body(key uint64, op any) error
	// Member receives each pair that joins or leaves a set. In a section, the calls of Member come
	// after all calls of Op.
	Member(p members.Pair) error
}

// FitsOnly implements Ops.Fits for ops that only shards of one kind have.
func FitsOnly(own, kind codec.Kind) error {
	if kind != own {
		return fmt.Errorf("%w: %s, not %s", ErrOtherOps, kind, own)
	}
	return nil
}
