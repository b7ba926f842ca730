package shard

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
)

// DropKeyspace drops a keyspace, with all its rows, and returns what it was. Its name is
// free when DropKeyspace returns, and the nodes that answer know it. Each node deletes its
// replicas after that.
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

// DropColumn drops a column of a keyspace and returns the keyspace without it. The counts
// of the column are not shown any more, and no other column gets its number.
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

// toDrop returns a keyspace of which something is to be dropped, as it is now: another
// node may have made it, or dropped and made it again.
func (n *Node) toDrop(ctx context.Context, name string) (*Keyspace, error) {
	if err := n.CatchUp(ctx); err != nil {
		return nil, err
	}
	if k := n.Keyspace(name); k != nil {
		return k, nil
	}
	return nil, ErrUnknownKeyspace
}

// removeDropped begins to delete what this node has of groups whose keyspaces were
// dropped, unless it is under way. runReconcile calls it after follow, so that no replica
// of them is opened any more. It needs no proof of their leaders, as for a replica that
// was removed: all that a group has promised goes with it.
func (n *Node) removeDropped(view *catalog.View) {
	if n.removing.Swap(true) {
		return // what is left is looked for once that has ended: before, it would be found twice
	}
	dropped, left := n.droppedHere(view)
	if len(dropped)+len(left) == 0 {
		n.removing.Store(false)
		return
	}
	n.running.Go(func() { // ends with the replicas
		err := n.deleteDropped(dropped, left)
		n.removing.Store(false)
		switch {
		case err == nil:
			n.wakeReconcile() // what was dropped meanwhile waits
		case !n.lacks(err):
			n.fatal(fmt.Errorf("cannot delete the replicas of a keyspace that was dropped: %w", err))
		}
	})
}

// deleteDropped closes this node's replicas of dropped groups, then deletes the files of left.
func (n *Node) deleteDropped(dropped []*shardReplica, left []raftstore.ReplicaID) error {
	var closing errgroup.Group
	for _, g := range dropped {
		closing.Go(func() error { return n.closeDropped(g) })
	}
	if err := closing.Wait(); err != nil {
		return err
	}
	for _, r := range left {
		n.cfg.Logger.Info("the keyspace of this node's replica was dropped, and the replica is deleted", "group", r.Group, "replica", replica.RaftID(n.cfg.NodeKey, r.Number))
		if err := n.registry.dirs.GiveUp(r.Group, r.Number); err != nil {
			return err
		}
	}
	for _, g := range dropped {
		g.removed.Store(true)
	}
	return nil
}

// droppedHere returns the groups that follow has found dropped, and the replicas here that
// are dropped and of no other group that may be open. view may be newer than the one that
// follow went by: a group that only view has dropped is open still, and follow's to find.
func (n *Node) droppedHere(view *catalog.View) ([]*shardReplica, []raftstore.ReplicaID) {
	n.registry.changing.Lock()
	defer n.registry.changing.Unlock()
	table := n.registry.groups.Load()
	return table.dropped, n.registry.dirs.Replicas(func(group uint32) bool {
		return view.Dropped(group) && table.byNumber[group] == nil
	})
}

// closeDropped ends what waits for a group that was dropped, and closes this node's
// replica of it.
func (n *Node) closeDropped(g *shardReplica) error {
	g.forward.Close()
	n.registry.changing.Lock() // whoever opens it again has done so, or finds none
	r := g.replica.Swap(nil)
	n.registry.changing.Unlock()
	if r == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := r.close(ctx, false); err != nil {
		return fmt.Errorf("cannot close the replica of group %d: %w", g.number, err)
	}
	return nil
}
