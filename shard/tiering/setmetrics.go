package tiering

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/shard/metric"
)

// setMetrics returns the metrics of the sets of members.
func (t *Tiering) setMetrics() []prometheus.Collector {
	stored := func(value func(*members.Stats) float64) func() float64 {
		return func() float64 {
			store := t.sets.Load()
			if store == nil { // Open is not done
				return 0
			}
			stats := store.Stats()
			return value(&stats)
		}
	}
	return []prometheus.Collector{
		metric.Gauge("countd_members_pairs", "Members in the sets of the node's replicas, those of deleted rows included until they are removed.",
			stored(func(s *members.Stats) float64 { return float64(s.Pairs) })),
		metric.Gauge("countd_members_dying_rows", "Deleted rows of the node's replicas whose members are not all removed from disk.", t.dyingRows),
		metric.Gauge("countd_members_disk_bytes", "Size of all files of sets of members.",
			stored(func(s *members.Stats) float64 { return float64(s.DiskBytes) })),
		metric.Gauge("countd_members_memory_bytes", "Memory for sets of members: blocks, filters and recent changes.",
			stored(func(s *members.Stats) float64 { return float64(s.MemoryBytes) })),
		metric.Counter("countd_members_cache_hits_total", "Blocks of sets of members that a read found in memory.",
			stored(func(s *members.Stats) float64 { return float64(s.Hits) })),
		metric.Counter("countd_members_block_reads_total", "Blocks of sets of members that were read from disk.",
			stored(func(s *members.Stats) float64 { return float64(s.Misses) })),
		metric.Counter("countd_members_filter_hits_total", "Lookups of a pair of a member and a row that a filter in memory ended.",
			stored(func(s *members.Stats) float64 { return float64(s.FilterHits) })),
		metric.Counter("countd_members_filter_misses_total", "Lookups of a pair of a member and a row that went to the files of sets.",
			stored(func(s *members.Stats) float64 { return float64(s.FilterMisses) })),
		metric.Counter("countd_members_damaged_total", "Damaged files of sets of members, each time that one was met.",
			stored(func(s *members.Stats) float64 { return float64(s.Damaged) })),
	}
}

func (t *Tiering) dyingRows() float64 {
	rows := 0
	for _, s := range t.cfg.Shards() {
		if sets := s.FSM.Members(); sets != nil {
			rows += sets.Dying()
		}
	}
	return float64(rows)
}
