package shard

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
)

// The metrics sum the requests that the shards remember, and those that exceeded the limit.
func TestMetricsOfTheMemory(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2})
	limits := LimitsDefault
	limits.KeysMax = 3
	for _, g := range n.registry.groups.Load().all {
		reconfigure(n, g, func(cfg *propose.Config) { cfg.Limits = func() dedup.Limits { return limits } }) // before its first write
	}
	write := func(id dedup.RequestID) error {
		return n.Write(n.Keyspace("posts"), &Write{Ops: counters.Ops{addTo(0, 0, 1)}, ID: id, Deadline: soon()})
	}
	refused := 0.0
	for i := range 10 {
		if err := write(dedup.ByKey([]byte(fmt.Sprint(i)))); errors.Is(err, errs.ErrOverloaded) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		mustDo(t, write(dedup.ByProducer([]byte(fmt.Sprint(i)), 1)))
	}
	keys := 0
	for _, g := range n.registry.groups.Load().all {
		k, _ := g.replica.Load().fsm.Remembered()
		keys += k
	}
	if refused == 0 || keys < 3 {
		t.Fatalf("%v refused, %d keys remembered: this shows too little", refused, keys)
	}
	for name, want := range map[string]float64{
		"countd_remembered_keys":      float64(keys),
		"countd_remembered_producers": 5,
		"countd_keys_refused_total":   refused,
	} {
		if got := metricOf(t, n, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if ahead := metricOf(t, n, "countd_log_clock_ahead_seconds"); ahead > time.Minute.Seconds() {
		t.Errorf("the log is ahead by %v s", ahead)
	}
	if behind := metricOf(t, n, "countd_log_clock_behind_seconds"); behind > time.Minute.Seconds() {
		t.Errorf("the log is behind by %v s", behind)
	}
	reconfigure(n, n.registry.shardOf(1), func(cfg *propose.Config) { // as if the log's time were an hour old
		cfg.Clock = propose.NewClock(time.Now().Add(-time.Hour), func() time.Time { return time.Time{} }, cfg.Logger)
	})
	if behind := metricOf(t, n, "countd_log_clock_behind_seconds"); behind < 3000 {
		t.Errorf("the log is behind by %v s only", behind)
	}
}

// metricOf returns the value of a metric that has no labels.
func metricOf(t *testing.T, n *Node, name string) float64 {
	t.Helper()
	families, err := n.cfg.Metrics.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if m := f.GetMetric(); f.GetName() == name && len(m) == 1 {
			return m[0].GetGauge().GetValue() + m[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
