package errs

import (
	"errors"
	"fmt"
)

// This file has errors of package shard. Every error of a write except ErrOutcomeUnknown promises that
// this call applied nothing. A PartialError promises that the call applied only the ops that it lists.
// But an earlier call with the same identity may have been applied: some errors, such as ErrDiskFull,
// refuse a repeat as well.

var (
	// ErrUnreadable is returned if rows are damaged on disk and no other node has them. It comes as
	// an UnreadableError, together with ErrNoQuorum.
	ErrUnreadable = errors.New("the shard has rows on disk that are damaged")
	// ErrKeyAhead is returned, together with ErrExpired, if the time in a key is further ahead than
	// shards remember keys.
	ErrKeyAhead = errors.New("the time in the key (a UUIDv7) is too far ahead of the server's")
)

// PartialError is returned by Write if the outcomes of the shards differ. Applied and Unknown have
// the ids of ops in the order of the request, with duplicates. An op that is in neither list was
// not applied, because its shard failed or its sum overflowed. For a repeat, Applied includes ops
// that an earlier call applied, and Unknown includes Write.Unknown. The Write has the answer to
// each op for which Of returns nil.
type PartialError struct {
	Err     error // worst error of the shards; Unwrap returns it
	Applied []uint64
	Unknown []uint64
	// AppliedOps and UnknownOps have the indexes of the same ops, because an id may be ambiguous in
	// a write to several keyspaces.
	AppliedOps, UnknownOps []int
	ByOp                   []error // for each op, the error of its shard; nil for a shard that answered
}

// Of returns the error of an op's shard, or nil if that shard answered.
func (e *PartialError) Of(op int) error {
	if len(e.ByOp) == 0 {
		return e.Err
	}
	return e.ByOp[op]
}

func (e *PartialError) Error() string {
	return fmt.Sprintf("%v (%d ops applied, %d unknown)", e.Err, len(e.Applied), len(e.Unknown))
}

func (e *PartialError) Unwrap() error { return e.Err }

// UnreadableError is an ErrUnreadable with its shard.
type UnreadableError struct {
	Keyspace string
	Shard    int
	Err      error // ErrNoQuorum and the error of the disk
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("%v: shard %d of keyspace %s", ErrUnreadable, e.Shard, e.Keyspace)
}

func (e *UnreadableError) Unwrap() []error { return []error{ErrUnreadable, e.Err} }

// NewRowError is returned for a write that needs a new row, or wider rows, while memory is full or the
// keyspace is at a limit. No op of the write was applied, unless the error is the Err of a PartialError.
// It wraps ErrMemoryFull or a LimitError.
type NewRowError struct {
	Op    int         // index of the first such op
	Wider bool        // the op creates no row, but widens the rows of its segment
	Limit *LimitError // nil if memory is full
}

func (e *NewRowError) Error() string {
	if e.Wider {
		return fmt.Sprintf("%v: op %d widens the rows near its own", e.Unwrap(), e.Op)
	}
	return fmt.Sprintf("%v: op %d makes a row", e.Unwrap(), e.Op)
}

func (e *NewRowError) Unwrap() error {
	if e.Limit != nil {
		return e.Limit
	}
	return ErrMemoryFull
}

// LimitError is returned for a write that needs a new row while its keyspace is at a limit. The text names the
// keyspace, the limit and the shard's size. Nodes send each other only the text.
type LimitError struct{ Text string }

func (e *LimitError) Error() string { return e.Text }

func (e *LimitError) Unwrap() error { return ErrLimit }

// ErrLimit is returned, as a LimitError, for a write that would create a row in a keyspace that is at a limit.
var ErrLimit = errors.New("the keyspace is at its limit")

// RefusesRows reports whether an error refuses an op only because the op needs a new row, or wider rows.
func RefusesRows(err error) bool { return errors.Is(err, ErrMemoryFull) || errors.Is(err, ErrLimit) }
