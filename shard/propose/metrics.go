package propose

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics has the metrics of the stages of a write, summed over the node's groups.
type Metrics struct {
	queue, log, apply prometheus.Observer
	refused           prometheus.Counter // requests refused because the queue was full
	keysRefused       prometheus.Counter // requests refused because the shard remembers the maximal number of keys
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	stages := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "countd_write_stage_seconds",
		Help: "Duration of the stages of a write. queue: a request until its entry is proposed. log: an entry until it is committed and about to be applied. apply: a batch of entries in the state machine.",
		// The buckets range from 4 µs, in which a few ops are applied, to 8 s.
		Buckets: prometheus.ExponentialBuckets(4e-6, 2, 22),
	}, []string{"stage"})
	refused := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "countd_write_overloaded_total",
		Help: "Requests refused because a group's queue was full.",
	})
	keysRefused := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "countd_keys_refused_total",
		Help: "Requests refused because a shard remembers its maximum of keys.",
	})
	for _, c := range []prometheus.Collector{stages, refused, keysRefused} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	return &Metrics{
		queue:   stages.WithLabelValues("queue"),
		log:     stages.WithLabelValues("log"),
		apply:   stages.WithLabelValues("apply"),
		refused: refused, keysRefused: keysRefused,
	}, nil
}

// applied is a state machine's answer, with the time at which applying began. The state machine
// itself must not read a clock.
type applied struct {
	answer any
	began  time.Time
}

// Answer returns the answer. Package replica uses it.
func (a applied) Answer() any { return a.answer }

// TimedFSM measures the time of a state machine. A Proposer needs a group with a TimedFSM, because
// the Proposer expects answers of type applied.
type TimedFSM struct {
	raft.BatchingFSM
	Metrics  *Metrics
	Applying *atomic.Int64 // nanoseconds that the state machine has applied entries for; nil to count none
}

// Apply implements raft.FSM.
func (f TimedFSM) Apply(entry *raft.Log) any { return f.ApplyBatch([]*raft.Log{entry})[0] }

// ApplyBatch implements raft.BatchingFSM.
func (f TimedFSM) ApplyBatch(entries []*raft.Log) []any {
	began := time.Now()
	answers := f.BatchingFSM.ApplyBatch(entries)
	took := time.Since(began)
	f.Metrics.apply.Observe(took.Seconds())
	if f.Applying != nil {
		f.Applying.Add(int64(took))
	}
	for i, a := range answers {
		answers[i] = applied{a, began}
	}
	return answers
}
