package shard

import (
	"errors"
	"time"

	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/raftfsm/catalog"
)

// reconcileTick is the interval at which a node compares its groups with the catalog while nothing
// wakes it.
const reconcileTick = 500 * time.Millisecond

// runReconcile changes this node's groups to match the catalog. It opens the replicas that this
// node is to hold, and deletes those that were removed from their group or whose keyspace was
// dropped. It changes the members of the groups that this node leads, and hands over those that the
// node should not lead. It keeps no state of its own. Open starts it; Close stops it and waits.
func (n *Node) runReconcile() {
	for {
		view := n.catalog.View()
		n.reconcile()
		select {
		case <-view.Changed():
		case <-n.reconcileNow:
		case <-time.After(view.Pace(reconcileTick)):
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
	tellCatalog := true // false once the catalog does not answer, so that the other groups do not wait
	for g, r := range n.registry.local() {
		if r.mustReopen.Swap(false) {
			n.running.Go(func() { _ = n.reopen(g, r) }) // ends once the replica is closed; if the disk is too full to open it again, follow opens it later
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

// dropIfRemoved closes and deletes a replica that will never be a member of its group again: the
// catalog has retired its number, and the group's leader proved that no configuration has it. A
// replica that merely missed a message stays.
func (n *Node) dropIfRemoved(g *shardReplica, r *localReplica, view *catalog.View) {
	if !n.membership.WasRemoved(g.number, r.group.Number(), g.leader(), view) {
		return
	}
	n.running.Go(func() { // ends with the replica's closing
		if err := n.dropReplica(g, r); err != nil && !n.lacks(err) {
			n.fatal(err)
		}
	})
}

// finishDeletions starts to delete the replicas that were moved aside, unless a deletion is
// running. The deletion has a goroutine of its own, because Pebble waits while the disk is full.
// runReconcile must not wait then: it hands over the groups that this node leads.
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

// lacks reports whether an error from opening or deleting replicas will pass once the machine has
// disk and file descriptors again. If so, it logs the error, and the next reconcile retries.
func (n *Node) lacks(err error) bool {
	if !scarce.Is(err) {
		return false
	}
	n.mux.Limited().Warn("the machine lacks disk or file descriptors for a replica: it is tried again", "err", err)
	return true
}

// wakeReconcile makes runReconcile reconcile again at once.
func (n *Node) wakeReconcile() {
	select {
	case n.reconcileNow <- struct{}{}:
	default:
	}
}
