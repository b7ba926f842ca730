package shard

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
)

// registerCold registers what the rows on disk tell. There is no store before Open is
// nearly done.
func (n *Node) registerCold() error {
	tables := func(value func(engine.Stats) uint64) func(*cold.Stats) float64 {
		return func(*cold.Stats) float64 { return n.held(raftfsm.KindCounters, value) }
	}
	for _, m := range []struct {
		name, help string
		counter    bool
		value      func(*cold.Stats) float64
	}{
		{"countd_rows", "Rows of the node's shards of counters, in memory and on disk.", false,
			tables(func(s engine.Stats) uint64 { return s.Rows })},
		{"countd_cold_rows", "Rows that are on disk instead of in memory.", false,
			tables(func(s engine.Stats) uint64 { return s.ColdRows })},
		{"countd_cold_bytes", "Bytes of the packed rows on disk.", false,
			tables(func(s engine.Stats) uint64 { return s.ColdBytes })},
		{"countd_sealed_total", "Rows that were packed in memory by the minute's look, each time.", true,
			func(*cold.Stats) float64 { return float64(n.sealed.Load()) }},
		{"countd_cold_disk_bytes", "Bytes of all files of rows on disk.", false, func(s *cold.Stats) float64 { return float64(s.DiskBytes) }},
		{"countd_cold_cache_bytes", "Memory of blocks of cold rows that were read.", false, func(s *cold.Stats) float64 { return float64(s.CacheBytes) }},
		{"countd_cold_cache_hits_total", "Blocks of cold rows that were found in memory.", true, func(s *cold.Stats) float64 { return float64(s.Hits) }},
		{"countd_cold_block_reads_total", "Blocks of cold rows that were read from disk.", true, func(s *cold.Stats) float64 { return float64(s.Misses) }},
		{"countd_cold_block_read_seconds_total", "Time that those reads took.", true, func(s *cold.Stats) float64 { return s.ReadSeconds }},
		{"countd_cold_refused_total", "Reads of cold rows that were refused because too many waited.", true, func(s *cold.Stats) float64 { return float64(s.Refused) }},
		{"countd_cold_damaged_total", "Blocks of cold rows that were not what was written.", true, func(s *cold.Stats) float64 { return float64(s.Damaged) }},
		{"countd_cold_damaged_shards", "Replicas here of which cold rows cannot be read.", false, func(*cold.Stats) float64 { return float64(n.damagedShards()) }},
		{"countd_cold_due_rows", "Rows that are to leave memory, as the last look found, which is once a minute; those near which somebody wrote wait.", false,
			func(*cold.Stats) float64 { return float64(n.coldDue.Load()) }},
		{"countd_cold_moved_rows_total", "Rows that went from memory to disk, or were written anew there.", true,
			func(*cold.Stats) float64 { return float64(n.coldMoved.Load()) }},
		{"countd_cold_warmed_rows_total", "Rows that an operator had come back into memory.", true,
			func(*cold.Stats) float64 { return float64(n.coldWarmed.Load()) }},
		{"countd_cold_scrubbed_blocks_total", "Blocks of cold rows that were read to find damage.", true,
			func(*cold.Stats) float64 { return float64(n.scrub.report().Blocks) }},
		{"countd_cold_scrubbed_bytes_total", "Bytes of those blocks.", true,
			func(*cold.Stats) float64 { return float64(n.scrub.report().Bytes) }},
		{"countd_cold_scrub_last_pass_timestamp_seconds", "When all cold rows had been read to find damage, last; 0 for not since the start.", false,
			func(*cold.Stats) float64 {
				if last := n.scrub.report().LastPass; !last.IsZero() {
					return float64(last.Unix())
				}
				return 0
			}},
		{"countd_cold_scrub_damaged_total", "Generations of cold rows in which that found damage.", true,
			func(*cold.Stats) float64 { return float64(n.scrub.report().Damaged) }},
	} {
		value := func() float64 {
			stats := n.coldStats()
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
	if err := n.cfg.Metrics.Register(coldReads{n}); err != nil {
		return fmt.Errorf("cannot register metrics: %w", err)
	}
	return nil
}

// coldReads is how long reads of cold rows took that were not in the cache.
type coldReads struct{ node *Node }

// Of the bounds that the store has, those are told that a disk or its queue may come to.
const (
	coldReadBoundMin = 16 * time.Microsecond
	coldReadBoundMax = 5 * time.Second
)

var coldReadsDesc = prometheus.NewDesc("countd_cold_read_seconds",
	"How long reads of blocks of cold rows that were not in memory took, with the wait for a turn.", nil, nil)

func (coldReads) Describe(to chan<- *prometheus.Desc) { to <- coldReadsDesc }

func (c coldReads) Collect(to chan<- prometheus.Metric) {
	reads, buckets := c.node.coldStats().Reads, map[float64]uint64{}
	reads.Doublings(func(bound time.Duration, n uint64) {
		if coldReadBoundMin <= bound && bound <= coldReadBoundMax {
			buckets[bound.Seconds()] = n
		}
	})
	to <- prometheus.MustNewConstHistogram(coldReadsDesc, reads.Count(), reads.Sum.Seconds(), buckets)
}
