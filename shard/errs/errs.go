// Package errs owns the errors that the packages under shard share: those that callers
// distinguish, and those that are sent between nodes. It also owns the loops that wait until there
// is no error.
//
// It never logs, and never decides which call may be repeated. Invariant: each error is declared once, here or
// by the one package that returns it; callers compare with errors.Is, never by text.
package errs

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// All but ErrOutcomeUnknown promise that the call applied nothing.
var (
	// ErrOverloaded is returned when a group's queue is full, or when a write
	// waited there until its deadline and was withdrawn.
	ErrOverloaded = errors.New("too many writes in flight")
	// ErrTooLate is returned, beside ErrOverloaded, for a write that waited until
	// its deadline and was withdrawn.
	ErrTooLate = errors.New("the deadline passed before the write was proposed")
	// ErrNoLeader is returned when a group has no leader that may serve yet.
	ErrNoLeader = errors.New("the shard has no leader")
	// ErrNoQuorum is returned if a read was not confirmed, or its token's index not applied, by
	// the deadline.
	ErrNoQuorum = errors.New("the shard could not confirm the read in time")
	// ErrDraining is returned when the node is stopping.
	ErrDraining = errors.New("the node is stopping")
	// ErrDrained is returned by Ready while the node is drained.
	ErrDrained = errors.New("the node is drained: countctl node undrain ends that")
	// ErrOutcomeUnknown is returned when a write was proposed and its outcome was
	// not known by the deadline: it happens once or never. A change of a keyspace
	// that happened and cannot be served yet returns it too.
	ErrOutcomeUnknown = errors.New("the write was proposed but its outcome is unknown")
	// ErrMemoryFull is returned for a write that would create a row while the node is at its
	// memory limit. Writes to existing rows are accepted.
	ErrMemoryFull = errors.New("the node is at its memory limit")
	// ErrDiskFull is returned for a write while the free disk space is at or below the reserve.
	ErrDiskFull = errors.New("the disk is at its reserve")
	// ErrConflict is returned when a request's key was used for another body.
	ErrConflict = errors.New("the key was used for another request")
	// ErrExpired is returned when a request's identity is too old to tell whether
	// the request was applied. It is not applied now.
	ErrExpired = errors.New("the request is too old to tell whether it was applied")
	// ErrKeyspaceExists is returned when a keyspace is created with the name of one
	// that has another shape.
	ErrKeyspaceExists = errors.New("the keyspace exists with other columns, floors, shards or sharding")
	// ErrUnknownKeyspace is returned when a keyspace to change does not exist, or
	// was dropped before the call ended.
	ErrUnknownKeyspace = errors.New("no such keyspace")
	// ErrUnknownColumn is returned when a column to drop does not exist, and for a
	// write to a column that was dropped.
	ErrUnknownColumn = errors.New("no such column")
	// ErrBadToken is returned for a token that no write of this cluster returned. The
	// token is malformed or from another cluster. Or its index is above the log,
	// because the cluster was restored to an older state.
	ErrBadToken = errors.New("not a token of a countd write")
	// ErrColdRows is returned for a read that does not wait for cold rows and needs
	// some.
	ErrColdRows = errors.New("the read needs cold rows")
)

// ErrBehind is returned for a read that this node's replica cannot answer now. Another replica
// may.
var ErrBehind = fmt.Errorf("%w: this replica is behind", ErrNoQuorum)

// ErrMisrouted is returned for a request that was routed by another number of shards than the
// receiving node knows: one of the two nodes has an older catalog.
var ErrMisrouted = fmt.Errorf("%w for requests of another number of shards", ErrNoLeader)

// ErrGroupClosed is returned for a proposal to a group that is closing, and by reads and writes of
// its snapshots.
var ErrGroupClosed = errors.New("the group is closing")

// NeverProposed reports whether err, from the future of a proposal, promises that no
// log has the entry and none ever will. Any other error leaves that open.
func NeverProposed(err error) bool {
	return errors.Is(err, ErrGroupClosed) || errors.Is(err, raft.ErrNotLeader) ||
		errors.Is(err, raft.ErrEnqueueTimeout) || errors.Is(err, raft.ErrLeadershipTransferInProgress)
}

// ArgumentError is returned for a bad name or bound in a request of an operator. Field is
// the JSON path of what is wrong, such as "columns[1]".
type ArgumentError struct{ Field, Problem string }

func (e *ArgumentError) Error() string { return e.Field + ": " + e.Problem }
