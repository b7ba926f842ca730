package shard

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
)

// Status describes the nodes of the cluster, as far as this node knows them, and this node's
// replicas.
func (n *Node) Status() Status {
	view := n.catalog.View()
	s := Status{ClusterID: n.cfg.ClusterID, ClusterName: n.cfg.ClusterName, Node: n.cfg.NodeName}
	for _, key := range slices.Sorted(maps.Keys(view.Nodes)) {
		node := view.Nodes[key]
		s.Nodes = append(s.Nodes, NodeStatus{
			ID: node.Name, Key: key, Zone: node.Zone, State: n.stateOf(node), Version: node.Version,
			HTTPAddr: node.HTTPAddr, ClusterAddr: node.ClusterAddr, GossipAddr: node.GossipAddr,
		})
	}
	meta := n.groupStatus(n.registry.meta, catalogName, 0, view)
	meta.AppliedIndex = view.Applied
	meta.Digest = fmt.Sprintf("%016x", view.Digest())
	s.Groups = append(s.Groups, meta)
	for g, r := range n.registry.local() {
		status := n.groupStatus(r.group, g.keyspace, g.shard, view)
		state := r.fsm.State()
		status.AppliedIndex = state.Index
		status.Digest = fmt.Sprintf("%016x", state.Digest)
		status.Rows, status.Bytes = state.Rows, state.Bytes
		status.ColdRows, status.ColdBytes = state.ColdRows, state.ColdBytes
		status.SealedRows, status.SealedBytes = state.SealedRows, state.SealedBytes
		status.ColdDamaged = r.damage.Found()
		s.Groups = append(s.Groups, status)
	}
	slices.SortFunc(s.Groups, func(a, b GroupStatus) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// stateOf returns NodeStatus.State: "stopping" or "dead" if this node knows that itself, and
// otherwise the state in the catalog.
func (n *Node) stateOf(node catalog.Node) string {
	switch self := node.Key == n.cfg.NodeKey; {
	case self && (n.draining.Load() || n.membership.HandingOver.Load()):
		return "stopping"
	case !self && n.cfg.Alive != nil && !n.cfg.Alive(node.Key):
		return "dead"
	case node.State != catalog.NodeActive:
		return string(node.State)
	}
	return "alive"
}

func (n *Node) groupStatus(g *replica.Replica, keyspace string, shard int, view *catalog.View) GroupStatus {
	r := g.Stats()
	status := GroupStatus{
		ID: g.Group(), Keyspace: keyspace, Shard: shard, Replica: string(g.ID()),
		Role: r.Role, Leader: view.Nodes[r.Leader].Name, Term: r.Term,
		CommitIndex: r.Commit, SnapshotIndex: r.Snapshot,
		Digest: fmt.Sprintf("%016x", 0), Members: []MemberStatus{},
	}
	for _, s := range g.Configuration().Servers {
		key := replica.NodeOf(s.ID)
		status.Members = append(status.Members, MemberStatus{
			Node: view.Nodes[key].Name, Key: key, Replica: string(s.ID), Voter: s.Suffrage == raft.Voter,
		})
	}
	return status
}

// LeaderViews collects the views of all groups from the nodes that lead them. A group is missing
// if its leader does not answer.
func (n *Node) LeaderViews(ctx context.Context) map[uint32]leadership.LeaderView {
	return n.membership.LeaderViews(ctx)
}

// Transfer makes the leading node hand its leadership of a group over to the successor. Both are
// node keys.
func (n *Node) Transfer(ctx context.Context, group uint32, leader, successor string) error {
	return n.membership.Transfer(ctx, group, leader, successor)
}

// Catalog returns the catalog as this node knows it. The caller must not change it.
func (n *Node) Catalog() *catalog.View { return n.catalog.View() }

// LeadsCatalog reports whether this node leads the catalog's group and may serve.
func (n *Node) LeadsCatalog() bool { return n.registry.meta.Ready() == nil }

// OrderCold starts a job of an operator on all nodes; see tiering.Tiering.Order.
func (n *Node) OrderCold(ctx context.Context, o tiering.TieringJob) (id string, answers map[string]tiering.ColdAnswer, err error) {
	return n.tiering.Order(ctx, o)
}

// ColdReports returns, by node key, the nodes' reports about their rows on disk. It omits nodes
// that do not answer within rpc.AskTimeout.
func (n *Node) ColdReports(ctx context.Context) map[string]tiering.ColdReport {
	return n.tiering.Reports(ctx)
}
