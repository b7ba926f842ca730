package sources

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/source"
)

// metric returns the value of a metric of the source likes for partition 0, and whether it exists.
func (st *started) metric(name, state string) (value float64, is bool) {
	st.t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(st.Sources)
	for _, family := range need(registry.Gather())(st.t) {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if family.GetName() == name && (labels["partition"] == "0" && labels["state"] == state || state != "" && labels["reason"] == state) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue(), true
			}
		}
	}
	return 0, false
}

// TestCatchUp: a source that was off for an hour
//
//  1. shows, in the API and the metrics, how many messages wait while it is off, and the age of its
//     last counted message while it catches up;
//  2. counts each message once;
//  3. stalls if messages were removed meanwhile, until an operator seeks past them.
func TestCatchUp(t *testing.T) {
	t.Parallel()
	const before, missed, some = 10, 40_000, 5_000
	st, ctx := start(t, 1), t.Context()
	for range before {
		st.queue.add(0, like(1))
	}
	need(st.put(""))(t)
	st.eventually("it is read", through(before))
	need(st.Pause(ctx, "likes"))(t)
	messages := make([]string, missed)
	for i := range messages {
		messages[i] = like(uint64(i % 100))
	}
	st.queue.add(0, messages...)
	st.queue.set(func() { st.queue.oldest, st.queue.withheld = time.Now().Add(-time.Hour), before+some })
	if of := need(st.Get(ctx, "likes"))(t); of.Lag == nil || *of.Lag != missed {
		t.Errorf("while it is off it is %+v", of)
	}
	if _, is := st.metric("countd_source_lag_messages", ""); is {
		t.Error("a metric of a source that no node reads")
	}

	need(st.Resume(ctx, "likes"))(t)
	of := st.eventually("it has read some", func(of *Source) bool {
		p := of.Partitions[0]
		return p.Position != nil && p.Position.Lo == before+some && p.End != nil && p.End.Lo == before+missed && p.LagSeconds != nil && *p.LagSeconds > 0
	})
	if p := of.Partitions[0]; of.State != source.StateRunning || p.Lag == nil || *p.Lag != missed-some || p.LagSeconds == nil || *p.LagSeconds < 3500 {
		t.Errorf("on its way it is %+v", of)
	}
	if n, is := st.metric("countd_source_lag_messages", ""); !is || n != missed-some {
		t.Errorf("countd_source_lag_messages is %v", n)
	}
	if n, is := st.metric("countd_source_lag_seconds", ""); !is || n < 3500 {
		t.Errorf("countd_source_lag_seconds is %v", n)
	}
	st.queue.set(func() { st.queue.withheld = 0 })
	of = st.eventually("it has caught up", through(before+missed))
	if p := of.Partitions[0]; p.LagSeconds == nil || *p.LagSeconds != 0 || of.Rejected != 0 {
		t.Errorf("at the end it is %+v", of)
	}
	if n, is := st.metric("countd_source_lag_seconds", ""); !is || n != 0 {
		t.Errorf("countd_source_lag_seconds is %v", n)
	}
	for id, want := range map[uint64]int64{0: missed / 100, 1: before + missed/100, 99: missed / 100} {
		if got := st.count(id); got != want {
			t.Errorf("row %d is %d, want %d", id, got, want)
		}
	}

	need(st.Pause(ctx, "likes"))(t)
	st.queue.add(0, messages[:300]...) // three messages for each of the 100 rows
	st.queue.set(func() { st.queue.first = before + missed + 200 })
	need(st.Resume(ctx, "likes"))(t)
	of = st.eventually("it is stalled", func(of *Source) bool { return of.State == source.StateStalled })
	if !strings.Contains(of.Reason, "removed before they were read; seek to 40210 ") || of.Partitions[0].State != source.StateStalled {
		t.Errorf("stalled it is %+v", of)
	}
	if n, is := st.metric("countd_source_state", source.StateStalled); !is || n != 1 {
		t.Errorf("countd_source_state is %v", n)
	}
	need(st.Pause(ctx, "likes"))(t)
	need(st.Seek(ctx, "likes", map[uint32]string{0: "40210"}))(t)
	need(st.Resume(ctx, "likes"))(t)
	st.eventually("it goes on", through(before+missed+300))
	if got, want := st.count(0), int64(missed/100+1); got != want {
		t.Errorf("row 0 is %d, want %d", got, want)
	}
}
