package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard/tiering"
)

// get fills rows, width counts for each key, from a table of this replica, cold rows included.
// After any error but ErrOverloaded, the caller may ask another replica.
func (r *localReplica) get(of raftfsm.Table, keys []uint64, width int, rows []int64, deadline time.Time) error {
	table := r.fsm.TableOf(of)
	missing := table.GetMany(keys, width, rows, nil)
	if len(missing) == 0 {
		return nil
	}
	return r.readCold(table, keys, missing, width, rows, deadline)
}

// readCold fills the rows of those keys that GetMany reported as missing.
func (r *localReplica) readCold(table *engine.Table, keys []uint64, missing []int, width int, rows []int64, deadline time.Time) error {
	err := tiering.EachRead(len(missing), deadline, func(ctx context.Context, m int) error {
		i := missing[m]
		return table.ReadCold(ctx, keys[i], rows[i*width:(i+1)*width])
	})
	return r.tableFailure(table, err)
}

// eachBody calls read for each i in [0, n), several at once, until one call fails. read may read
// a feed or an outbox from disk. eachBody returns the same errors as get.
func (r *localReplica) eachBody(n int, deadline time.Time, read func(ctx context.Context, i int) error) error {
	return r.bodyFailure(tiering.EachRead(n, deadline, read))
}

// bodyFailure is coldFailure for feeds and outboxes. It records damage, so that the node repairs
// the replica.
func (r *localReplica) bodyFailure(err error) error {
	if errors.Is(err, cold.ErrDamaged) {
		r.damage.Note(err)
	}
	return coldFailure(err)
}

// tableFailure is bodyFailure for the cold rows of a table. It ignores damage in a table that a
// snapshot has replaced meanwhile: that table no longer has cold rows.
func (r *localReplica) tableFailure(table *engine.Table, err error) error {
	if errors.Is(err, cold.ErrDamaged) && r.fsm.TableOf(rows.Counts) == table {
		r.damage.Note(err)
	}
	return coldFailure(err)
}

// coldFailure returns the error of a read after the disk returned err.
func coldFailure(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cold.ErrBusy):
		return fmt.Errorf("%w: %w", ErrOverloaded, err)
	default:
		return fmt.Errorf("%w: %w", ErrNoQuorum, err)
	}
}

// failedAlone wraps the error of rows that this node cannot read and no other node has.
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

// readRun returns up to a chunk of rows of a table from a key on, encoded as localReplica.rows
// describes. If it cannot read cold rows, the caller may ask another replica.
func (r *localReplica) readRun(table *engine.Table, q *remoteRead) ([]int64, error) {
	rows := []int64{0}
	err := table.Scan(q.keys[0], q.width, func(p *engine.Page) bool {
		for i, key := range p.IDs[:min(len(p.IDs), q.chunk-int(rows[0]))] {
			rows = append(append(rows, int64(key)), p.Counts[i*q.width:(i+1)*q.width]...)
			rows[0]++
		}
		return int(rows[0]) < q.chunk
	})
	return rows, r.tableFailure(table, err)
}
