package shard

import (
	"errors"
	"slices"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/propose"
)

// Package errs owns these errors. Callers may distinguish them and its other errors.
type (
	PartialError    = errs.PartialError
	UnreadableError = errs.UnreadableError
	NewRowError     = errs.NewRowError
)

// ReadError is returned by Read if some of the shards could not be read. The query has answers for
// the ids for which Of returns nil.
type ReadError struct {
	ByShard []error // one for each shard; nil for shards that were read or not needed
	Route   raftfsm.Route
}

func (e *ReadError) Error() string { return errors.Join(e.ByShard...).Error() }

func (e *ReadError) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(e.ByShard), func(err error) bool { return err == nil })
}

// Of returns the error of the shard of a requested id, or nil if that shard was read.
func (e *ReadError) Of(id uint64) error {
	s, _ := e.Route.KeyOf(id)
	return e.ByShard[s]
}

// Package propose owns tokens.
type (
	Token      = propose.Token
	GroupIndex = propose.GroupIndex
)

// ParseToken is propose.ParseToken.
func ParseToken(text []byte) (Token, error) { return propose.ParseToken(text) }

// Package leadership owns the forms of a status and of a report.
type (
	Status       = leadership.Status
	NodeStatus   = leadership.NodeStatus
	GroupStatus  = leadership.GroupStatus
	MemberStatus = leadership.MemberStatus

	NodeReport    = leadership.NodeReport
	ReplicaReport = leadership.ReplicaReport
)

// Consistency is the required freshness of a read.
type Consistency uint8

const (
	// Bounded, the default, reads a replica that had all acknowledged writes at most
	// ReadOptions.MaxStaleness ago.
	Bounded Consistency = iota
	// Stale reads a replica of any age, if possible this node's.
	Stale
	// Linearizable sees every write that was acknowledged before the read began.
	Linearizable
)

// MaxStalenessDefault is the default of ReadOptions.MaxStaleness.
const MaxStalenessDefault = time.Second

// ReadOptions has the required freshness and the deadline of a read.
type ReadOptions struct {
	Consistency  Consistency
	MaxStaleness time.Duration // Bounded only; 0 means MaxStalenessDefault
	Token        Token         // writes that the read must see; zero for none
	Deadline     time.Time     // must be set
}

// Write is a write request. After Node.Write has returned nil or a PartialError, it also has the
// answer. After Node.Write has returned, even with ErrOutcomeUnknown, the node keeps no reference
// to the Write or to anything in it.
type Write struct {
	Ops raftfsm.Ops     // ids are those of the client
	ID  dedup.RequestID // requests with the same ID are applied once; with the zero ID, each call is applied
	// For a write to several keyspaces, Spaces lists the keyspaces. In has one element for each op,
	// the index of the op's keyspace in Spaces. Spaces[0] is the keyspace passed to Node.Write. The
	// shards of Spaces[0] judge idempotency keys, so the choice of Spaces[0] must not depend on the
	// ops. Both are empty for a write to one keyspace.
	Spaces []*Keyspace
	In     []uint8
	// Whole has ranges of ops, each from its first op up to, but not including, its second number. The
	// ops of a range are applied together. If they are no longer on one shard, because it has split,
	// their error is errs.ErrCrossShard, or errs.ErrOutcomeUnknown if the write has an identity. Most writes have none.
	Whole    [][2]int
	Width    int       // columns of each result row; 0 for no results
	Deadline time.Time // must be set
	// Permission is checked right before each proposal, because a write may wait long for reads or
	// a leader. It is nil for a write of the node itself.
	Permission Permission

	Rows      []int64           // for each op, Width columns of its row as it was right after the op
	Overflows []engine.Overflow // refused ops, ascending by index; they changed nothing
	Cuts      []engine.Cut      // deltas that bounds changed, ascending by index of the op; none for a repeat
	Changed   []int             // indexes of ops that changed a set of members, ascending; none for a repeat
	Unknown   []int             // for a repeat: indexes of ops that were applied or refused, but no shard remembers which; ascending
	// Duplicate reports that the request is a repeat. For a key, the shard that judges the key
	// decides: only the first of several copies gets false, even if a retry applies missing parts.
	// For a producer, Duplicate is true if every shard had applied its part before. It is also true
	// if a shard's answer was lost and the node proposed an applied part again. If Duplicate is
	// true, Rows has the present counts.
	Duplicate bool
	// Repeated reports that this call applied no op, because each op had been applied or refused
	// before. For a write to one row, Repeated is more precise than Duplicate.
	Repeated bool
	Token    Token

	// Only writes of a source or a restore have Sections. Each element is the identity of the part
	// for one shard of all Spaces, or nil for a shard without a part. A part may have no ops.
	// Answers has the outcome of each part; it is nil if nothing was proposed. The error of the
	// write does not include the errors in Answers.
	Sections []*dedup.RequestID
	// Routes has, for the sections of a source, the route of each of Spaces by which they were chosen: see
	// Layout. If one is not the present route, Write returns errs.ErrOtherLayout and proposes nothing.
	Routes  []raftfsm.Route
	Answers []Answer
}

// Answer is the answer to a section of a source, or to the positions of a restore.
type Answer struct {
	Err     error
	Outcome dedup.Outcome
	At      dedup.PositionAnswer // valid only if Err is nil
}

// Permission checks whether the client of a write is still allowed to make it.
type Permission interface {
	// Still returns nil if the client is still allowed, and otherwise the error for the write.
	Still() error
}

// Permitted returns an error unless the client may make the write now.
func (w *Write) Permitted() error {
	if w.Permission == nil {
		return nil
	}
	return w.Permission.Still()
}
