package admin

import (
	"errors"
	"fmt"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
)

// This file empties a shard before its restore.

// empty begins the restore: it deletes everything in the shard, and stops sources from adding
// rows. Without force it returns ErrShardNotEmpty for a shard that is not empty.
func (r *restore) empty(force bool) error {
	if !r.takesPositions() {
		return r.clear(force)
	}
	tables, counts := []raftfsm.Table{rows.Counts}, r.kind == codec.KindCounters
	if !counts {
		tables = append(tables, unread.Cursors)
	}
	for _, table := range tables {
		if ids, err := r.rowsFrom(table, 0); err != nil {
			return err
		} else if len(ids) > 0 && !force {
			return r.notEmpty()
		}
	}
	if counts && !force {
		if led, err := r.leader(); err != nil {
			return err
		} else if led.Outboxes+led.Pairs > 0 { // outboxes and members may exist without a row
			return r.notEmpty()
		}
	}
	first := engine.Op{ID: r.route.LeastID(r.shard), Kind: engine.OpAdd, Cells: []engine.Cell{{}}} // changes nothing
	if err := r.begin(counters.Ops{first}); err != nil {
		return err
	}
	if err := r.closePositions(); err != nil {
		return err
	}
	if counts {
		r.next.ops = counters.Ops{{ID: first.ID, Kind: engine.OpClearMembers}}
		if err := r.flush(); err != nil {
			return err
		}
	}
	for _, table := range tables {
		if err := r.emptyTable(table); err != nil {
			return err
		}
	}
	if counts { // the deletion of a row deletes its outbox too; this clears outboxes of authors without a row
		r.next.ops = counters.OutboxOps{{Author: first.ID, PostOp: counters.PostOp{Kind: counters.ClearOutboxes}}}
	}
	return r.flush()
}

func (r *restore) notEmpty() error {
	return fmt.Errorf("%w: shard %d of keyspace %s", ErrShardNotEmpty, r.shard, r.keyspace.Name)
}

func (r *restore) emptyTable(table raftfsm.Table) error {
	for from := uint64(0); ; {
		ids, err := r.rowsFrom(table, from)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return r.flush()
		}
		for _, id := range ids {
			if err := r.add(table, engine.Op{ID: id, Kind: engine.OpDelete}); err != nil {
				return errors.Join(err, r.flush())
			}
		}
		_, last := r.route.KeyOf(slices.Max(ids))
		from = last + 1
	}
}

// rowsFrom returns the ids of some rows of a table in order, from the given key on. It returns none
// if there is no such row.
func (r *restore) rowsFrom(table raftfsm.Table, key uint64) ([]uint64, error) {
	q := rows.Scan{Table: table, Width: engine.ColumnsMax, Limit: restoreScanRows, OneShard: true, Shard: r.shard, From: key}
	err := r.read(r.keyspace, &q)
	return q.IDs, err
}
