package leadership

import (
	"context"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
)

// This file reports to the catalog which replicas will never be members again. Only the leader of
// such a replica's group knows that.

// ReconcileNumbers retires the numbers of removed replicas in the catalog, for a group that this
// node leads. It returns an error if the catalog could not be changed.
func (m *Membership) ReconcileNumbers(g *replica.Replica, view *catalog.View) error {
	placement, placed := view.Groups[g.Group()]
	if !placed || m.catalogIsBehind(g, view) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	for node, number := range placement.Replicas {
		if view.MayHold(g.Group(), node) {
			continue
		}
		// Read the view before the proof: see catalog.RetireEntry.
		if gone, err := m.provedGone(ctx, g, replica.RaftID(node, number)); err != nil || !gone {
			continue
		}
		retire := &catalog.RetireEntry{Group: g.Group(), Node: node, Number: number, Revision: placement.Revision}
		if err := m.cfg.Change(ctx, &catalog.Command{Retire: retire}); err != nil {
			return err
		}
	}
	return nil
}
