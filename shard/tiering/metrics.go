package tiering

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
)

// Metrics returns the metrics of rows and sets on disk.
func (t *Tiering) Metrics() []prometheus.Collector {
	sum := func(value func(engine.Stats) uint64) func() uint64 {
		return func() (total uint64) {
			for _, s := range t.cfg.Shards() {
				total += value(s.FSM.State().Stats)
			}
			return total
		}
	}
	return append(t.setMetrics(),
		newTierCollector(t),
		Gauge("countd_rows", "Rows of the node's shards of counters, in memory and on disk.",
			sum(func(s engine.Stats) uint64 { return s.Rows })),
		Gauge("countd_cold_rows", "Rows that are on disk instead of in memory.",
			sum(func(s engine.Stats) uint64 { return s.ColdRows })),
		Gauge("countd_cold_bytes", "Bytes of the packed rows on disk.",
			sum(func(s engine.Stats) uint64 { return s.ColdBytes })),
		Gauge("countd_cold_shared_bytes", "The part of countd_cold_bytes in files that the parts of a split shard share until each has written its rows again.",
			sum(func(s engine.Stats) uint64 { return s.SharedBytes })),
		Counter("countd_sealed_total", "Rows packed in memory by the check that runs each minute; a row counts each time that it is packed.", t.Sealed.Load),
		Gauge("countd_cold_due_rows", "Rows that should move to disk, as of the last check, one a minute. Rows wait while their neighbours are written to.",
			t.due.Load),
		Counter("countd_cold_moved_rows_total", "Rows that moved from memory to disk, or were written there again.", t.moved.Load),

		Gauge("countd_cold_disk_bytes", "Size of all files of cold rows.",
			t.diskBytes),
		Gauge("countd_cold_cache_bytes", "Memory of the cache of blocks of cold rows.",
			func() uint64 { return t.Stats().CacheBytes }),
		Counter("countd_cold_cache_hits_total", "Blocks of cold rows that a read found in the cache.",
			func() uint64 { return t.Stats().Hits }),
		Counter("countd_cold_block_reads_total", "Blocks of cold rows that were read from disk.",
			func() uint64 { return t.Stats().Misses }),
		Counter("countd_cold_block_read_seconds_total", "Total time of the reads of blocks from disk.",
			func() float64 { return t.Stats().ReadSeconds }),
		Counter("countd_cold_refused_total", "Reads of cold rows refused because too many were waiting.",
			func() uint64 { return t.Stats().Refused }),
		Counter("countd_cold_damaged_total", "Blocks of cold rows that were missing or differed from what was written.",
			func() uint64 { return t.Stats().Damaged }),
		coldReads{t}, limitUse{t},

		Counter("countd_repaired_replicas_total", "Damaged replicas of this node that were replaced by another node's.", t.Repaired.Load),
		Counter("countd_cold_scrubbed_blocks_total", "Blocks of cold rows that were read to find damage.",
			func() uint64 { return t.Scrub.Report().Blocks }),
		Counter("countd_cold_scrubbed_bytes_total", "Bytes of cold rows and of sets of members that were read to find damage.",
			func() uint64 { return t.Scrub.Report().Bytes }),
		Gauge("countd_cold_scrub_last_pass_timestamp_seconds", "When the last complete scrub of all cold rows and sets of members ended; 0 if none has since the start.",
			t.lastScrubbed),
		Counter("countd_cold_scrub_damaged_total", "Generations of cold rows, and sets of members of shards, in which a scrub found damage.",
			func() uint64 { return t.Scrub.Report().Damaged }),
	)
}

func (t *Tiering) lastScrubbed() int64 {
	if last := t.Scrub.Report().LastPass; !last.IsZero() {
		return last.Unix()
	}
	return 0
}

// coldReads exports the duration of reads of cold rows from disk, without cache hits.
type coldReads struct{ tiering *Tiering }

// Export only the buckets that a disk read, with its wait in the queue, can fall into.
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

// setMetrics returns the metrics of the sets of members.
func (t *Tiering) setMetrics() []prometheus.Collector {
	stats := func() (s members.Stats) {
		if store := t.sets.Load(); store != nil { // nil before OpenSets
			s = store.Stats()
		}
		return s
	}
	return []prometheus.Collector{
		Gauge("countd_members_pairs", "Members in the sets of the node's replicas, those of deleted rows included until they are removed.",
			func() int64 { return stats().Pairs }),
		Gauge("countd_members_dying_rows", "Deleted rows of the node's replicas whose members are not all removed from disk.", t.dyingRows),
		Gauge("countd_members_disk_bytes", "Size of all files of sets of members.",
			func() uint64 { return stats().DiskBytes }),
		Gauge("countd_members_memory_bytes", "Memory for sets of members: blocks, filters and recent changes.",
			func() int64 { return stats().MemoryBytes }),
		Counter("countd_members_cache_hits_total", "Blocks of sets of members that a read found in memory.",
			func() int64 { return stats().Hits }),
		Counter("countd_members_block_reads_total", "Blocks of sets of members that were read from disk.",
			func() int64 { return stats().Misses }),
		Counter("countd_members_filter_hits_total", "Lookups of a pair of a member and a row that a filter in memory answered.",
			func() int64 { return stats().FilterHits }),
		Counter("countd_members_filter_misses_total", "Lookups of a pair of a member and a row that went to the files of sets.",
			func() int64 { return stats().FilterMisses }),
		Counter("countd_members_damaged_total", "Times that a damaged file of sets of members was met.",
			func() uint64 { return stats().Damaged }),
	}
}

func (t *Tiering) dyingRows() (rows int) {
	for _, s := range t.cfg.Shards() {
		if sets := s.FSM.Members(); sets != nil {
			rows += sets.Dying()
		}
	}
	return rows
}

// These are the tiers of a row. A row that was packed or moved to disk still counts as sealed or
// cold after a later write.
const (
	tierHot    = "hot"
	tierSealed = "sealed"
	tierCold   = "cold"
)

// tierCollector exports the rows and bytes of each tier by keyspace. It keeps no state: Collect
// reads the replicas.
type tierCollector struct {
	tiering     *Tiering
	rows, bytes *prometheus.Desc
}

func newTierCollector(t *Tiering) *tierCollector {
	labels := []string{"keyspace", "tier"}
	return &tierCollector{
		tiering: t,
		rows:    prometheus.NewDesc("countd_tier_rows", "Rows of the node's shards of counters: hot, packed in memory (sealed), on disk (cold).", labels, nil),
		bytes:   prometheus.NewDesc("countd_tier_bytes", "Size of the rows of countd_tier_rows: hot and sealed in memory, cold on disk. The index of cold rows in memory counts as hot.", labels, nil),
	}
}

func (c *tierCollector) Describe(to chan<- *prometheus.Desc) {
	to <- c.rows
	to <- c.bytes
}

func (c *tierCollector) Collect(to chan<- prometheus.Metric) {
	export := func(desc *prometheus.Desc, value uint64, keyspace, tier string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), keyspace, tier)
	}
	for keyspace, s := range c.tiering.sumByKeyspace() {
		export(c.rows, s.Rows-min(s.Rows, s.ColdRows+s.SealedRows), keyspace, tierHot)
		export(c.rows, s.SealedRows, keyspace, tierSealed)
		export(c.rows, s.ColdRows, keyspace, tierCold)
		export(c.bytes, s.Bytes-s.SealedBytes, keyspace, tierHot)
		export(c.bytes, s.SealedBytes, keyspace, tierSealed)
		export(c.bytes, s.ColdBytes, keyspace, tierCold)
	}
}

// sumByKeyspace sums the statistics of the node's shards by keyspace.
func (t *Tiering) sumByKeyspace() map[string]engine.Stats {
	sums := map[string]engine.Stats{}
	for _, s := range t.cfg.Shards() {
		sum, stats := sums[s.Keyspace], s.FSM.State().Stats
		sum.Rows, sum.Bytes = sum.Rows+stats.Rows, sum.Bytes+stats.Bytes
		sum.ColdRows, sum.ColdBytes = sum.ColdRows+stats.ColdRows, sum.ColdBytes+stats.ColdBytes
		sum.SealedRows, sum.SealedBytes = sum.SealedRows+stats.SealedRows, sum.SealedBytes+stats.SealedBytes
		sums[s.Keyspace] = sum
	}
	return sums
}
