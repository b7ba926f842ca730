package tiering

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Number is the type of a metric's value.
type Number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// Gauge and Counter return a metric without labels.
func Gauge[N Number](name, help string, value func() N) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
}

func Counter[N Number](name, help string, value func() N) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
}

// Register registers the collectors. It returns an error if one of them cannot be registered.
func Register(r prometheus.Registerer, collectors ...prometheus.Collector) error {
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	return nil
}
