package shard

import (
	"errors"
	"time"

	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
)

// reconcileTick is the interval at which a node compares its groups with the catalog, unless it is
// woken earlier.
const reconcileTick = 500 * time.Millisecond

// runReconcile changes this node's groups to match the catalog. It opens the replicas that this
// node should hold, and deletes replicas that were removed from their group or whose keyspace was
// dropped. It changes the members of the groups that this node leads, and hands over groups that
// the node should not lead. It keeps no state. Open starts it; Close stops it and waits.
func (n *replicas) runReconcile() {
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

func (n *replicas) reconcile() {
	if err := n.follow(); err != nil && !errors.Is(err, errs.ErrDraining) && !n.lacks(err) {
		n.fatal(err)
		return
	}
	n.finishDeletions()
	view := n.catalog.View()
	n.removeDropped(view)
	n.membership.Reconcile(n.registry.meta, view)
	n.growth.Discard(view)
	tellCatalog := true // false once the catalog does not answer, so that the remaining groups do not wait for it too
	for g, r := range n.registry.local() {
		if r.mustReopen.Swap(false) {
			n.running.Go(func() { _ = n.reopen(g, r) }) // ends when the replica is open again; if the disk is too full, n.follow opens the replica later
			continue
		}
		leads := n.membership.Reconcile(r.group, view)
		if !leads {
			n.dropIfRemoved(g, r, view)
		} else if tellCatalog {
			if err := n.membership.ReconcileNumbers(r.group, view); err != nil {
				tellCatalog = false
				n.cfg.Logger.Debug("the catalog was not told of a group's replicas", "group", g.number, "err", err)
			}
		}
		l := r.growing(g)
		tellCatalog = n.growth.Step(&l, view, leads, tellCatalog) == nil && tellCatalog
		if route := r.fsm.Route(); route.Modulus > g.first.Modulus {
			n.registry.noteSplit(g.space, int(route.Residue), route.Modulus) // if the catalog here lacks the parts, the next reconcile does it
		}
		n.repairIfDamaged(g, r)
	}
}

// dropIfRemoved closes and deletes a replica that will never be a member of its group again. The
// catalog must have retired its number, and the group's leader must have proved that no
// configuration has it.
func (n *replicas) dropIfRemoved(g *shardReplica, r *localReplica, view *catalog.View) {
	if !n.membership.WasRemoved(g.number, r.group.Number(), g.leader(), view) {
		return
	}
	n.running.Go(func() { // ends when the replica is closed
		if err := n.dropReplica(g, r); err != nil && !n.lacks(err) {
			n.fatal(err)
		}
	})
}

// finishDeletions starts to delete the moved-aside replicas, unless a deletion is running. The
// deletion runs in a goroutine, because Pebble waits while the disk is full, and runReconcile must
// then hand over this node's leaderships.
func (n *replicas) finishDeletions() {
	if !n.registry.dirs.AnyUnfinished() || n.finishing.Swap(true) {
		return
	}
	n.running.Go(func() { // ends when the replicas are deleted
		err := n.registry.dirs.Finish()
		n.finishing.Store(false)
		switch {
		case err == nil:
			n.wakeReconcile() // the next replica of a group may start
		case !n.lacks(err):
			n.fatal(err)
		}
	})
}

// lacks reports whether opening or deleting a replica failed for lack of disk space or file
// descriptors. If so, it logs the error, and the next reconcile retries.
func (n *replicas) lacks(err error) bool {
	if !scarce.Is(err) {
		return false
	}
	n.mux.Limited().Warn("the machine lacks disk or file descriptors for a replica: it is tried again", "err", err)
	return true
}

// wakeReconcile makes runReconcile reconcile again at once.
func (n *replicas) wakeReconcile() {
	select {
	case n.reconcileNow <- struct{}{}:
	default:
	}
}
