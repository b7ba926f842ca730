package shard

import (
	"errors"
	"time"

	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/raftfsm/catalog"
)

// reconcileTick is how often a node compares its groups with the catalog
// when nothing tells it to.
const reconcileTick = 500 * time.Millisecond

// runReconcile keeps the groups of this node as the catalog has them: it holds
// replicas of those that it is a target of, drops those that it was removed
// from or whose keyspace was dropped, changes the members of those that it leads, and hands over what it
// should not lead. It keeps no state but theirs. Open starts it, Close stops and
// waits for it.
func (n *Node) runReconcile() {
	tick := time.NewTicker(reconcileTick)
	defer tick.Stop()
	for {
		changed := n.catalog.View().Changed()
		n.reconcile()
		select {
		case <-changed:
		case <-n.reconcileNow:
		case <-tick.C:
		case <-n.stopping:
			return
		}
	}
}

func (n *Node) reconcile() {
	if err := n.follow(); err != nil && !errors.Is(err, ErrDraining) && !n.lacks(err) {
		n.fatal(err)
		return
	}
	n.finishDeletions()
	view := n.catalog.View()
	n.removeDropped(view)
	n.membership.Reconcile(n.registry.meta, view)
	tellCatalog := true // until it does not answer: the other groups are not to wait for it
	for _, g := range n.registry.groups.Load().all {
		r := g.replica.Load()
		if r != nil && r.mustReopen.Load() {
			_ = n.reopen(g, r) // which has ended the process, or follow opens it
			r = g.replica.Load()
		}
		if r == nil {
			continue
		}
		if !n.membership.Reconcile(r.group, view) {
			n.dropIfRemoved(g, r, view)
		} else if tellCatalog {
			if err := n.membership.ReconcileNumbers(r.group, view); err != nil {
				tellCatalog = false
				n.cfg.Logger.Debug("the catalog was not told of a group's replicas", "group", g.number, "err", err)
			}
		}
		n.repairIfDamaged(g, r)
	}
}

// dropIfRemoved closes and deletes a replica that will never be a member of its group
// again: the catalog has retired its number, and the group's leader says that it is in
// no configuration. A replica that merely missed a message is not.
func (n *Node) dropIfRemoved(g *shardReplica, r *localReplica, view *catalog.View) {
	if !n.membership.WasRemoved(g.number, r.group.Number(), g.leader(), view) {
		return
	}
	if err := n.dropReplica(g, r); err != nil && !n.lacks(err) {
		n.fatal(err)
	}
}

// finishDeletions begins to delete what was moved aside, unless that is under way. Pebble waits while
// the disk is full, and the groups led here must not: they are to be handed over.
func (n *Node) finishDeletions() {
	if !n.registry.dirs.AnyUnfinished() || n.finishing.Swap(true) {
		return
	}
	n.running.Go(func() { // ends with the deletions
		err := n.registry.dirs.Finish()
		n.finishing.Store(false)
		switch {
		case err == nil:
			n.wakeReconcile() // the next replica may begin
		case !n.lacks(err):
			n.fatal(err)
		}
	})
}

// lacks reports whether an error in opening or deleting replicas passes once the machine has disk
// and file descriptors. What failed is then left to the next reconcile, and logged.
func (n *Node) lacks(err error) bool {
	if !scarce.Is(err) {
		return false
	}
	n.mux.Limited().Warn("the machine lacks disk or file descriptors for a replica: it is tried again", "err", err)
	return true
}

// wakeReconcile has runReconcile look again at once.
func (n *Node) wakeReconcile() {
	select {
	case n.reconcileNow <- struct{}{}:
	default:
	}
}
