package shard

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
)

// registerGauges registers what is read from the groups when it is asked for.
func (n *Node) registerGauges() error {
	for _, g := range []struct {
		name, help string
		value      func() float64
	}{
		{
			"countd_log_clock_ahead_seconds",
			"How far the time of the log that is furthest ahead is ahead of this machine's clock.",
			n.logAheadSeconds,
		},
		{
			"countd_log_clock_behind_seconds",
			"How far the clock that stamps the logs is behind this machine's, which was set ahead; it comes up at twice the speed.",
			n.logBehindSeconds,
		},
		{
			"countd_groups_without_room",
			"Groups led here that refuse writes because the disks of too many of their voters are at their reserve.",
			func() float64 { return float64(n.headroom.votersFull.Load()) },
		},
		{
			"countd_snapshots_put_off",
			"Groups whose snapshot is due and put off until the disk has room for it.",
			n.snapshotsPutOff,
		},
		{
			"countd_remembered_keys",
			"Idempotency keys that the node's shards remember, one in each shard that has it.",
			func() float64 { keys, _ := n.remembered(); return float64(keys) },
		},
		{
			"countd_remembered_producers",
			"Producers that the node's shards remember, one in each shard that has it.",
			func() float64 { _, producers := n.remembered(); return float64(producers) },
		},
	} {
		opts := prometheus.GaugeOpts{Name: g.name, Help: g.help}
		if err := n.cfg.Metrics.Register(prometheus.NewGaugeFunc(opts, g.value)); err != nil {
			return fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	return n.registerCold()
}

// registerCold registers what the rows on disk tell. There is no store before Open is
// nearly done.
func (n *Node) registerCold() error {
	tables := func(value func(*engine.Stats) uint64) func(*cold.Stats) float64 {
		return func(*cold.Stats) float64 {
			total := uint64(0)
			for _, g := range n.groups.Load().all {
				if r := g.replica.Load(); r != nil {
					stats := r.fsm.Table().Stats()
					total += value(&stats)
				}
			}
			return float64(total)
		}
	}
	for _, m := range []struct {
		name, help string
		counter    bool
		value      func(*cold.Stats) float64
	}{
		{"countd_rows", "Rows of the node's shards, in memory and on disk.", false,
			tables(func(s *engine.Stats) uint64 { return s.Rows })},
		{"countd_cold_rows", "Rows that are on disk instead of in memory.", false,
			tables(func(s *engine.Stats) uint64 { return s.ColdRows })},
		{"countd_cold_bytes", "Bytes of the packed rows on disk.", false,
			tables(func(s *engine.Stats) uint64 { return s.ColdBytes })},
		{"countd_cold_disk_bytes", "Bytes of all files of rows on disk.", false, func(s *cold.Stats) float64 { return float64(s.DiskBytes) }},
		{"countd_cold_cache_bytes", "Memory of blocks of cold rows that were read.", false, func(s *cold.Stats) float64 { return float64(s.CacheBytes) }},
		{"countd_cold_cache_hits_total", "Blocks of cold rows that were found in memory.", true, func(s *cold.Stats) float64 { return float64(s.Hits) }},
		{"countd_cold_block_reads_total", "Blocks of cold rows that were read from disk.", true, func(s *cold.Stats) float64 { return float64(s.Misses) }},
		{"countd_cold_block_read_seconds_total", "Time that those reads took.", true, func(s *cold.Stats) float64 { return s.ReadSeconds }},
		{"countd_cold_refused_total", "Reads of cold rows that were refused because too many waited.", true, func(s *cold.Stats) float64 { return float64(s.Refused) }},
		{"countd_cold_damaged_total", "Blocks of cold rows that were not what was written.", true, func(s *cold.Stats) float64 { return float64(s.Damaged) }},
		{"countd_cold_moved_rows_total", "Rows that went from memory to disk, or were written anew there.", true,
			func(*cold.Stats) float64 { return float64(n.coldMoved.Load()) }},
	} {
		value := func() float64 {
			var stats cold.Stats
			if store := n.coldStore.Load(); store != nil {
				stats = store.Stats()
			}
			return m.value(&stats)
		}
		var collector prometheus.Collector = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: m.name, Help: m.help}, value)
		if m.counter {
			collector = prometheus.NewCounterFunc(prometheus.CounterOpts{Name: m.name, Help: m.help}, value)
		}
		if err := n.cfg.Metrics.Register(collector); err != nil {
			return fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	return nil
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
			behind = max(behind, r.proposer.clock.behind())
		}
	}
	return behind.Seconds()
}

func (n *Node) snapshotsPutOff() float64 {
	putOff := 0
	for _, g := range n.groups.Load().all {
		if r := g.replica.Load(); r != nil && r.group.withoutRoom.Load() {
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
