package load

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report is the result of a load.
type Report struct {
	Op          Kind    `json:"op"`
	Dist        Dist    `json:"dist"`
	IDs         uint64  `json:"ids"` // number of ids to choose from
	Keyspace    string  `json:"keyspace"`
	Page        int     `json:"page,omitempty"`  // number of ids in a page or of users in a poll; absent for other kinds
	Batch       int     `json:"batch,omitempty"` // number of increments in a request; absent for other kinds
	Concurrency int     `json:"concurrency"`     // maximum number of requests in flight
	Rate        float64 `json:"rate"`            // target rate in requests a second; 0 for a closed loop
	Seconds     float64 `json:"seconds"`         // from the first request to the last answer

	Requests          int64            `json:"requests"` // requests that succeeded
	RequestsPerSecond float64          `json:"requests_per_second"`
	Ops               int64            `json:"ops"`        // number of ops in the successful requests, such as rows read, increments, users polled or followees set
	Increments        int64            `json:"increments"` // number of increments in Ops
	OpsPerSecond      float64          `json:"ops_per_second"`
	Failed            int64            `json:"failed"`      // number of requests with an error or without an answer
	Errors            map[string]int64 `json:"errors"`      // number of failed requests, by error code
	Refused           int64            `json:"refused"`     // number of failed requests that changed nothing on the server
	UnknownOps        int64            `json:"unknown_ops"` // number of increments in failed requests that may have been applied
	Resent            int64            `json:"resent"`      // number of repeated requests, sent to learn an unknown outcome
	Unsent            int64            `json:"unsent"`      // number of requests of an open loop that were due but not sent, because no worker was free

	// LatencyUS is the latency of requests that succeeded. In an open loop, the latency of a
	// request counts from the time at which it was due. LatencyUS then also includes unsent
	// requests, with their wait until the end.
	LatencyUS Percentiles `json:"latency_us"`
	// In a mixed load, ReadLatencyUS and IncrLatencyUS are the latencies of reads and of
	// increments. They do not include unsent requests.
	ReadLatencyUS *Percentiles `json:"read_latency_us,omitempty"`
	IncrLatencyUS *Percentiles `json:"incr_latency_us,omitempty"`
	// AnswerUS is the latency in an open loop, but counted from the time at which a request was
	// sent. So it does not include delays in the client.
	AnswerUS *Percentiles `json:"answer_us,omitempty"`
	// LateUS is the delay in the client in an open loop: the time from when a request was due until
	// it was sent, for requests for which a worker was waiting.
	LateUS *Percentiles `json:"late_us,omitempty"`
	Memory *Memory      `json:"server_memory,omitempty"`
}

// Percentiles holds percentiles of a latency, in microseconds, with an error of at most 1 %.
type Percentiles struct {
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99_9"`
	P9999 float64 `json:"p99_99"`
	Max   float64 `json:"max"`
	Mean  float64 `json:"mean"`
}

func percentiles(h *hdrhistogram.Histogram) Percentiles {
	us := func(ns float64) float64 { return ns / float64(time.Microsecond) }
	at := func(p float64) float64 { return us(float64(h.ValueAtPercentile(p))) }
	return Percentiles{P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), P9999: at(99.99), Max: us(float64(h.Max())), Mean: us(h.Mean())}
}

// newReport returns the report of a run from clock.start to end. It merges the tallies of the
// workers.
func newReport(cfg *Config, workers []*worker, clock *pacer, end time.Time) *Report {
	r := &Report{
		Op: cfg.Op, Dist: cfg.IDs.Dist, IDs: cfg.IDs.size(), Keyspace: cfg.Keyspace,
		Concurrency: cfg.Concurrency, Rate: cfg.Rate, Seconds: end.Sub(clock.start).Seconds(),
	}
	reads, writes, all, late, answers := newTally(), newTally(), newTally(), newHistogram(), newHistogram()
	for _, w := range workers {
		reads.merge(w.reads)
		writes.merge(w.writes)
		late.Merge(w.late)
		answers.Merge(w.answers)
	}
	all.merge(reads)
	all.merge(writes)
	r.Requests, r.Ops, r.Refused, r.UnknownOps, r.Resent, r.Errors = all.ok, all.ops, all.refused, all.unknown, all.resent, all.errors
	for _, n := range all.errors {
		r.Failed += n
	}
	if cfg.Op == Page || cfg.Op == Polls || cfg.Op == Mixed {
		r.Page = cfg.Page
	}
	if cfg.Op == Incr || cfg.Op == Mixed {
		r.Batch, r.Increments = cfg.Batch, writes.ops
	}
	if cfg.Op == Mixed {
		read, incr := percentiles(reads.latency), percentiles(writes.latency)
		r.ReadLatencyUS, r.IncrLatencyUS = &read, &incr
	}
	if cfg.Rate > 0 {
		p, q := percentiles(late), percentiles(answers)
		r.LateUS, r.AnswerUS = &p, &q
	}
	if cfg.Duration > 0 && end.Sub(clock.start) > cfg.Duration {
		end = clock.start.Add(cfg.Duration) // requests are due only until the duration is over; answers may come later
	}
	clock.unsent(end, func(waited time.Duration) {
		r.Unsent++
		record(all.latency, waited)
	})
	r.LatencyUS = percentiles(all.latency)
	r.RequestsPerSecond = float64(r.Requests) / r.Seconds
	r.OpsPerSecond = float64(r.Ops) / r.Seconds
	return r
}

func (t *tally) merge(from *tally) {
	t.latency.Merge(from.latency)
	t.ok += from.ok
	t.ops += from.ops
	t.refused += from.refused
	t.unknown += from.unknown
	t.resent += from.resent
	for code, n := range from.errors {
		t.errors[code] += n
	}
}
