package membership

import (
	"context"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
)

// The catalog learns from a group's leader what only it knows: which replicas will
// never be members again, and when a group of an older cluster can be numbered.

// ReconcileNumbers tells the catalog what it should know of the replicas of a group
// that this node leads. An error means that the catalog could not be told now.
func (m *Membership) ReconcileNumbers(g *replica.Replica, view *catalog.View) error {
	placement, placed := view.Groups[g.Group()]
	if !placed || m.catalogIsBehind(g, view) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	if !placement.Numbered() {
		if !view.NumbersReplicas() {
			return nil
		}
		members, all := m.caughtUpMembers(ctx, g, &placement)
		if !all {
			return nil
		}
		return m.cfg.Change(ctx, &catalog.Command{Number: &catalog.NumberEntry{Group: g.Group(), Members: members}})
	}
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

// caughtUpMembers returns the nodes whose replicas have applied the configuration that
// is in force in a group that this node leads, and whether they are all that need to
// have. The others are no members any more once the group is numbered, and their nodes
// begin new replicas. That must be no voter that may come back, so each voter is waited
// for, but for one that does not answer and that the catalog has elsewhere. A non-voter
// is waited for if it is on its way.
//
// It waits for the change of members that is under way, if there is one.
func (m *Membership) caughtUpMembers(ctx context.Context, g *replica.Replica, placement *catalog.Placement) (nodes []string, all bool) {
	term := g.ReadyTerm()
	at := g.ConfigurationInForce()
	if at == nil {
		return nil, false
	}
	for _, s := range at.Servers {
		node := replica.NodeOf(s.ID)
		if node == m.cfg.Key {
			nodes = append(nodes, node)
			continue
		}
		applied, err := m.Progress(ctx, node, []raftstore.ReplicaID{{Group: g.Group()}})
		voter, answered := s.Suffrage == raft.Voter, err == nil
		switch {
		case answered && applied[0] >= at.Index:
			nodes = append(nodes, node)
		case voter && (answered || slices.Contains(placement.Target, node)):
			return nil, false
		case !voter && answered && applied[0] > 0:
			return nil, false
		}
	}
	return nodes, m.cfg.Prove(ctx, g, term) == nil
}
