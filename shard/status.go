package shard

import (
	"cmp"
	"fmt"
	"slices"
)

// Status describes this node and its groups.
func (n *Node) Status() Status {
	self := NodeStatus{
		ID: n.cfg.NodeID, State: "alive", Version: n.cfg.Version,
		HTTPAddr: n.cfg.HTTPAddr, ClusterAddr: n.cfg.ClusterAddr, GossipAddr: n.cfg.GossipAddr,
	}
	if n.draining.Load() {
		self.State = "stopping"
	}
	s := Status{ClusterID: n.cfg.ClusterID, Nodes: []NodeStatus{self}}
	meta := groupStatus(n.meta.stats(), catalogGroup, catalogName, 0)
	catalog := n.catalog.View()
	meta.AppliedIndex = catalog.Applied
	meta.Digest = fmt.Sprintf("%016x", catalog.Digest())
	s.Groups = append(s.Groups, meta)
	for _, g := range n.groups.Load().all {
		status := groupStatus(g.group.stats(), g.number, g.keyspace, g.shard)
		state := g.fsm.State()
		status.AppliedIndex = state.Index
		status.Digest = fmt.Sprintf("%016x", state.Digest)
		status.Rows, status.Bytes = state.Rows, state.Bytes
		s.Groups = append(s.Groups, status)
	}
	slices.SortFunc(s.Groups, func(a, b GroupStatus) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

func groupStatus(r groupStats, number uint32, keyspace string, shard int) GroupStatus {
	return GroupStatus{
		ID: number, Keyspace: keyspace, Shard: shard,
		Role: r.Role, Leader: r.Leader, Term: r.Term,
		CommitIndex: r.Commit, SnapshotIndex: r.Snapshot,
		Digest: fmt.Sprintf("%016x", 0),
	}
}
