package api

import (
	"strings"
	"testing"
	"time"
)

// crowd makes it appear that the requests in flight of a size class take as long as timeout.
func (s *Server) crowd(l *sizeClass, timeout time.Duration) {
	l.perSec.Store(1000)
	l.took.Store(int64(timeout))
	l.count.Store(smallFree)
	l.bytes.Store(int64(timeout.Seconds() * 1000))
}

func (s *Server) uncrowd(l *sizeClass) {
	l.perSec.Store(0)
	l.count.Store(0)
	l.bytes.Store(0)
}

// pass lets n writes of a weight through a size class that always has that many in flight. One more
// write ends a window. The real duration does not matter.
func (a *admission) pass(l *sizeClass, n int, weight int64, answered bool) {
	now := func() int64 { return int64(time.Since(a.started)) }
	l.began.Store(now() + int64(time.Hour)) // none ends before
	for range n {
		l.enter(weight)
		a.leave(&arrival{class: l, weight: weight}, time.Now().Add(-time.Minute), answered)
	}
	l.enter(weight)
	l.began.Store(now() - int64(classWindow))
	a.leave(&arrival{class: l, weight: weight}, time.Now().Add(-time.Minute), answered)
}

func TestSizeClass(t *testing.T) {
	const weight = 1000
	busy := func(inFlight int) (*admission, *sizeClass) {
		a := newAdmission()
		a.started = a.started.Add(-time.Hour)
		l := &a.small
		for range inFlight {
			l.enter(weight)
		}
		if inFlight > 0 { // the window begins with them
			l.began.Store(int64(time.Since(a.started)))
			l.quiet.Store(false)
		}
		return a, l
	}
	t.Run("nothing is refused before a speed was seen", func(t *testing.T) {
		_, l := busy(100_000)
		if !l.admits(weight, time.Millisecond) {
			t.Error("refused")
		}
	})
	t.Run("the wait is what is in flight over the speed", func(t *testing.T) {
		a, l := busy(1000)
		a.pass(l, 999, weight, true) // 1,000 in a window of 100 ms or a little more
		if got := l.perSec.Load(); got > 10_000*weight || got < 5_000*weight {
			t.Fatalf("%d a second", got)
		}
		l.perSec.Store(10_000 * weight) // so that 1,000 take 100 ms
		if !l.admits(weight, 101*deadlineShare*time.Millisecond) || l.admits(weight, 99*deadlineShare*time.Millisecond) {
			t.Errorf("100 ms of work are to be 1/%d of the deadline", deadlineShare)
		}
		if l.admits(100*weight, 101*deadlineShare*time.Millisecond) || !l.admits(100*weight, 111*deadlineShare*time.Millisecond) {
			t.Error("a large write waits for itself too")
		}
	})
	t.Run("a guess must be borne out", func(t *testing.T) {
		_, l := busy(1000)
		l.perSec.Store(1)
		l.took.Store(int64(time.Second))
		if !l.admits(weight, 2*deadlineShare*time.Second) || l.admits(weight, 2*deadlineShare*time.Second-2*deadlineShare) {
			t.Error("a second is to be long enough for half of the share")
		}
	})
	t.Run("one that was quick says little", func(t *testing.T) {
		a, l := busy(1000)
		l.took.Store(int64(16 * time.Second))
		a.leave(&arrival{class: l, weight: weight}, time.Now(), true)
		if got := time.Duration(l.took.Load()); got < 14*time.Second || got > 15100*time.Millisecond {
			t.Errorf("they took %v", got)
		}
	})
	t.Run("a few are always let in", func(t *testing.T) {
		_, l := busy(smallFree - 1)
		l.took.Store(int64(time.Minute))
		l.perSec.Store(1)
		if !l.admits(weight, time.Millisecond) {
			t.Error("refused")
		}
		l.enter(weight)
		if l.admits(weight, time.Millisecond) {
			t.Error("one more was let in")
		}
	})
	t.Run("the assumed speed of a quiet class rises", func(t *testing.T) {
		a, l := busy(smallFree/2 - 1)
		l.perSec.Store(5)
		for want := int64(10); want < perSecMax; want *= 2 {
			if a.pass(l, 10, weight, true); l.perSec.Load() != want {
				t.Fatalf("%d a second, want %d", l.perSec.Load(), want)
			}
		}
		if a.pass(l, 10, weight, true); l.perSec.Load() != 0 {
			t.Errorf("%d a second", l.perSec.Load())
		}
	})
	t.Run("a burst after a long time says nothing", func(t *testing.T) {
		a, l := busy(0) // and an hour went by
		for range 1000 {
			l.enter(weight)
		}
		l.perSec.Store(7)
		a.leave(&arrival{class: l, weight: weight}, time.Now(), true)
		if got := l.perSec.Load(); got != 0 {
			t.Errorf("%d a second", got)
		}
	})
	t.Run("what is refused for what it says is not speed", func(t *testing.T) {
		a, l := busy(1000)
		l.perSec.Store(8 * weight)
		for want := int64(4 * weight); want > 1; want /= 2 {
			a.pass(l, 10, weight, false)
			if got := l.perSec.Load(); got != want {
				t.Fatalf("%d a second, want %d", got, want)
			}
		}
	})
	t.Run("everything that enters leaves", func(t *testing.T) {
		a, l := busy(0)
		done := make(chan struct{})
		for range 8 {
			go func() {
				for range 10_000 {
					l.enter(weight)
					a.leave(&arrival{class: l, weight: weight}, time.Now(), true)
				}
				done <- struct{}{}
			}()
		}
		for range 8 {
			<-done
		}
		if l.count.Load() != 0 || l.bytes.Load() != 0 {
			t.Errorf("%d writes of %d bytes are left", l.count.Load(), l.bytes.Load())
		}
	})
}

// Refusals are rationed. A few are sent at once, the others one after the other, and none waits
// longer than its bound.
func TestRefusalsAreRationed(t *testing.T) {
	const bound = time.Hour
	a := newAdmission()
	a.started = a.started.Add(-time.Minute)
	atOnce := 0
	for a.refusalDelay(1, bound) == 0 {
		atOnce++
	}
	if least := int(refusalBurst / a.refusalEvery); atOnce < least {
		t.Errorf("%d came at once, want %d", atOnce, least)
	}
	before := a.nextRefusal.Load()
	const more = 100_000 // which take seconds of the ration, and far less to ask for
	last := time.Duration(0)
	for range more {
		last = a.refusalDelay(1, bound)
	}
	if got := time.Duration(a.nextRefusal.Load() - before); got < more*a.refusalEvery {
		t.Errorf("%d refusals take %v, want %v", more, got, more*a.refusalEvery)
	}
	if last <= 0 || last > (more+1)*a.refusalEvery {
		t.Errorf("the last waits for %v", last)
	}
	before = a.nextRefusal.Load()
	if got := a.refusalDelay(1, time.Microsecond); got != time.Microsecond || a.nextRefusal.Load() != before {
		t.Errorf("waits for %v, and takes %d of the ration", got, a.nextRefusal.Load()-before)
	}
}

// A delayed request is admitted once there is capacity. It keeps its deadline.
func TestTheDoorOpens(t *testing.T) {
	l := startFakeServer(t, nil)
	lane := &l.server.admission.small
	l.server.crowd(lane, time.Second)
	ration := int64(time.Since(l.server.admission.started) + refusalDelayMax*9/10)
	l.server.admission.nextRefusal.Store(ration)
	answered := make(chan reply)
	go func() { // ends when it has its answer, received below
		got, _ := l.try("POST", "/v1/counters/posts/incr", strings.NewReader(manyOps(1)), "Countd-Timeout", "4s")
		answered <- got
	}()
	eventually(t, "its refusal is delayed", func() bool {
		return l.server.admission.nextRefusal.Load() > ration
	})
	came := time.Now() // or before
	l.server.uncrowd(lane)
	if got := <-answered; got.status != 200 {
		t.Errorf("answered %d %s", got.status, got.body)
	}
	if by := l.node.lastWriteDeadline(); by.After(came.Add(4 * time.Second)) {
		t.Errorf("it has %v more than it came with", by.Sub(came)-4*time.Second)
	}
}

// A write that would miss its deadline is refused before its body is read. Its own deadline and
// size class decide. Reads are not refused. Reads are not refused.
func TestWritesThatWouldWaitTooLongAreRefused(t *testing.T) {
	l := startFakeServer(t, nil)
	const incr = "/v1/counters/posts/incr"
	l.server.crowd(&l.server.admission.small, 10*time.Second)
	defer l.server.uncrowd(&l.server.admission.small)
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

func TestWritesLeaveTheirLane(t *testing.T) {
	l := startFakeServer(t, nil)
	l.do("POST", "/v1/counters/posts/incr", manyOps(1))
	l.do("POST", "/v1/counters/posts/incr", manyOps(1000))
	l.do("POST", "/v1/counters/posts/incr", "{")
	l.node.setFault("panic")
	l.do("POST", "/v1/counters/posts/incr", manyOps(1))
	for name, lane := range map[string]*sizeClass{"small": &l.server.admission.small, "large": &l.server.admission.large} {
		if lane.count.Load() != 0 || lane.bytes.Load() != 0 {
			t.Errorf("%s: %d writes of %d bytes are left", name, lane.count.Load(), lane.bytes.Load())
		}
	}
	if l.server.bodies.bytes.Load() != 0 || l.server.inFlight.Load() != 0 {
		t.Errorf("%d bytes of bodies, %d requests are left", l.server.bodies.bytes.Load(), l.server.inFlight.Load())
	}
}

// The server decodes a write before a full queue refuses it. So it delays the refusal by the
// write's size, and answers by the deadline.
func TestFullQueuesHoldBack(t *testing.T) {
	l := startFakeServer(t, nil)
	l.node.setFault("overloaded")
	a := l.server.admission
	a.nextRefusal.Store(int64(time.Since(a.started)))
	before := a.nextRefusal.Load()
	wantFault(t, l.do("POST", "/v1/counters/posts/incr", manyOps(1000)), 429, "overloaded", "")
	if took := time.Duration(a.nextRefusal.Load() - before); took < 20*a.refusalEvery {
		t.Errorf("26 kB took %v of the ration, a refusal is %v", took, a.refusalEvery)
	}
	a.nextRefusal.Add(int64(time.Hour)) // so that the deadline is the bound
	began := time.Now()
	wantFault(t, l.do("POST", "/v1/counters/posts/incr", manyOps(1), "Countd-Timeout", "500ms"), 429, "overloaded", "")
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("it was held back for %v", took)
	}
}
