package shard

import (
	"context"
	"fmt"
	"slices"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/replica"
)

// DropKeyspace drops a keyspace with all its rows, and returns the keyspace as it was. When
// DropKeyspace returns, the name may be used again, and the nodes that answered know of the drop.
// Each node deletes its replicas later.
func (n *Node) DropKeyspace(ctx context.Context, name string) (*Keyspace, error) {
	if name == catalogName || IsBuiltin(name) {
		return nil, &catalog.RefusedError{Reason: fmt.Sprintf("keyspace %s is built in", name)}
	}
	k, err := n.toDrop(ctx, name)
	if err != nil {
		return nil, err
	}
	r, index, err := n.catalogClient.Change(ctx, &catalog.Command{Drop: &catalog.DropEntry{Keyspace: name, FirstGroup: k.FirstGroup}})
	switch {
	case err != nil:
		return nil, err
	case r.Refused != "":
		return nil, &catalog.RefusedError{Reason: r.Refused}
	case r.Missing:
		return nil, errs.ErrUnknownKeyspace
	}
	if err := n.follow(); err != nil {
		return nil, fmt.Errorf("%w: %w", errs.ErrOutcomeUnknown, err)
	}
	n.catalogClient.Tell(ctx, index)
	n.cfg.Logger.Info("a keyspace was dropped", "keyspace", name, "first_group", k.FirstGroup, "shards", k.Shards)
	return k, nil
}

// DropColumn drops a column of a keyspace and returns the changed keyspace. Reads no longer show
// the counts of the column, and no other column ever gets its number.
func (n *Node) DropColumn(ctx context.Context, name, column string) (*Keyspace, error) {
	if b := kinds.BuiltinOf(name); b != nil && slices.Contains(b.Columns, column) {
		return nil, &catalog.RefusedError{Reason: fmt.Sprintf("column %s of keyspace %s is built in", column, name)}
	}
	k, err := n.toDrop(ctx, name)
	if err != nil {
		return nil, err
	}
	number := k.Column(column)
	if number < 0 {
		return nil, errs.ErrUnknownColumn
	}
	r, index, err := n.catalogClient.Change(ctx, &catalog.Command{DropColumn: &catalog.DropColumnEntry{
		Keyspace: name, FirstGroup: k.FirstGroup, Column: column, Number: number,
	}})
	switch {
	case err != nil:
		return nil, err
	case r.Refused != "":
		return nil, &catalog.RefusedError{Reason: r.Refused}
	case r.Missing && n.catalog.View().Dropped(k.FirstGroup):
		return nil, errs.ErrUnknownKeyspace
	case r.Missing:
		return nil, errs.ErrUnknownColumn
	}
	n.cfg.Logger.Info("a column was dropped", "keyspace", name, "column", column, "number", number)
	return n.served(ctx, name, index)
}

// toDrop returns the present keyspace with that name. It first waits for the newest catalog,
// because another node may have created the keyspace, or dropped and created it again.
func (n *Node) toDrop(ctx context.Context, name string) (*Keyspace, error) {
	if err := n.CatchUp(ctx); err != nil {
		return nil, err
	}
	if k := n.Keyspace(name); k != nil {
		return k, nil
	}
	return nil, errs.ErrUnknownKeyspace
}

// removeDropped closes this node's replicas of groups whose keyspaces were dropped, or whose parts were abandoned,
// and moves the files of closed replicas aside; finishDeletions deletes the files. runReconcile calls
// removeDropped after follow, which no longer opens such replicas. The deletion needs no proof by
// the group's leader, because nobody needs the votes or the writes of a dropped group.
func (n *replicas) removeDropped(view *catalog.View) {
	n.registry.changing.Lock()
	defer n.registry.changing.Unlock()
	table := n.registry.groups.Load() // under the lock: an earlier table may lack a newly opened group
	open, attempts := map[uint32]bool{}, map[uint32]uint32{}
	for _, g := range table.dropped {
		if !g.ends.Swap(true) {
			n.running.Go(func() { n.endDropped(g) }) // ends when the replica is closed, or once the node is stopping
		}
		open[g.number] = g.replica.Load() != nil || g.closing.Load() != nil
		attempts[g.number] = g.attempt
	}
	// The argument view may be newer than the view that follow used. Skip a group that was dropped
	// in between, because its replica is still open.
	for _, r := range n.registry.dirs.Replicas(func(group uint32) bool {
		return view.Dropped(group) && table.byNumber[group] == nil && !open[group]
	}) {
		logger := n.cfg.Logger.With("group", r.Group, "replica", replica.RaftID(n.cfg.NodeKey, r.Number))
		if attempt := attempts[r.Group]; attempt > 0 {
			logger = logger.With("attempt", attempt)
		}
		logger.Info("the keyspace of this node's replica was dropped, or the attempt to split its parent was abandoned; the replica is deleted")
		if err := n.registry.dirs.MoveAside(r.Group, r.Number); err != nil {
			if !n.lacks(err) {
				n.fatal(fmt.Errorf("cannot delete the replica of a keyspace that was dropped: %w", err))
			}
			return
		}
		n.wakeReconcile() // so that finishDeletions runs
	}
	for _, g := range table.dropped {
		if !open[g.number] {
			g.removed.Store(true)
		}
	}
}

// endDropped refuses the waiting requests of a dropped group, and closes this node's replica.
func (n *replicas) endDropped(g *shardReplica) {
	g.forward.Close()
	n.registry.changing.Lock() // wait for a goroutine that opens the replica again; later goroutines find the group dropped
	r := g.replica.Load()
	n.registry.changing.Unlock()
	if r == nil {
		return
	}
	if n.closeReplica(g, r) {
		n.registry.changing.Lock()
		g.closing.Store(nil)
		n.registry.changing.Unlock()
		n.wakeReconcile()
	}
}
