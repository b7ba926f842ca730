package shard

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
)

// This file has the metrics of a node. Each value is computed at each scrape.

// registerMetrics registers the metrics of this node's replicas of shards.
func (n *Node) registerMetrics() error {
	s := &n.registry
	all := []prometheus.Collector{
		tiering.Gauge("countd_log_clock_ahead_seconds",
			"How far the latest time in a log is ahead of this machine's clock.",
			s.logAheadSeconds),
		tiering.Gauge("countd_log_clock_behind_seconds",
			"How far the clock that stamps the logs is behind this machine's clock, which was set forward. It catches up at twice the speed.",
			s.logBehindSeconds),
		tiering.Gauge("countd_groups_without_room",
			"Groups led here that refuse writes because the disk of this node, or of too many of their voters, is at its reserve.",
			n.headroom.VotersFull.Load),
		tiering.Gauge("countd_remembered_keys",
			"Idempotency keys that the node's shards remember, counted in each shard.",
			s.sum(func(r *localReplica) uint64 { keys, _ := r.fsm.Remembered(); return uint64(keys) })),
		tiering.Gauge("countd_remembered_producers",
			"Producers that the node's shards remember, counted in each shard.",
			s.sum(func(r *localReplica) uint64 { _, producers := r.fsm.Remembered(); return uint64(producers) })),
		tiering.Counter("countd_cursor_rows_dropped_total",
			"Idle users whose cursors this node's replicas have dropped since the process started.",
			s.sum(func(r *localReplica) uint64 { return r.fsm.Dropped() })),
		tiering.Gauge("countd_cold_damaged_shards", "Replicas of this node with cold rows or sets of members that cannot be read.",
			s.damagedShards),
		tiering.Gauge("countd_snapshots_deferred", "Groups whose snapshot is due but waits for room on the disk.",
			s.snapshotsDeferred),
	}
	for _, k := range kinds.All {
		kind := k.Number()
		labels := prometheus.Labels{"kind": kind.String()}
		all = append(all,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "countd_replica_rows", ConstLabels: labels,
				Help: "Rows of the node's replicas, by kind: rows of counts and of cursors; users with a feed; channels and dots.",
			}, s.sumReplicas(kind, func(s engine.Stats) uint64 { return s.Rows })),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "countd_replica_bytes", ConstLabels: labels, Help: "Memory of the node's replicas, by kind.",
			}, s.sumReplicas(kind, func(s engine.Stats) uint64 { return s.Bytes })))
	}
	all = append(all, n.spill.Metrics()...)
	all = append(all, n.tiering.Metrics()...)
	return tiering.Register(n.cfg.Metrics, all...)
}

// registerCluster registers the metrics of all groups and of other nodes. Call it after the
// catalog's group is open.
func (n *Node) registerCluster() error {
	all := []prometheus.Collector{
		tiering.Gauge("countd_replicas",
			"Replicas that this node has, including the catalog's.",
			func() int { return len(n.registry.Replicas()) }),
		tiering.Gauge("countd_groups_led",
			"Groups that this node leads, including the catalog's.",
			func() int { return n.countReplicas(func(g *replica.Replica) bool { return g.Ready() == nil }) }),
		tiering.Gauge("countd_groups_without_leader",
			"Groups with a replica on this node and, as far as it knows, no leader that may serve.",
			n.groupsWithoutLeader),
		tiering.Gauge("countd_replica_lag_entries",
			"Largest number of entries that a voter of a group led here has not applied, as of the last check by the catalog's leader, one a second. Voters that do not answer do not count.",
			n.membership.VotersLag.Load),
		tiering.Gauge("countd_nodes",
			"Nodes of the cluster, by this node's catalog.",
			func() int { return len(n.catalog.View().Nodes) }),
		tiering.Gauge("countd_nodes_dead",
			"Nodes of the cluster that this node does not hear from.",
			n.nodesDead),
	}
	all = append(all,
		tiering.Counter("countd_ops_written_total",
			"Ops of writes that this node answered, for clients and for sources that it reads. Repeats do not count.", n.opsWritten.Load),
		tiering.Counter("countd_ids_read_total",
			"Ids of reads that this node answered; a read of no id counts once.", n.idsRead.Load))
	if n.log != nil {
		all = append(all,
			tiering.Gauge("countd_raft_log_bytes", "Disk space of the log of all groups, including segments created in advance.",
				func() int64 { return n.log.Usage().Bytes }),
			tiering.Gauge("countd_raft_log_live_bytes", "Approximate part of countd_raft_log_bytes that holds entries still needed.",
				func() int64 { return n.log.Usage().LiveBytes }))
	}
	return tiering.Register(n.cfg.Metrics, all...)
}

// sum returns a function that sums value over the local replicas of shards.
func (s *registry) sum(value func(*localReplica) uint64) func() uint64 {
	return func() (total uint64) {
		for _, r := range s.local() {
			total += value(r)
		}
		return total
	}
}

// sumReplicas returns a function that sums value over the local replicas of kind.
func (s *registry) sumReplicas(kind codec.Kind, value func(engine.Stats) uint64) func() float64 {
	return func() float64 {
		total := uint64(0)
		for g, r := range s.local() {
			if g.kind == kind {
				total += value(r.fsm.State().Stats)
			}
		}
		return float64(total)
	}
}

func (s *registry) logAheadSeconds() (ahead float64) {
	for _, r := range s.local() {
		ahead = max(ahead, time.Until(r.fsm.LogTime()).Seconds())
	}
	return ahead
}

func (s *registry) logBehindSeconds() float64 {
	behind := time.Duration(0)
	for _, r := range s.local() {
		behind = max(behind, r.proposer.Load().Behind())
	}
	return behind.Seconds()
}

// damagedShards returns the number of damaged local replicas.
func (s *registry) damagedShards() (damaged int) {
	for _, r := range s.local() {
		if r.damage.Found() {
			damaged++
		}
	}
	return damaged
}

func (s *registry) snapshotsDeferred() (deferred int) {
	for _, r := range s.local() {
		if r.group.Snapshotter().WithoutRoom() {
			deferred++
		}
	}
	return deferred
}

// countReplicas returns the number of this node's replicas, including the catalog's, for which
// match returns true.
func (n *Node) countReplicas(match func(*replica.Replica) bool) (count int) {
	for _, g := range n.registry.Replicas() {
		if match(g) {
			count++
		}
	}
	return count
}

func (n *Node) groupsWithoutLeader() int {
	view := n.catalog.View()
	return n.countReplicas(func(g *replica.Replica) bool {
		return (g == n.registry.meta || view.MayHold(g.Group(), n.cfg.NodeKey)) && g.Follows() != nil
	})
}

func (n *Node) nodesDead() (dead int) {
	for key := range n.catalog.View().Nodes {
		if key != n.cfg.NodeKey && n.cfg.Alive != nil && !n.cfg.Alive(key) {
			dead++
		}
	}
	return dead
}
