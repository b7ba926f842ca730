// Package sink owns what lies between the readers of queues and the shards: positions of a
// partition, ops of messages, and the Sink that applies them exactly once. Package source
// reads queues into a Sink; package shard implements it.
//
// It never reads a queue or a shard, and imports nothing of this module.
package sink

import (
	"context"
	"errors"
)

// ErrMoved is returned when the shards are not where the reader believes: another reader
// has moved them, or the catalog has changed. Nothing may have been applied, or a part.
// The reader reads Positions again and continues from there.
var ErrMoved = errors.New("another reader has moved the source")

// ErrStopped is returned when the source is paused or deleted. The reader ends.
var ErrStopped = errors.New("the source is paused or deleted")

// ErrBusy is returned while a shard is being restored. It takes ops again once the
// restore has ended.
var ErrBusy = errors.New("a shard is being restored")

// OpKind is what an op does with its cells.
type OpKind uint8

// The kinds of ops. Join and Leave have one cell: the column, and the member's 64 bits as its
// value.
const (
	Add OpKind = iota
	Set
	Join
	Leave
)

// OfMember reports whether an op changes a set of members.
func (k OpKind) OfMember() bool { return k == Join || k == Leave }

// Cell is a delta, a value or a member of one column.
type Cell struct {
	Column string
	Value  int64
}

// Op is one op of a message.
type Op struct {
	Position Position // of its message
	Keyspace string   // "unread" for an op of a user
	ID       uint64   // of the row, or the user
	Kind     OpKind
	Cells    []Cell
	HasFloor bool
	Floor    int64 // if HasFloor: of an Add, for all its cells
}

// Batch is what a reader has read of a partition between two positions.
type Batch struct {
	Source    uint64
	Partition uint32
	From      Position // Next of the batch before, or where the reader began
	Next      Position // everything below it is in this batch or handled
	Ops       []Op     // in the order of their messages, not merged
	// Mark returns the mark of the last message below a position of the batch, the zero Mark if its
	// reader has read none since it began. Nil is a reader that has read none.
	Mark func(below Position) Mark
}

// Rejection is an op that cannot be applied.
type Rejection struct {
	Op     int // its index
	Reason string
	// Passed is set by Check where the op's shard has passed its message: the op is applied, or
	// was refused when the shard did.
	Passed bool
}

// Refusal is a message that is not applied, or an op of one.
type Refusal struct {
	Position Position // of the message
	Reason   string
}

// Applied is the answer of Sink.Apply.
type Applied struct {
	// Rejected are ops that the shards refused, ascending: their sums overflow. After an
	// answer was lost it may lack some.
	Rejected []Rejection
	// Behind says why a batch without ops moved less than all shards; "" if it moved all.
	Behind string
}

// Start is where a partition begins, and which queue it was then.
type Start struct {
	Position Position
	Identity string // of the queue; "" if none is recorded
	Seek     uint32 // another after each seek
}

// ShardPosition is the position of a partition in one shard.
type ShardPosition struct {
	Keyspace string
	Shard    int
	Position Position
	Mark     Mark // of the last message below Position
	Known    bool // false: the shard has none and begins at Batch.From of the next Apply
	Late     bool // it does not answer; Known is false
}

// Span returns the lowest and the highest position of shards, or start if no shard has one.
func Span(shards []ShardPosition, start Position) (low, high Position) {
	low, high = start, start
	known := false
	for _, s := range shards {
		if !s.Known {
			continue
		}
		if !known || s.Position.Less(low) {
			low = s.Position
		}
		if !known || high.Less(s.Position) {
			high = s.Position
		}
		known = true
	}
	return low, high
}

// Sink applies the ops of partitions, in each shard exactly once. It is safe for use by
// several goroutines. Two readers of one partition, on one node or on two, do no harm.
type Sink interface {
	// Begin records where partitions of a queue begin, all or none of them, as Start does.
	Begin(ctx context.Context, source uint64, starts map[uint32]Position, identity string) error
	// Start records start in the catalog unless the partition has one with an identity,
	// and returns what is recorded. After a seek the position is the sought one and only
	// the identity is recorded. A reader calls it before Positions.
	Start(ctx context.Context, source uint64, partition uint32, start Start) (Start, error)
	// Check returns the ops of b that no shard would take, ascending, without writing anything.
	// Positions was called before.
	Check(ctx context.Context, b *Batch) ([]Rejection, error)
	// Positions returns the position of the partition in each shard that can have ops. A
	// reader begins at the lowest known one or, if none is known, at the recorded start. Some
	// that do not answer may be Late.
	Positions(ctx context.Context, source uint64, partition uint32) ([]ShardPosition, error)
	// Apply applies the ops of b and moves shards to b.Next. It moves all of them if b has
	// no ops, unless some do not answer, else at least those with ops. It drops the ops that a shard has applied
	// already, so that a batch may be repeated after any error.
	Apply(ctx context.Context, b *Batch) (Applied, error)
}
