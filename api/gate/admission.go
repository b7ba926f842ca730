package gate

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// While a size class has fewer writes in flight than smallFree or largeFree, every write is
	// admitted. With so few writes, a write waits only for the log.
	smallFree = 64
	largeFree = 8
	// classWindow is the interval over which the speed of a size class is measured. Even with slow
	// syncs, a disk completes several entries in this interval.
	classWindow = 100 * time.Millisecond
	// tookOver is the approximate number of writes that class.took averages.
	tookOver = 16
	// perSecMax is above any real speed of a size class.
	perSecMax = 1 << 40
	// deadlineShare bounds the expected time of the earlier writes to 1/deadlineShare of a write's
	// deadline. The rest of the deadline is for the network, and for differences between writes.
	// With half of the deadline as the bound, measured writes still missed the deadline.
	deadlineShare = 4
	// refusalsPerCPU bounds the refusals per second for each processor. A refusal takes about 10 µs,
	// so refusals use at most a twentieth of the processors.
	refusalsPerCPU = 5000
	// DecodedPerRefusal is the number of bytes that can be decoded in the time of a refusal.
	DecodedPerRefusal = 1 << 10
	// refusalBurst is the time for which unused refusals stay available for a burst.
	refusalBurst = 10 * time.Millisecond
	// RefusalDelayMax bounds the delay of a refusal. It is as long as the Retry-After of the
	// answer.
	RefusalDelayMax = time.Second
	// writeOverheadBytes is the weight of a write in addition to its body.
	writeOverheadBytes = 256
)

// Admission refuses a write on arrival if the earlier writes will take more than a quarter of its
// deadline. A refusal costs a small part of the work of a write, but an admitted write that then
// misses its deadline costs all of it.
//
// The expected time is the weight in flight of the write's size class divided by the weight that
// the class completes per second (Little's law). So the expected time adapts to the disk, the
// processors and the size of batches without a setting. The speed over a short window is uncertain.
// So Admission refuses a write only if the last completed writes took long, too.
//
// Small and large writes have separate size classes, like the queues of package propose. So the
// long waits of a few clients with huge batches do not cause refusals of other clients' single
// increments.
//
// Refusals are limited too, because callers that retry at once could make a node do nothing but
// refuse. Beyond refusalsPerCPU a request is delayed, and then admitted if possible. The delay
// costs a goroutine and keeps the connection busy.
type Admission struct {
	started time.Time
	small   class
	large   class

	refusalEvery time.Duration
	nextRefusal  atomic.Int64 // earliest time of the next refusal, in nanoseconds since started
}

// class is the state of one size class of writes. Handlers use its fields without a lock; a
// race between two handlers changes the rate by at most one request.
type class struct {
	count atomic.Int64 // number of writes in flight
	bytes atomic.Int64 // sum of the weights of the writes in flight

	began  atomic.Int64 // start of the window, in nanoseconds since Admission.started
	left   atomic.Int64 // weight of the writes that ended in the window
	quiet  atomic.Bool  // few writes were in flight at some moment of the window
	perSec atomic.Int64 // weight completed per second in the latest windows; 0 if unknown
	took   atomic.Int64 // approximate mean duration of the last completed writes, in nanoseconds

	free int64 // number of writes that are always admitted
}

// NewAdmission returns the Admission of a server.
func NewAdmission() *Admission {
	perSec := refusalsPerCPU * runtime.GOMAXPROCS(0)
	a := &Admission{started: time.Now(), refusalEvery: time.Second / time.Duration(perSec)}
	a.small.free, a.large.free = smallFree, largeFree
	return a
}

// RefusalDelay returns how long to delay a refusal, at most bound. Unless it returns bound, the
// refusal counts as cost refusals against refusalsPerCPU.
func (a *Admission) RefusalDelay(cost int, bound time.Duration) time.Duration {
	for {
		now, next := int64(time.Since(a.started)), a.nextRefusal.Load()
		at := max(next, now-int64(refusalBurst))
		if at-now >= int64(bound) {
			return bound
		}
		if a.nextRefusal.CompareAndSwap(next, at+int64(cost)*int64(a.refusalEvery)) {
			return time.Duration(max(at-now, 0))
		}
	}
}

// Write is a write that has arrived.
type Write struct {
	admission *Admission
	class     *class
	weight    int64 // weight in its size class
}

// Write returns a write with a body of n bytes. For a body in chunks, n is below 0.
func (a *Admission) Write(n int) Write {
	switch {
	case IsSmall(n):
		return Write{a, &a.small, int64(n) + writeOverheadBytes}
	case n < 0:
		return Write{a, &a.large, SmallBodyBytesMax + writeOverheadBytes} // a lower bound, because the length is unknown
	}
	return Write{a, &a.large, int64(n) + writeOverheadBytes}
}

// SmallBodyBytesMax is the number of bytes of a body that arrives with the headers. The bound of
// connections also bounds the memory for such bodies.
const SmallBodyBytesMax = 8 << 10

// IsSmall reports whether a body of n bytes arrives with the headers. n is below 0 for a body in
// chunks.
func IsSmall(n int) bool { return n >= 0 && n <= SmallBodyBytesMax }

// Admits reports whether to admit a write that arrives now. It admits the write if the expected
// time is at most 1/deadlineShare of timeout, if few writes are in flight, if the speed is unknown,
// or if the last completed writes were fast.
func (w *Write) Admits(timeout time.Duration) bool {
	l := w.class
	perSec := l.perSec.Load()
	if perSec == 0 || l.count.Load() < l.free {
		return true
	}
	expected := float64(l.bytes.Load()+w.weight) / float64(perSec)
	return expected <= timeout.Seconds()/deadlineShare || l.took.Load() <= int64(timeout/(2*deadlineShare))
}

// Enter begins a write. Leave must follow.
func (w *Write) Enter() {
	w.class.noteQuiet(w.class.count.Add(1))
	w.class.bytes.Add(w.weight)
}

// InFlight returns the number of writes that have entered and not left, and the sum of their weights.
func (a *Admission) InFlight() (writes, weight int64) {
	return a.small.count.Load() + a.large.count.Load(), a.small.bytes.Load() + a.large.bytes.Load()
}

// noteQuiet sets quiet if few writes are in flight.
func (l *class) noteQuiet(count int64) {
	if count < l.free/2 && !l.quiet.Load() {
		l.quiet.Store(true)
	}
}

// Leave ends a write that arrived at the time received. counts is false for a refused write, whose
// duration does not show the speed.
func (w *Write) Leave(received time.Time, counts bool) {
	l := w.class
	l.bytes.Add(-w.weight)
	l.noteQuiet(l.count.Add(-1))
	ended := time.Now()
	if counts {
		l.left.Add(w.weight)
		l.took.Add((int64(ended.Sub(received)) - l.took.Load()) / tookOver)
	}
	now := int64(ended.Sub(w.admission.started))
	if began := l.began.Load(); now-began >= int64(classWindow) && l.began.CompareAndSwap(began, now) {
		l.measure(time.Duration(now - began))
	}
}

// measure ends a window. If few writes were in flight at some moment, the window does not show the
// possible speed, because all arriving writes complete. measure then doubles the assumed speed for
// each classWindow.
func (l *class) measure(window time.Duration) {
	left, before := float64(l.left.Swap(0))/window.Seconds(), l.perSec.Load()
	switch {
	case l.quiet.Swap(false):
		if before >= perSecMax>>min(window/classWindow, 62) {
			l.perSec.Store(0)
		} else {
			l.perSec.Store(before << (window / classWindow))
		}
	case before > 0:
		l.perSec.Store(max(int64((left+float64(before))/2), 1))
	default:
		l.perSec.Store(max(int64(left), 1))
	}
}
