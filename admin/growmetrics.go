package admin

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// growthMetrics exports how far the keyspaces grow. The number of keyspaces is bounded, and the series
// of a dropped keyspace end.
type growthMetrics struct{ a *Cluster }

var (
	shardsDesc        = prometheus.NewDesc("countd_keyspace_shards", "Shards of a keyspace, by this node's catalog.", []string{"keyspace"}, nil)
	growingShardsDesc = prometheus.NewDesc("countd_keyspace_growing_shards",
		"Shards that the growth of a keyspace has not split yet, or whose parts do not all serve yet; 0 if the keyspace does not grow.", []string{"keyspace"}, nil)
	growingSecondsDesc = prometheus.NewDesc("countd_keyspace_growing_seconds",
		"Time since the growth of a keyspace began; 0 if the keyspace does not grow.", []string{"keyspace"}, nil)
)

// Describe implements prometheus.Collector.
func (growthMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- shardsDesc
	to <- growingShardsDesc
	to <- growingSecondsDesc
}

// Collect implements prometheus.Collector. Before the node has joined a cluster, it sends nothing.
func (m growthMetrics) Collect(to chan<- prometheus.Metric) {
	n, err := m.a.cfg.Node()
	if err != nil {
		return
	}
	for _, k := range n.Catalog().KeyspacesByName() {
		left, seconds := 0, float64(0)
		if p := k.Progress(); p != nil {
			left = len(k.Groups) - p.Split
			if k.Growth.Since != 0 {
				seconds = max(0, time.Since(time.Unix(k.Growth.Since, 0)).Seconds())
			}
		}
		for desc, value := range map[*prometheus.Desc]float64{shardsDesc: float64(len(k.Groups)), growingShardsDesc: float64(left), growingSecondsDesc: seconds} {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, k.Name)
		}
	}
}

// Register registers the metrics of keyspaces.
func (a *Cluster) Register(to prometheus.Registerer) error {
	if err := to.Register(growthMetrics{a}); err != nil {
		return fmt.Errorf("cannot register metrics: %w", err)
	}
	return nil
}
