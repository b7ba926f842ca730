package tiering

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
)

// The tiers of a row. A row that was written after it left memory, or after it was packed, counts
// for the tier where it was, not as hot.
const (
	tierHot    = "hot"
	tierSealed = "sealed"
	tierCold   = "cold"
)

// tierCollector exports the rows and bytes of each tier by keyspace. It keeps no state: Collect
// asks the replicas.
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
	for _, desc := range []*prometheus.Desc{c.rows, c.bytes} {
		to <- desc
	}
}

func (c *tierCollector) Collect(to chan<- prometheus.Metric) {
	tell := func(desc *prometheus.Desc, value uint64, keyspace, tier string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), keyspace, tier)
	}
	for keyspace, s := range c.tiering.heldByKeyspace() {
		tell(c.rows, s.Rows-min(s.Rows, s.ColdRows+s.SealedRows), keyspace, tierHot)
		tell(c.rows, s.SealedRows, keyspace, tierSealed)
		tell(c.rows, s.ColdRows, keyspace, tierCold)
		tell(c.bytes, s.Bytes-s.SealedBytes, keyspace, tierHot)
		tell(c.bytes, s.SealedBytes, keyspace, tierSealed)
		tell(c.bytes, s.ColdBytes, keyspace, tierCold)
	}
}

// heldByKeyspace sums the statistics of the node's shards by keyspace.
func (t *Tiering) heldByKeyspace() map[string]engine.Stats {
	held := map[string]engine.Stats{}
	for _, s := range t.cfg.Shards() {
		sum, stats := held[s.Keyspace], s.FSM.State().Stats
		sum.Rows, sum.Bytes = sum.Rows+stats.Rows, sum.Bytes+stats.Bytes
		sum.ColdRows, sum.ColdBytes = sum.ColdRows+stats.ColdRows, sum.ColdBytes+stats.ColdBytes
		sum.SealedRows, sum.SealedBytes = sum.SealedRows+stats.SealedRows, sum.SealedBytes+stats.SealedBytes
		held[s.Keyspace] = sum
	}
	return held
}
