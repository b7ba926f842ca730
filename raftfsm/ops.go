package raftfsm

import (
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/codec"
)

// ErrOtherOps is wrapped by the error of an op that the kind of its keyspace does not have.
var ErrOtherOps = errors.New("the keyspace is of another kind than the op")

// Ops are the ops of one write, in a form of their kind. Package shard puts each op, by its index,
// into the section of its shard. A write to several keyspaces has ops of one form, which fits the
// kinds of all of them.
type Ops interface {
	// Len returns the number of ops.
	Len() int
	// ID returns the id that an op is about, or 0 for an op about none.
	ID(op int) uint64
	// Fits returns nil if shards of a kind have the op. Otherwise it wraps ErrOtherOps.
	Fits(kind codec.Kind, op int) error
	// AppendTo appends an op that fits the shard's kind to a section, under a key that replaces its id. It
	// panics on an op that the format cannot express.
	AppendTo(w *RequestWriter, key uint64, op int)
	// See calls the visitor with an op under a key, as Kind.Check does with the op of a section.
	See(v Visitor, key uint64, op int) error
	// Refusable reports whether a shard may have refused the op, and the refusal then; its Op is not set. row
	// is the op's result row, or nil for a write without results.
	Refusable(op int, row []int64) (refused engine.Overflow, could bool)
}

// Visitor receives the ops of a write or of a section. It must not keep them. Its error ends the visit.
type Visitor interface {
	// Op receives each op on a row. For any other op that changes a count, it receives the change.
	Op(table Table, key uint64, op *engine.Op) error
	// Body receives the ops on what a kind stores under a key besides rows, such as a feed, as a
	// pointer to an op of the kind. In a section, they come after all calls of Op.
	Body(key uint64, op any) error
	// Member receives the pairs that join or leave sets. In a section, they come after all calls of Op.
	Member(p members.Pair) error
}

// FitsOnly implements Ops.Fits for ops that only shards of one kind have.
func FitsOnly(own, kind codec.Kind) error {
	if kind != own {
		return fmt.Errorf("%w: %s, not %s", ErrOtherOps, kind, own)
	}
	return nil
}
