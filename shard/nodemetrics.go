package shard

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/shard/metric"
)

// registerMetrics registers the metrics whose values are computed at each scrape.
func (n *Node) registerMetrics() error {
	all := []prometheus.Collector{
		metric.Gauge("countd_log_clock_ahead_seconds",
			"How far the latest time in a log is ahead of this machine's clock.",
			n.registry.logAheadSeconds),
		metric.Gauge("countd_log_clock_behind_seconds",
			"How far the clock that stamps the logs is behind this machine's clock, which was set forward. It catches up at twice the speed.",
			n.registry.logBehindSeconds),
		metric.Gauge("countd_groups_without_room",
			"Groups led here that refuse writes because the disk of this node, or of too many of their voters, is at its reserve.",
			func() float64 { return float64(n.headroom.VotersFull.Load()) }),
		metric.Gauge("countd_remembered_keys",
			"Idempotency keys that the node's shards remember, counted in each shard.",
			func() float64 { keys, _ := n.registry.remembered(); return float64(keys) }),
		metric.Gauge("countd_remembered_producers",
			"Producers that the node's shards remember, counted in each shard.",
			func() float64 { _, producers := n.registry.remembered(); return float64(producers) }),
		metric.Counter("countd_cursor_rows_dropped_total",
			"Idle users whose cursors this node's replicas have dropped since the process started.",
			n.registry.cursorsDropped),
		metric.Gauge("countd_cold_damaged_shards", "Replicas of this node with cold rows or sets of members that cannot be read.",
			func() float64 { return float64(n.registry.damagedShards()) }),
		metric.Gauge("countd_snapshots_deferred", "Groups whose snapshot is due but waits for room on the disk.", n.registry.snapshotsDeferred),
	}
	all = append(all, n.registry.kindMetrics()...)
	all = append(all, n.spill.Metrics()...)
	all = append(all, n.tiering.Metrics()...)
	return metric.Register(n.cfg.Metrics, all...)
}

// kindMetrics returns the size of the node's replicas by kind.
func (s *registry) kindMetrics() (all []prometheus.Collector) {
	for _, kind := range []codec.Kind{codec.KindCounters, codec.KindUnread, codec.KindFeed, codec.KindBoard} {
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
	return all
}

// sumReplicas returns a function that sums value over the local replicas of kind.
func (s *registry) sumReplicas(kind codec.Kind, value func(engine.Stats) uint64) func() float64 {
	return func() float64 {
		total := uint64(0)
		for _, g := range s.groups.Load().all {
			if r := g.replica.Load(); r != nil && g.kind == kind {
				total += value(r.fsm.State().Stats)
			}
		}
		return float64(total)
	}
}

func (s *registry) cursorsDropped() float64 {
	dropped := uint64(0)
	for _, g := range s.groups.Load().all {
		if r := g.replica.Load(); r != nil && r.unread != nil {
			dropped += r.unread.Dropped()
		}
	}
	return float64(dropped)
}

func (s *registry) logAheadSeconds() float64 {
	ahead := 0.0
	for _, g := range s.groups.Load().all {
		if r := g.replica.Load(); r != nil {
			ahead = max(ahead, time.Until(r.fsm.LogTime()).Seconds())
		}
	}
	return ahead
}

func (s *registry) logBehindSeconds() float64 {
	behind := time.Duration(0)
	for _, g := range s.groups.Load().all {
		if r := g.replica.Load(); r != nil {
			behind = max(behind, r.proposer.Load().Behind())
		}
	}
	return behind.Seconds()
}

func (s *registry) snapshotsDeferred() float64 {
	deferred := 0
	for _, g := range s.groups.Load().all {
		if r := g.replica.Load(); r != nil && r.group.WithoutRoom() {
			deferred++
		}
	}
	return float64(deferred)
}

// remembered sums what the groups remember of requests.
func (s *registry) remembered() (keys, producers int) {
	for _, g := range s.groups.Load().all {
		if r := g.replica.Load(); r != nil {
			k, p := r.fsm.Remembered()
			keys, producers = keys+k, producers+p
		}
	}
	return keys, producers
}
