package shard

import (
	"context"
	"fmt"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/replica"
)

// DropKeyspace drops a keyspace with all its rows, and returns it as it was. Once DropKeyspace
// returns, the name is free, and the nodes that answered know of the drop. Each node deletes its
// replicas afterwards.
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
		return nil, ErrUnknownKeyspace
	}
	if err := n.follow(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	n.catalogClient.Tell(ctx, index)
	n.cfg.Logger.Info("a keyspace was dropped", "keyspace", name, "first_group", k.FirstGroup, "shards", k.Shards)
	return k, nil
}

// DropColumn drops a column of a keyspace and returns the keyspace without it. Reads no longer show
// the counts of the column, and no other column ever gets its number.
func (n *Node) DropColumn(ctx context.Context, name, column string) (*Keyspace, error) {
	if keyspace.HasBuiltin(name, column) {
		return nil, &catalog.RefusedError{Reason: fmt.Sprintf("column %s of keyspace %s is built in", column, name)}
	}
	k, err := n.toDrop(ctx, name)
	if err != nil {
		return nil, err
	}
	number := k.Column(column)
	if number < 0 {
		return nil, ErrUnknownColumn
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
		return nil, ErrUnknownKeyspace
	case r.Missing:
		return nil, ErrUnknownColumn
	}
	n.cfg.Logger.Info("a column was dropped", "keyspace", name, "column", column, "number", number)
	return n.served(ctx, name, index)
}

// toDrop returns the present keyspace of a name. It catches up first: another node may have created
// the keyspace, or dropped and created it again.
func (n *Node) toDrop(ctx context.Context, name string) (*Keyspace, error) {
	if err := n.CatchUp(ctx); err != nil {
		return nil, err
	}
	if k := n.Keyspace(name); k != nil {
		return k, nil
	}
	return nil, ErrUnknownKeyspace
}

// removeDropped closes this node's replicas of groups whose keyspaces were dropped, and moves aside
// the files of those that are closed; finishDeletions deletes them. runReconcile calls it after
// follow, so nobody opens such a replica any more. It needs no proof by the group's leader, because
// all promises of a dropped group end with the group.
func (n *Node) removeDropped(view *catalog.View) {
	n.registry.changing.Lock()
	defer n.registry.changing.Unlock()
	table := n.registry.groups.Load() // under changing: an older table may lack a group that was opened since
	open := map[uint32]bool{}
	for _, g := range table.dropped {
		if !g.ends.Swap(true) {
			n.running.Go(func() { n.endDropped(g) }) // ends with the replica, or once the node is stopping
		}
		open[g.number] = g.replica.Load() != nil || g.closing.Load() != nil
	}
	// view may be newer than the view that follow used, so a group that only view has dropped is
	// still open.
	for _, r := range n.registry.dirs.Replicas(func(group uint32) bool {
		return view.Dropped(group) && table.byNumber[group] == nil && !open[group]
	}) {
		n.cfg.Logger.Info("the keyspace of this node's replica was dropped, and the replica is deleted", "group", r.Group, "replica", replica.RaftID(n.cfg.NodeKey, r.Number))
		if err := n.registry.dirs.MoveAside(r.Group, r.Number); err != nil {
			if !n.lacks(err) {
				n.fatal(fmt.Errorf("cannot delete the replica of a keyspace that was dropped: %w", err))
			}
			return
		}
		n.wakeReconcile() // to finish the deletion
	}
	for _, g := range table.dropped {
		if !open[g.number] {
			g.removed.Store(true)
		}
	}
}

// endDropped refuses the requests that wait for a dropped group, and closes this node's replica.
func (n *Node) endDropped(g *shardReplica) {
	g.forward.Close()
	n.registry.changing.Lock() // a goroutine that opens the replica again has finished, or will find the group dropped
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
