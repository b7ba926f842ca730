package dedup

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var testLimits = Limits{KeyHorizon: 10 * time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 5}

// history judges requests at given log times, and counts how many were applied.
type history struct {
	t      testing.TB
	m      *Memory
	limits Limits
	count  int64
}

func newHistory(t testing.TB) *history {
	return &history{t: t, m: New(), limits: testLimits}
}

func (h *history) request(now int64, id RequestID) (Outcome, int64) {
	h.m.Tick(now, h.limits)
	outcome := h.m.Judge(&id)
	if outcome == Applied {
		h.count++
	}
	return outcome, h.count
}

func (h *history) want(now int64, id RequestID, outcome Outcome, count int64) {
	h.t.Helper()
	if o, n := h.request(now, id); o != outcome || n != count {
		h.t.Errorf("at %d: outcome %d and count %d, want %d and %d", now, o, n, outcome, count)
	}
}

// reopen replaces the memory by one that has loaded its snapshot.
func (h *history) reopen(t rapid.TB) { h.m = restored(t, h.m) }

func (h *history) bytes() (state []byte) {
	v := h.m.Capture()
	return v.appendKeys(v.appendForgotten(v.appendProducers(nil)), 0)
}

func seq(name string, n uint64) RequestID { return ByProducer([]byte(name), n) }
func keyed(key, body string) RequestID    { return ByKey([]byte(key), []byte(body)) }

// judgedKey returns the id of a part of a request whose key the shard judge has judged.
func judgedKey(key string, judge uint32, met, floor int64) RequestID {
	id := keyed(key, "body")
	return id.JudgedBy(judge, Use{Met: met, Floor: floor})
}
func minutes(n int64) int64 { return n * time.Minute.Milliseconds() }
func uuidv7(ms int64) string {
	return fmt.Sprintf("%08x-%04x-7000-8000-000000000001", ms>>16, ms&0xffff)
}
