package api

import (
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/api/gate"
)

// crowd fills the size class of bodies of n bytes with slow writes, until Admission refuses such a
// write with a timeout of 10 s. free ends the writes.
func crowd(t *testing.T, a *gate.Admission, n int) (free func()) {
	t.Helper()
	const inFlight = 20_000
	w := a.Write(n)
	for range inFlight {
		w.Enter()
	}
	eventually(t, "their speed is measured", func() bool {
		w.Enter()
		w.Leave(time.Now().Add(-7*time.Second), true)
		return !w.Admits(10 * time.Second)
	})
	return func() {
		for range inFlight {
			w.Leave(time.Now(), false)
		}
	}
}

// ration returns the time at which the next refusal is allowed, and the time between refusals. No
// refusal may be allowed at the time of the call.
func ration(a *gate.Admission) (next time.Time, every time.Duration) {
	at := func() (latest time.Time) {
		for range 100 { // several tries, because a pause of the process during one changes the result
			if at := time.Now().Add(a.RefusalDelay(0, time.Hour)); at.After(latest) {
				latest = at
			}
		}
		return latest
	}
	const more = 100
	before := at()
	a.RefusalDelay(more, time.Hour)
	next = at()
	return next, next.Sub(before) / more
}

// spend uses up refusals until the next refusal must wait for about the given time.
func spend(a *gate.Admission, wait time.Duration) {
	for a.RefusalDelay(1, wait) < wait {
		continue
	}
}

// A delayed request is admitted once there is capacity. It keeps its deadline.
func TestTheDoorOpens(t *testing.T) {
	t.Parallel()
	l := startFakeServer(t, nil)
	a := l.server.admission
	free := crowd(t, a, 100)
	spend(a, gate.RefusalDelayMax*8/10)
	before, every := ration(a)
	answered := make(chan reply)
	go func() { // ends once the server answers; the test receives the answer below
		got, _ := l.try("POST", "/v1/counters/posts/incr", strings.NewReader(manyOps(1)), "Countd-Timeout", "4s")
		answered <- got
	}()
	eventually(t, "its refusal is delayed", func() bool {
		return time.Now().Add(a.RefusalDelay(0, time.Hour)).Sub(before) > every/2
	})
	came := time.Now() // the request arrived at this time or earlier
	free()
	if got := <-answered; got.status != 200 {
		t.Errorf("answered %d %s", got.status, got.body)
	}
	if by := l.node.lastWriteDeadline(); by.After(came.Add(4 * time.Second)) {
		t.Errorf("it has %v more than it came with", by.Sub(came)-4*time.Second)
	}
}

// The server refuses a write that would probably miss its deadline, before it reads the body. That
// depends on the write's own deadline and size class. The server does not refuse reads.
func TestWritesThatWouldWaitTooLongAreRefused(t *testing.T) {
	l := startFakeServer(t, nil)
	const incr = "/v1/counters/posts/incr"
	defer crowd(t, l.server.admission, 100)()
	got := l.do("POST", incr, "not even JSON", "Countd-Timeout", "10s")
	wantFault(t, got, 429, "overloaded", "")
	if got.header.Get("Retry-After") != "1" {
		t.Error("no Retry-After")
	}
	wantFault(t, l.do("DELETE", "/v1/counters/posts/1", "", "Countd-Timeout", "10s"), 429, "overloaded", "")
	for _, c := range []struct{ name, method, path, body, timeout string }{
		{"a patient write", "POST", incr, manyOps(1), "60s"},
		{"a large write", "POST", incr, manyOps(1000), "10s"},
		{"a read", "GET", "/v1/counters/posts/1", "", "10s"},
		{"a page", "POST", "/v1/counters/posts/get", `{"ids":["1"]}`, "10s"},
		{"an operator", "GET", "/v1/cluster", "", "10s"},
	} {
		if got := l.do(c.method, c.path, c.body, "Countd-Timeout", c.timeout); got.status != 200 {
			t.Errorf("%s is answered %d %s", c.name, got.status, got.body)
		}
	}
	if text := l.do("GET", "/metrics", "").body; !strings.Contains(text, `countd_http_overloaded_total{reason="wait"} 2`) {
		t.Error("2 refusals are not counted")
	}
}

// A write leaves its size class even if it is refused or its handler panics.
func TestWritesLeaveTheirLane(t *testing.T) {
	l := startFakeServer(t, nil)
	l.do("POST", "/v1/counters/posts/incr", manyOps(1))
	l.do("POST", "/v1/counters/posts/incr", manyOps(1000))
	l.do("POST", "/v1/counters/posts/incr", "{")
	l.node.setFault("panic")
	l.do("POST", "/v1/counters/posts/incr", manyOps(1))
	if writes, weight := l.server.admission.InFlight(); writes != 0 || weight != 0 {
		t.Errorf("%d writes of %d bytes are left", writes, weight)
	}
	if l.server.bodies.Used() != 0 || l.server.inFlight.Load() != 0 {
		t.Errorf("%d bytes of bodies, %d requests are left", l.server.bodies.Used(), l.server.inFlight.Load())
	}
}

// The server decodes a write before a full queue refuses it. To pay for the decoding, it delays the
// refusal. The delay grows with the size of the write, but ends before the deadline.
func TestFullQueuesHoldBack(t *testing.T) {
	t.Parallel()
	l := startFakeServer(t, nil)
	l.node.setFault("overloaded")
	a := l.server.admission
	spend(a, gate.RefusalDelayMax*8/10)
	before, every := ration(a)
	answered := make(chan reply)
	go func() { // ends once the server answers; the test receives the answer below
		got, _ := l.try("POST", "/v1/counters/posts/incr", strings.NewReader(manyOps(1000)), "Countd-Timeout", "4s")
		answered <- got
	}()
	eventually(t, "26 kB take the ration of many refusals", func() bool {
		return time.Now().Add(a.RefusalDelay(0, time.Hour)).Sub(before) > 20*every
	})
	wantFault(t, <-answered, 429, "overloaded", "")
	a.RefusalDelay(int(time.Hour/every), 2*time.Hour) // use up an hour of refusals, so that only the deadline bounds the delay
	began := time.Now()
	wantFault(t, l.do("POST", "/v1/counters/posts/incr", manyOps(1), "Countd-Timeout", "500ms"), 429, "overloaded", "")
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("it was held back for %v", took)
	}
}
