package tiering

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/shard/metric"
)

// Metrics returns the metrics of rows and sets on disk.
func (t *Tiering) Metrics() []prometheus.Collector {
	count := func(number *atomic.Uint64) func() float64 { return func() float64 { return float64(number.Load()) } }
	held := func(value func(engine.Stats) uint64) func() float64 {
		return func() float64 {
			total := uint64(0)
			for _, s := range t.cfg.Shards() {
				total += value(s.FSM.State().Stats)
			}
			return float64(total)
		}
	}
	return append(t.setMetrics(),
		newTierCollector(t),
		metric.Gauge("countd_rows", "Rows of the node's shards of counters, in memory and on disk.",
			held(func(s engine.Stats) uint64 { return s.Rows })),
		metric.Gauge("countd_cold_rows", "Rows that are on disk instead of in memory.",
			held(func(s engine.Stats) uint64 { return s.ColdRows })),
		metric.Gauge("countd_cold_bytes", "Bytes of the packed rows on disk.",
			held(func(s engine.Stats) uint64 { return s.ColdBytes })),
		metric.Counter("countd_sealed_total", "Rows packed in memory by the check that runs each minute; a row counts each time that it is packed.", count(&t.Sealed)),
		metric.Gauge("countd_cold_due_rows", "Rows that should move to disk, as of the last check, one a minute. Rows whose neighbours are being written to wait.",
			func() float64 { return float64(t.due.Load()) }),
		metric.Counter("countd_cold_moved_rows_total", "Rows that moved from memory to disk, or were written there again.", count(&t.moved)),

		metric.Gauge("countd_cold_disk_bytes", "Size of all files of cold rows.",
			func() float64 { return float64(t.diskBytes()) }),
		metric.Gauge("countd_cold_cache_bytes", "Memory of the cache of blocks of cold rows.",
			t.stored(func(s *cold.Stats) float64 { return float64(s.CacheBytes) })),
		metric.Counter("countd_cold_cache_hits_total", "Blocks of cold rows that a read found in the cache.",
			t.stored(func(s *cold.Stats) float64 { return float64(s.Hits) })),
		metric.Counter("countd_cold_block_reads_total", "Blocks of cold rows that were read from disk.",
			t.stored(func(s *cold.Stats) float64 { return float64(s.Misses) })),
		metric.Counter("countd_cold_block_read_seconds_total", "Total time of the reads of blocks from disk.",
			t.stored(func(s *cold.Stats) float64 { return s.ReadSeconds })),
		metric.Counter("countd_cold_refused_total", "Reads of cold rows refused because too many were waiting.",
			t.stored(func(s *cold.Stats) float64 { return float64(s.Refused) })),
		metric.Counter("countd_cold_damaged_total", "Blocks of cold rows that were missing or differed from what was written.",
			t.stored(func(s *cold.Stats) float64 { return float64(s.Damaged) })),
		coldReads{t},

		metric.Counter("countd_repaired_replicas_total", "Damaged replicas of this node that were replaced by another node's.", count(&t.Repaired)),
		metric.Counter("countd_cold_scrubbed_blocks_total", "Blocks of cold rows that were read to find damage.",
			func() float64 { return float64(t.Scrub.Report().Blocks) }),
		metric.Counter("countd_cold_scrubbed_bytes_total", "Bytes of cold rows and of sets of members that were read to find damage.",
			func() float64 { return float64(t.Scrub.Report().Bytes) }),
		metric.Gauge("countd_cold_scrub_last_pass_timestamp_seconds", "When the last complete scrub of all cold rows and sets of members ended; 0 if none has since the start.",
			t.lastScrubbed),
		metric.Counter("countd_cold_scrub_damaged_total", "Generations of cold rows, and sets of members of shards, in which a scrub found damage.",
			func() float64 { return float64(t.Scrub.Report().Damaged) }),
	)
}

// stored returns a function that reads a number from the store of cold rows. It returns 0 until
// the node has opened the store.
func (t *Tiering) stored(value func(*cold.Stats) float64) func() float64 {
	return func() float64 {
		stats := t.Stats()
		return value(&stats)
	}
}

func (t *Tiering) lastScrubbed() float64 {
	if last := t.Scrub.Report().LastPass; !last.IsZero() {
		return float64(last.Unix())
	}
	return 0
}

// coldReads exports the duration of reads of cold rows from disk, cache hits excluded.
type coldReads struct{ tiering *Tiering }

// Export only the buckets that a read of a disk, with its wait in the queue, can fall into.
const (
	coldReadBoundMin = 16 * time.Microsecond
	coldReadBoundMax = 5 * time.Second
)

var coldReadsDesc = prometheus.NewDesc("countd_cold_read_seconds",
	"Duration of reads of blocks of cold rows from disk, including the wait for a turn.", nil, nil)

func (coldReads) Describe(to chan<- *prometheus.Desc) { to <- coldReadsDesc }

func (c coldReads) Collect(to chan<- prometheus.Metric) {
	reads, buckets := c.tiering.Stats().Reads, map[float64]uint64{}
	reads.Doublings(func(bound time.Duration, n uint64) {
		if coldReadBoundMin <= bound && bound <= coldReadBoundMax {
			buckets[bound.Seconds()] = n
		}
	})
	to <- prometheus.MustNewConstHistogram(coldReadsDesc, reads.Count(), reads.Sum.Seconds(), buckets)
}
