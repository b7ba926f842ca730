package shard

import (
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// answer fills a part from this replica. If disk is false and the answer is not in memory, it
// returns errs.ErrColdRows. If disk is true, it may wait for the disk until the deadline. It
// records damaged rows, which the node then repairs. If the replica has another route than the
// part, it returns an errs.ErrMisrouted. After any error but ErrOverloaded and wire.ErrBadMessage,
// the caller may ask another replica.
func (r *localReplica) answer(q raftfsm.Query, p *raftfsm.Part, disk bool, deadline time.Time) error {
	return r.failure(raftfsm.Answer(q, r.fsm, p, disk, deadline))
}

// failure converts an error of the state machine, or nil, to the error that answer returns.
func (r *localReplica) failure(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftfsm.ErrNotInMemory):
		return errs.ErrColdRows
	case errors.Is(err, codec.ErrRoute):
		return rpc.ErrMisrouted(r.fsm.Route().Modulus, err.Error())
	case errors.Is(err, wire.ErrBadMessage):
		return err
	}
	return r.diskFailure(err)
}

// diskFailure converts an error of the disk, or nil, to the error of a read. It records damaged
// rows for repair.
func (r *localReplica) diskFailure(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cold.ErrBusy):
		return fmt.Errorf("%w: %w", errs.ErrOverloaded, err)
	case errors.Is(err, cold.ErrDamaged) || errors.Is(err, members.ErrDamaged):
		r.damage.Note(err)
	}
	return fmt.Errorf("%w: %w", errs.ErrNoQuorum, err)
}

// get fills dst with width counts for each key, from a table of this replica, including cold rows.
// Its errors are those of answer.
func (r *localReplica) get(of raftfsm.Table, keys []uint64, width int, dst []int64, deadline time.Time) error {
	return r.failure(raftfsm.ReadRows(r.fsm, of, keys, width, dst, true, deadline))
}

// failedAlone wraps the error for damaged rows that no other node has.
func (g *shardReplica) failedAlone(err error) error {
	if errors.Is(err, cold.ErrDamaged) || errors.Is(err, members.ErrDamaged) {
		return &UnreadableError{Keyspace: g.keyspace, Shard: g.shard, Err: err}
	}
	return fmt.Errorf("shard %d of keyspace %s: %w", g.shard, g.keyspace, err)
}

// has reports whether a row has a count other than 0. If it cannot read the row by the deadline, it
// reports true.
func (r *localReplica) has(of raftfsm.Table, key uint64, deadline time.Time) bool {
	var row [engine.ColumnsMax]int64
	if !r.fsm.TableOf(of).Get(key, row[:]) && r.get(of, []uint64{key}, len(row), row[:], deadline) != nil {
		return true
	}
	return row != [engine.ColumnsMax]int64{}
}
