package membership

import (
	"context"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
)

// This file tells the catalog what only a group's leader knows: which replicas will never be
// members again.

// ReconcileNumbers retires, in the catalog, the numbers of removed replicas of a group that this
// node leads. It returns an error if the catalog could not be changed now.
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
		// The view was read before the proof: see RetireEntry.
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
