// Package metric makes metrics without labels that are read when they are asked for.
//
// It never keeps a value. Invariant: each value is what its function returns at the time.
package metric

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Gauge and counter are metrics without labels that are read when they are asked for.
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
