package shard

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/shard/metric"
)

// registerMetrics registers what is read from the groups when it is asked for.
func (n *Node) registerMetrics() error {
	all := []prometheus.Collector{
		metric.Gauge("countd_log_clock_ahead_seconds",
			"How far the time of the log that is furthest ahead is ahead of this machine's clock.",
			n.logAheadSeconds),
		metric.Gauge("countd_log_clock_behind_seconds",
			"How far the clock that stamps the logs is behind this machine's, which was set ahead; it comes up at twice the speed.",
			n.logBehindSeconds),
		metric.Gauge("countd_groups_without_room",
			"Groups led here that refuse writes because the disks of too many of their voters are at their reserve.",
			func() float64 { return float64(n.headroom.VotersFull.Load()) }),
		metric.Gauge("countd_snapshots_put_off",
			"Groups whose snapshot is due and put off until the disk has room for it.",
			n.snapshotsPutOff),
		metric.Gauge("countd_remembered_keys",
			"Idempotency keys that the node's shards remember, one in each shard that has it.",
			func() float64 { keys, _ := n.remembered(); return float64(keys) }),
		metric.Gauge("countd_remembered_producers",
			"Producers that the node's shards remember, one in each shard that has it.",
			func() float64 { _, producers := n.remembered(); return float64(producers) }),
		metric.Counter("countd_cursor_rows_dropped_total",
			"Users whose cursors this node's replicas dropped because they were idle, since the process began.",
			n.cursorsDropped),
	}
	all = append(all, n.kindMetrics()...)
	all = append(all, newTierCollector(n))
	all = append(all, n.feedMetrics()...)
	all = append(all, n.coldMetrics()...)
	return metric.Register(n.cfg.Metrics, all...)
}

// kindMetrics are of what the replicas hold, by kind.
func (n *Node) kindMetrics() (all []prometheus.Collector) {
	for _, kind := range []codec.Kind{codec.KindCounters, codec.KindUnread, codec.KindFeed, codec.KindBoard} {
		labels := prometheus.Labels{"kind": kind.String()}
		all = append(all,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "countd_held_rows", ConstLabels: labels,
				Help: "Rows that the node's replicas hold: rows of counts, with those of cursors; users with a feed; channels and dots.",
			}, n.held(kind, func(s engine.Stats) uint64 { return s.Rows })),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "countd_held_bytes", ConstLabels: labels,
				Help: "Memory of what the node's replicas hold.",
			}, n.held(kind, func(s engine.Stats) uint64 { return s.Bytes })),
		)
	}
	return all
}

// held returns what sums a number over the replicas of a kind.
func (n *Node) held(kind codec.Kind, value func(engine.Stats) uint64) func() float64 {
	return func() float64 {
		total := uint64(0)
		for _, g := range n.groups.Load().all {
			if r := g.replica.Load(); r != nil && g.kind == kind {
				total += value(r.fsm.State().Stats)
			}
		}
		return float64(total)
	}
}

func (n *Node) cursorsDropped() float64 {
	dropped := uint64(0)
	for _, g := range n.groups.Load().all {
		if r := g.replica.Load(); r != nil && g.kind == codec.KindUnread {
			dropped += r.fsm.(*raftfsm.Unread).Dropped()
		}
	}
	return float64(dropped)
}

func (n *Node) logAheadSeconds() float64 {
	ahead := 0.0
	for _, g := range n.groups.Load().all {
		if r := g.replica.Load(); r != nil {
			ahead = max(ahead, time.Until(r.fsm.LogTime()).Seconds())
		}
	}
	return ahead
}

func (n *Node) logBehindSeconds() float64 {
	behind := time.Duration(0)
	for _, g := range n.groups.Load().all {
		if r := g.replica.Load(); r != nil {
			behind = max(behind, r.proposer.Behind())
		}
	}
	return behind.Seconds()
}

func (n *Node) snapshotsPutOff() float64 {
	putOff := 0
	for _, g := range n.groups.Load().all {
		if r := g.replica.Load(); r != nil && r.group.WithoutRoom() {
			putOff++
		}
	}
	return float64(putOff)
}

// remembered sums what the groups remember of requests.
func (n *Node) remembered() (keys, producers int) {
	for _, g := range n.groups.Load().all {
		if r := g.replica.Load(); r != nil {
			k, p := r.fsm.Remembered()
			keys, producers = keys+k, producers+p
		}
	}
	return keys, producers
}
