package tiering

import (
	"errors"
	"fmt"
	"sync/atomic"
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

// Machine is the state machine of this node's replica of a shard, of any kind. It reads rows in
// memory and on disk, and records damage for the replica's repair.
type Machine struct {
	raftfsm.Machine
	Damage  *Damage
	Spilled *Bodies // feeds or outboxes; nil for other kinds
	// VotersFull is set while this node leads the group and too few voters have free disk space
	// for writes.
	VotersFull atomic.Bool

	Group     uint32
	allowance atomic.Pointer[allowance] // of the last check; nil without limits
}

// Answer fills a part from this replica. If disk is false and the answer is not in memory, it
// returns errs.ErrColdRows. If disk is true, it may wait for the disk until the deadline. It
// records damaged rows, which the node then repairs. If the replica has another route than the
// part, it returns an errs.ErrMisrouted. After any error but ErrOverloaded and wire.ErrBadMessage,
// the caller may ask another replica.
func (m *Machine) Answer(q raftfsm.Query, p *raftfsm.Part, disk bool, deadline time.Time) error {
	return m.failure(raftfsm.Answer(q, m.Machine, p, disk, deadline))
}

// failure converts an error of the state machine, or nil, to the error that Answer returns.
func (m *Machine) failure(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftfsm.ErrNotInMemory):
		return errs.ErrColdRows
	case errors.Is(err, codec.ErrRoute):
		return rpc.ErrMisrouted(m.Route().Modulus, err.Error())
	case errors.Is(err, wire.ErrBadMessage):
		return err
	}
	return m.diskFailure(err)
}

// diskFailure converts an error of the disk, or nil, to the error of a read. It records damaged
// rows for repair.
func (m *Machine) diskFailure(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cold.ErrBusy):
		return fmt.Errorf("%w: %w", errs.ErrOverloaded, err)
	case IsDamage(err):
		m.Damage.Note(err)
	}
	return fmt.Errorf("%w: %w", errs.ErrNoQuorum, err)
}

// IsDamage reports whether an error shows that rows or members on disk are damaged.
func IsDamage(err error) bool {
	return errors.Is(err, cold.ErrDamaged) || errors.Is(err, members.ErrDamaged)
}

// get fills dst with width counts for each key, from a table of this replica, including cold rows.
// Its errors are those of Answer.
func (m *Machine) get(of raftfsm.Table, keys []uint64, width int, dst []int64, deadline time.Time) error {
	return m.failure(raftfsm.ReadRows(m.Machine, of, keys, width, dst, true, deadline))
}

// has reports whether a row has a count other than 0. If it cannot read the row by the deadline, it
// reports true.
func (m *Machine) has(of raftfsm.Table, key uint64, deadline time.Time) bool {
	var row [engine.ColumnsMax]int64
	if !m.TableOf(of).Get(key, row[:]) && m.get(of, []uint64{key}, len(row), row[:], deadline) != nil {
		return true
	}
	return row != [engine.ColumnsMax]int64{}
}

// GrowsTable reports whether an op creates a row. To find out, it may read the disk until the deadline.
func (m *Machine) GrowsTable(t raftfsm.Table, key uint64, op *engine.Op, deadline time.Time) bool {
	return m.TableOf(t) != nil && op.HasValue() && !m.has(t, key, deadline)
}

// widensTable reports whether an op may make the rows of its segment wider, so that each row of
// the segment takes more memory.
func (m *Machine) widensTable(t raftfsm.Table, key uint64, op *engine.Op) bool {
	keyed := *op
	keyed.ID = key
	return m.TableOf(t) != nil && m.TableOf(t).Widens(&keyed)
}
