// Package metric makes metrics whose value a function returns at each scrape.
//
// It never stores a value. Invariant: a scrape calls the function once for each metric.
package metric

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Gauge and Counter return a metric without labels.
func Gauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}

func Counter(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, value)
}

func Register(r prometheus.Registerer, all ...prometheus.Collector) error {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	return nil
}
