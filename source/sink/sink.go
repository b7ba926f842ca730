// Package sink declares the types between readers of queues and shards: positions, ops of
// messages, and the Sink that applies each op once. Package source reads queues into a Sink, and
// package sources implements Sink.
//
// Package sink never reads a queue or a shard, and imports no other package of this module.
package sink

import (
	"context"
	"errors"
	"fmt"
)

// ErrMoved is returned when another reader has moved the shards, or when the catalog has changed. A
// part of the batch may be applied. The reader must call Positions again, and continue at the
// positions that it returns.
var ErrMoved = errors.New("another reader has moved the source")

// ErrStopped is returned when the source is paused or deleted. The reader must end.
var ErrStopped = errors.New("the source is paused or deleted")

// ErrBusy is returned while a shard is being restored.
var ErrBusy = errors.New("a shard is being restored")

// OpKind is what an op does to its cells.
type OpKind uint8

// The kinds of ops. An op of kind Join or Leave has one cell, whose value has the 64 bits of the
// member.
const (
	Add OpKind = iota
	Set
	Join
	Leave
)

// OfMember reports whether an op adds or removes a member of a row's column.
func (k OpKind) OfMember() bool { return k == Join || k == Leave }

// Cell is a delta, a value or a member of one column.
type Cell struct {
	Column string
	Value  int64
}

// Op is one op of a message.
type Op struct {
	Position Position // position of its message
	Keyspace string   // "unread" for an op on a user
	ID       uint64   // id of the row or of the user
	Kind     OpKind
	Cells    []Cell
	HasFloor bool
	Floor    int64  // floor of all cells of an Add; valid only if HasFloor is set
	Texts    *Texts // nil if ID and the member are numbers in their message
}

// Texts has the texts of an op's ids that are not plain digits, "" for others. For a keyspace whose ids
// are texts, Sink.Apply puts the texts of all ids there, and their numbers into the op.
type Texts struct {
	ID, Member             string
	IDNumber, MemberNumber bool   // the text is also a number, such as 1.0, which is in the op
	IDAt, MemberAt         string // the fields in the message, for errors
}

// Batch has the ops of a partition between two positions.
type Batch struct {
	Source    uint64
	Partition uint32
	From      Position // Next of the previous batch, or the position at which the reader began
	Next      Position // the batch has the ops of all messages from From to Next
	Ops       []Op     // in the order of their messages, not merged
	// Mark returns the mark of the last message below a position of the batch; the zero Mark if
	// the reader has read no message yet. Mark may be nil.
	Mark func(below Position) Mark
}

// Rejection is an op that cannot be applied.
type Rejection struct {
	Op     int // index of the op in Batch.Ops
	Reason string
	// Check sets Passed if the op's shard has passed the message. Then the shard has already
	// applied or refused the op.
	Passed bool
}

// Refusal describes a message, or one op of a message, that no shard applies.
type Refusal struct {
	Position Position // position of the message
	Reason   string
}

// Applied is the answer of Sink.Apply.
type Applied struct {
	// Rejected has, in order, the ops that shards refused because a sum overflows. If an answer of
	// a shard was lost, its ops may be missing.
	Rejected []Rejection
	// Behind is the reason why a batch without ops did not move all shards, or "".
	Behind string
}

// Start is the recorded start of a partition.
type Start struct {
	Position Position
	Identity string // identity of the queue; "" if none is recorded
	Seek     uint32 // each seek changes it
}

// ShardPosition is the position of a partition in one shard.
type ShardPosition struct {
	Keyspace string
	Shard    int
	Position Position
	Mark     Mark // mark of the last message below Position
	Known    bool // if false, the shard has no position, and begins at Batch.From of the next Apply
	Late     bool // the shard does not answer; Known is false
}

// Silent returns the text that reports a shard that does not answer.
func Silent(keyspace string, shard int) string {
	return fmt.Sprintf("shard %d of keyspace %s does not answer: its messages wait", shard, keyspace)
}

// Span returns the lowest and the highest position of shards, or start twice if no shard has one.
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

// Sink applies each op exactly once. It is safe for concurrent use. Two readers of the same
// partition are harmless.
type Sink interface {
	// Begin records the starts of several partitions, all of them or none.
	Begin(ctx context.Context, source uint64, starts map[uint32]Position, identity string) error
	// Start returns the start that the catalog has for a partition. If the catalog has none, Start
	// first records the given start. If the catalog has one without an identity, as after a seek,
	// Start first records the identity. A reader must call it before Positions.
	Start(ctx context.Context, source uint64, partition uint32, start Start) (Start, error)
	// Check returns the ops of b that their shards would refuse, in order, and writes nothing. The
	// reader must have called Positions before.
	Check(ctx context.Context, b *Batch) ([]Rejection, error)
	// Positions returns the position of the partition in each shard that accepts ops of sources. A
	// reader begins at the lowest known position or, if none is known, at the recorded start. If a
	// shard does not answer, its Late may be set.
	Positions(ctx context.Context, source uint64, partition uint32) ([]ShardPosition, error)
	// Apply applies the ops of b and moves shards to b.Next. If b has ops, it moves at least their
	// shards. If b has no ops, it moves all shards that answer. A shard ignores ops that it has
	// applied already, so a batch may be repeated after any error.
	Apply(ctx context.Context, b *Batch) (Applied, error)
}
