package gate

import (
	"testing"
	"time"
)

// pass enters and ends n writes one after the other, and then one more, which ends the window.
// Every write appears to take a minute.
func (a *Admission) pass(l *class, n int, weight int64, answered bool) {
	now, w := func() int64 { return int64(time.Since(a.started)) }, Write{a, l, weight}
	l.began.Store(now() + int64(time.Hour)) // only the last write ends the window
	for range n {
		w.Enter()
		w.Leave(time.Now().Add(-time.Minute), answered)
	}
	w.Enter()
	l.began.Store(now() - int64(classWindow))
	w.Leave(time.Now().Add(-time.Minute), answered)
}

func TestSizeClass(t *testing.T) {
	const weight = 1000
	busy := func(inFlight int) (*Admission, *class, Write) {
		a := NewAdmission()
		a.started = a.started.Add(-time.Hour)
		l := &a.small
		w := Write{a, l, weight}
		for range inFlight {
			w.Enter()
		}
		if inFlight > 0 { // the window begins with these writes in flight
			l.began.Store(int64(time.Since(a.started)))
			l.quiet.Store(false)
		}
		return a, l, w
	}
	t.Run("nothing is refused before a speed was seen", func(t *testing.T) {
		_, _, w := busy(100_000)
		if !w.Admits(time.Millisecond) {
			t.Error("refused")
		}
	})
	t.Run("the wait is what is in flight over the speed", func(t *testing.T) {
		a, l, w := busy(1000)
		a.pass(l, 999, weight, true) // 1,000 writes complete in a window of about 100 ms
		if got := l.perSec.Load(); got > 10_000*weight || got < 5_000*weight {
			t.Fatalf("%d a second", got)
		}
		l.perSec.Store(10_000 * weight) // so that 1,000 writes take 100 ms
		if !w.Admits(101*deadlineShare*time.Millisecond) || w.Admits(99*deadlineShare*time.Millisecond) {
			t.Errorf("100 ms of work are to be 1/%d of the deadline", deadlineShare)
		}
		large := Write{a, l, 100 * weight}
		if large.Admits(101*deadlineShare*time.Millisecond) || !large.Admits(111*deadlineShare*time.Millisecond) {
			t.Error("a large write waits for itself too")
		}
	})
	t.Run("a guess must be borne out", func(t *testing.T) {
		_, l, w := busy(1000)
		l.perSec.Store(1)
		l.took.Store(int64(time.Second))
		if !w.Admits(2*deadlineShare*time.Second) || w.Admits(2*deadlineShare*time.Second-2*deadlineShare) {
			t.Error("a second is to be long enough for half of the share")
		}
	})
	t.Run("one that was quick says little", func(t *testing.T) {
		_, l, w := busy(1000)
		l.took.Store(int64(16 * time.Second))
		w.Leave(time.Now(), true)
		if got := time.Duration(l.took.Load()); got < 14*time.Second || got > 15100*time.Millisecond {
			t.Errorf("they took %v", got)
		}
	})
	t.Run("a few are always let in", func(t *testing.T) {
		_, l, w := busy(smallFree - 1)
		l.took.Store(int64(time.Minute))
		l.perSec.Store(1)
		if !w.Admits(time.Millisecond) {
			t.Error("refused")
		}
		w.Enter()
		if w.Admits(time.Millisecond) {
			t.Error("one more was let in")
		}
	})
	t.Run("the assumed speed of a quiet class rises", func(t *testing.T) {
		a, l, _ := busy(smallFree/2 - 1)
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
		_, l, w := busy(0) // its window began an hour ago
		for range 1000 {
			w.Enter()
		}
		l.perSec.Store(7)
		w.Leave(time.Now(), true)
		if got := l.perSec.Load(); got != 0 {
			t.Errorf("%d a second", got)
		}
	})
	t.Run("what is refused for what it says is not speed", func(t *testing.T) {
		a, l, _ := busy(1000)
		l.perSec.Store(8 * weight)
		for want := int64(4 * weight); want > 1; want /= 2 {
			a.pass(l, 10, weight, false)
			if got := l.perSec.Load(); got != want {
				t.Fatalf("%d a second, want %d", got, want)
			}
		}
	})
	t.Run("everything that enters leaves", func(t *testing.T) {
		_, l, w := busy(0)
		done := make(chan struct{})
		for range 8 {
			go func() {
				for range 10_000 {
					w.Enter()
					w.Leave(time.Now(), true)
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

// The rate of refusals is limited. A few refusals need not wait, and the others follow at
// intervals. No refusal waits longer than its bound.
func TestRefusalsAreRationed(t *testing.T) {
	const bound = time.Hour
	a := NewAdmission()
	a.started = a.started.Add(-time.Minute)
	atOnce := 0
	for a.RefusalDelay(1, bound) == 0 {
		atOnce++
	}
	if least := int(refusalBurst / a.refusalEvery); atOnce < least {
		t.Errorf("%d came at once, want %d", atOnce, least)
	}
	before := a.nextRefusal.Load()
	const more = 100_000 // more refusals than the ration allows in several seconds, although the requests take far less time
	last := time.Duration(0)
	for range more {
		last = a.RefusalDelay(1, bound)
	}
	if got := time.Duration(a.nextRefusal.Load() - before); got < more*a.refusalEvery {
		t.Errorf("%d refusals take %v, want %v", more, got, more*a.refusalEvery)
	}
	if last <= 0 || last > (more+1)*a.refusalEvery {
		t.Errorf("the last waits for %v", last)
	}
	before = a.nextRefusal.Load()
	if got := a.RefusalDelay(1, time.Microsecond); got != time.Microsecond || a.nextRefusal.Load() != before {
		t.Errorf("waits for %v, and takes %d of the ration", got, a.nextRefusal.Load()-before)
	}
}
