package shard

import (
	"github.com/countd/countd/shard/metric"
)

// registerCluster registers what this node knows of its groups and of other nodes. It
// is called once the catalog's group is open. Each is read when it is asked for.
func (n *Node) registerCluster() error {
	return metric.Register(n.cfg.Metrics,
		metric.Gauge("countd_replicas",
			"Replicas that this node has, including the catalog's.",
			func() float64 { return float64(len(n.registry.Replicas())) }),
		metric.Gauge("countd_groups_led",
			"Groups that this node leads, including the catalog's.",
			n.registry.groupsLed),
		metric.Gauge("countd_groups_without_leader",
			"Groups with a replica on this node and, as far as it knows, no leader that may serve.",
			n.groupsWithoutLeader),
		metric.Gauge("countd_replica_lag_entries",
			"Largest number of entries that a voter of a group led here has not applied, as of the last check by the catalog's leader, one a second. Voters that do not answer do not count.",
			func() float64 { return float64(n.membership.VotersLag.Load()) }),
		metric.Gauge("countd_nodes",
			"Nodes of the cluster, by this node's catalog.",
			func() float64 { return float64(len(n.catalog.View().Nodes)) }),
		metric.Gauge("countd_nodes_dead",
			"Nodes of the cluster that this node does not hear from.",
			n.nodesDead),
	)
}

func (s *registry) groupsLed() float64 {
	led := 0
	for _, g := range s.Replicas() {
		if g.Ready() == nil {
			led++
		}
	}
	return float64(led)
}

func (n *Node) groupsWithoutLeader() float64 {
	without, view := 0, n.catalog.View()
	for _, g := range n.registry.Replicas() {
		if wanted := g == n.registry.meta || view.MayHold(g.Group(), n.cfg.NodeKey); wanted && g.Follows() != nil {
			without++
		}
	}
	return float64(without)
}

func (n *Node) nodesDead() float64 {
	dead := 0
	for key := range n.catalog.View().Nodes {
		if key != n.cfg.NodeKey && n.cfg.Alive != nil && !n.cfg.Alive(key) {
			dead++
		}
	}
	return float64(dead)
}
