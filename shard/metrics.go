package shard

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// stageMetrics are the stages of a write, summed over the node's groups.
type stageMetrics struct {
	queue, log, apply prometheus.Observer
	refused           prometheus.Counter // the queue was full
	keysRefused       prometheus.Counter // no room to remember another key
}

// newStageMetrics registers the metrics.
func newStageMetrics(r prometheus.Registerer) (*stageMetrics, error) {
	stages := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "countd_write_stage_seconds",
		Help: "Stages of a write: queue, a request until its entry is proposed; log, an entry until it is committed and its turn has come; apply, a batch of entries in the state machine.",
		// 4 µs, an apply of a few ops, to 8 s.
		Buckets: prometheus.ExponentialBuckets(4e-6, 2, 22),
	}, []string{"stage"})
	refused := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "countd_write_overloaded_total",
		Help: "Requests refused because a group's queue was full.",
	})
	keysRefused := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "countd_keys_refused_total",
		Help: "Requests refused because a shard remembers as many keys as it may.",
	})
	if err := register(r, stages, refused, keysRefused); err != nil {
		return nil, err
	}
	return &stageMetrics{
		queue:   stages.WithLabelValues("queue"),
		log:     stages.WithLabelValues("log"),
		apply:   stages.WithLabelValues("apply"),
		refused: refused, keysRefused: keysRefused,
	}, nil
}

// gauge and counter are metrics without labels that are read when they are asked for.
func gauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}

func counter(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, value)
}

func register(r prometheus.Registerer, all ...prometheus.Collector) error {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	return nil
}

// applied is a state machine's answer with the moment it began to apply. The
// state machine itself sees no clock.
type applied struct {
	answer any
	began  time.Time
}

// timedFSM measures how long a state machine takes.
type timedFSM struct {
	raft.BatchingFSM
	metrics *stageMetrics
}

func (f timedFSM) Apply(entry *raft.Log) any { return f.ApplyBatch([]*raft.Log{entry})[0] }

func (f timedFSM) ApplyBatch(entries []*raft.Log) []any {
	began := time.Now()
	answers := f.BatchingFSM.ApplyBatch(entries)
	f.metrics.apply.Observe(time.Since(began).Seconds())
	for i, a := range answers {
		answers[i] = applied{a, began}
	}
	return answers
}
