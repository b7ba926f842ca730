// Package errs owns the errors that several packages under shard use, or that nodes send to each
// other. It also owns the loops that wait for a condition or retry.
//
// It never logs, and never decides which call may be repeated. Invariant: each error is declared once, here or
// by the one package that returns it; callers compare with errors.Is, never by text.
package errs

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// All these errors but ErrOutcomeUnknown promise that the call changed nothing.
var (
	// ErrOverloaded is returned when a group's queue is full, or when a write was withdrawn from
	// the queue at its deadline.
	ErrOverloaded = errors.New("too many writes in flight")
	// ErrTooLate is returned, together with ErrOverloaded, for a write that was withdrawn from the
	// queue at its deadline.
	ErrTooLate = errors.New("the deadline passed before the write was proposed")
	// ErrNoLeader is returned when a group has no leader that is ready to serve.
	ErrNoLeader = errors.New("the shard has no leader")
	// ErrNoQuorum is returned if a read was not confirmed, or the index in its token was not
	// applied, by the deadline.
	ErrNoQuorum = errors.New("the shard could not confirm the read in time")
	// ErrDraining is returned when the node is stopping.
	ErrDraining = errors.New("the node is stopping")
	// ErrDrained is returned by Ready while the node is drained.
	ErrDrained = errors.New("the node is drained: countctl node undrain ends that")
	// ErrOutcomeUnknown is returned when a write was proposed, but its outcome was unknown at the
	// deadline: it is applied once or never. It is also returned for a change of a keyspace that
	// was applied but cannot be served yet.
	ErrOutcomeUnknown = errors.New("the write was proposed but its outcome is unknown")
	// ErrMemoryFull is returned for a write that would create a row while the node is at its
	// memory limit. Writes to existing rows are accepted.
	ErrMemoryFull = errors.New("the node is at its memory limit")
	// ErrDiskFull is returned for a write while the free disk space is at or below the reserve.
	ErrDiskFull = errors.New("the disk is at its reserve")
	// ErrConflict is returned when a request's idempotency key was used with another body.
	ErrConflict = errors.New("the key was used for another request")
	// ErrExpired is returned when a request's identity is so old that nobody knows whether an
	// earlier call applied the request. This call did not apply it.
	ErrExpired = errors.New("the request is too old to tell whether it was applied")
	// ErrKeyspaceExists is returned when a keyspace of the same name exists with other columns,
	// floors, shards, sharding or ids.
	ErrKeyspaceExists = errors.New("the keyspace exists with other columns, floors, shards, sharding or ids")
	// ErrUnknownKeyspace is returned when the keyspace of a call does not exist, or was dropped
	// before the call ended.
	ErrUnknownKeyspace = errors.New("no such keyspace")
	// ErrUnknownColumn is returned for a drop of a column that does not exist, and for a write to a
	// dropped column.
	ErrUnknownColumn = errors.New("no such column")
	// ErrBadToken is returned for a token that no write of this cluster returned. Such a token is
	// malformed, or from another cluster, or from a state that this cluster lost when it was
	// restored from a backup.
	ErrBadToken = errors.New("not the token of a write that this cluster has: it is of another cluster, of a state before a restore, or was cut")
	// ErrRefused is returned for a command that the catalog refused when its log entry was applied.
	ErrRefused = errors.New("the catalog refused the command")
	// ErrCrossShard is returned for ops that must be applied together but are on several shards,
	// because their shard has split.
	ErrCrossShard = errors.New("the ops are on several shards, because their shard was split")
	// ErrColdRows is returned for a read that needs cold rows but does not wait for them.
	ErrColdRows = errors.New("the read needs cold rows")
)

// ErrBehind is returned for a read that this node's replica cannot answer now, although another
// replica may.
var ErrBehind = fmt.Errorf("%w: this replica is behind", ErrNoQuorum)

// ErrMisrouted is returned for a request that was routed with another number of shards, because the
// sending or the receiving node has an older catalog.
var ErrMisrouted = fmt.Errorf("%w for requests of another number of shards", ErrNoLeader)

// ErrOtherLayout is returned for sections that were chosen by another route of their keyspace than the
// present one.
var ErrOtherLayout = fmt.Errorf("%w: the keyspace has another layout by now", ErrMisrouted)

// ErrGroupClosed is returned for a proposal to a closing group, and for a read or write of the
// group's snapshots.
var ErrGroupClosed = errors.New("the group is closing")

// NeverProposed reports whether err, from the future of a proposal, promises that no log has or
// will have the entry. Any other error means an unknown outcome.
func NeverProposed(err error) bool {
	return errors.Is(err, ErrGroupClosed) || errors.Is(err, raft.ErrNotLeader) ||
		errors.Is(err, raft.ErrEnqueueTimeout) || errors.Is(err, raft.ErrLeadershipTransferInProgress)
}

// ArgumentError is returned for an invalid value in an operator's request. Field is the JSON path
// of the value, such as "columns[1]".
type ArgumentError struct{ Field, Problem string }

func (e *ArgumentError) Error() string { return e.Field + ": " + e.Problem }

// DiskFullError is returned for a write while the disk has too little free space. It wraps
// ErrDiskFull.
type DiskFullError struct {
	FreeBytes    uint64
	NeededBytes  uint64 // the reserve plus the size of the next snapshots
	ReserveBytes uint64 // the configured reserve
}

func (e *DiskFullError) Error() string {
	return fmt.Sprintf("%v: %d bytes are free and more than %d are needed, of which %d are the reserve",
		ErrDiskFull, e.FreeBytes, e.NeededBytes, e.ReserveBytes)
}

func (e *DiskFullError) Unwrap() error { return ErrDiskFull }
