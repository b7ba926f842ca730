package shard

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard/restore"
)

// The errors of RestoreShard; see package restore.
var (
	ErrNotEmpty      = restore.ErrNotEmpty
	ErrBadSnapshot   = restore.ErrBadSnapshot
	ErrRestoredOther = restore.ErrRestoredOther
	ErrOtherRestore  = restore.ErrOtherRestore
)

// RestoreOptions are the options of RestoreShard.
type RestoreOptions = restore.Options

// restoreScanRows is the number of rows that a restore reads at once, with all columns: some
// megabytes.
const restoreScanRows = 4096

// RestoreShard sets the rows of a shard to those of a snapshot; see restore.Shard.
func (n *Node) RestoreShard(ctx context.Context, number uint32, stream io.Reader, o RestoreOptions) (raftfsm.SnapshotFacts, error) {
	g := n.registry.shardOf(number)
	if g == nil {
		return raftfsm.SnapshotFacts{}, ErrNotBackedUp
	}
	ks := n.Keyspace(g.keyspace)
	if ks == nil {
		return raftfsm.SnapshotFacts{}, orDropped(n.catalog.View(), number, fmt.Errorf("%w: keyspace %s is being created", ErrNoLeader, g.keyspace))
	}
	if number-ks.FirstGroup >= uint32(ks.Shards) {
		return raftfsm.SnapshotFacts{}, ErrUnknownKeyspace // the keyspace of the group was dropped, and another got its name
	}
	return restore.Shard(ctx, restore.Config{
		Keyspace: ks, Shard: g.shard, Kind: g.kind, Node: restoring{n, ks, g},
		Catalog: n.catalog, CatchUp: n.CatchUp, Draining: &n.draining,
	}, stream, o)
}

// restoring implements restore.Node.
type restoring struct {
	node     *Node
	keyspace *Keyspace
	group    *shardReplica
}

func (r restoring) Write(w *restore.Write) error {
	write := &Write{Ops: w.Ops, Table: w.Table, Feeds: w.Feeds, Board: w.Board, Outbox: w.Outbox, ID: w.ID, Deadline: w.Deadline}
	err := r.node.Write(r.keyspace, write)
	w.Refused = len(write.Overflows) > 0
	return err
}

func (r restoring) WritePositions(id RequestID, deadline time.Time) error {
	w := &Write{ID: id, sections: make([]*RequestID, r.keyspace.Shards), Deadline: deadline}
	w.sections[r.group.shard] = &id
	if err := r.node.Write(r.keyspace, w); err != nil {
		return err
	}
	return w.answers[r.group.shard].Err
}

func (r restoring) Rows(ctx context.Context, table raftfsm.Table, from uint64) ([]uint64, error) {
	opt := &ReadOptions{Consistency: Linearizable}
	opt.Deadline, _ = ctx.Deadline()
	q := rows.Scan{Table: table, Width: engine.ColumnsMax, Limit: restoreScanRows, OneShard: true, Shard: r.group.shard, From: from}
	err := r.node.Read(r.keyspace, &q, nil, opt)
	return q.IDs, err
}

func (r restoring) Leader(ctx context.Context) (restore.State, error) {
	var led *ReplicaReport
	for _, report := range r.node.Reports(ctx) {
		for i, replica := range report.Replicas {
			if replica.ID == r.group.number && replica.Role == "leader" && (led == nil || replica.Term > led.Term) {
				led = &report.Replicas[i]
			}
		}
	}
	if led == nil {
		return restore.State{}, ErrNoLeader
	}
	return restore.State{Rows: led.Rows, Outboxes: led.Outboxes, Members: led.Pairs, Digest: led.Digest}, nil
}

func (r restoring) BoardEnd(deadline time.Time) (*[engine.ColumnsMax]int64, error) {
	ks := r.node.Keyspace(KeyspaceBoard)
	if ks == nil {
		return nil, fmt.Errorf("%w: keyspace %s is being created", ErrNoLeader, KeyspaceBoard)
	}
	var q board.Query
	if err := r.node.Read(ks, &q, nil, &ReadOptions{Consistency: Linearizable, Deadline: deadline}); err != nil {
		return nil, err
	}
	end := q.View.CursorsEnd()
	return &end, nil
}
