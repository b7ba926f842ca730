package api

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// smallFree and largeFree are how many writes of a size class are always admitted. With no more
	// than these, a write waits only for the log.
	smallFree = 64
	largeFree = 8
	// classWindow is the interval over which the speed of a size class is measured. It holds
	// several entries of a disk with slow syncs.
	classWindow = 100 * time.Millisecond
	// tookOver is the approximate number of writes that sizeClass.took averages.
	tookOver = 16
	// perSecMax is above any real speed of a size class.
	perSecMax = 1 << 40
	// deadlineShare bounds the expected time of the earlier writes to 1/deadlineShare of a write's
	// deadline. The rest covers what the estimate leaves out: the way from the socket and back, and
	// differences between writes. At half of the deadline, the slowest admitted writes missed it.
	deadlineShare = 4
	// refusalsPerCPU bounds the refusals a second. A refusal takes about 10 µs. The bound is a
	// twentieth of the processors. More refusals would take time from admitted writes.
	refusalsPerCPU = 5000
	// decodedPerRefusal is how many bytes are decoded in the time of a refusal.
	decodedPerRefusal = 1 << 10
	// refusalBurst is how long unused refusals stay available for a burst.
	refusalBurst = 10 * time.Millisecond
	// refusalDelayMax bounds the delay of a refusal. Retry-After makes the caller wait as long.
	refusalDelayMax = time.Second
	// writeOverheadBytes is the weight of a write in addition to its body.
	writeOverheadBytes = 256
)

// admission refuses a write on arrival if the earlier writes will take more than a quarter of its
// deadline. A refusal costs a small part of the work of a write. A write that is admitted and then
// given up costs all of it.
//
// The expected time is the weight in flight of the write's size class divided by the weight that it
// completes a second (Little's law). So it follows the disk, the processors and the size of the
// batches without a setting. A speed over a short window is a guess. So the last completed writes
// must have taken long as well.
//
// Small and large writes have size classes of their own, like the queues of the proposer in package
// shard. A few clients with huge batches, which wait long, must not cause refusals of other
// clients' single increments.
//
// Refusals are rationed too. Callers that return at once could make a node do nothing but refuse.
// Beyond the ration a request is delayed, and then admitted if possible. The delay costs a
// goroutine and keeps its connection busy.
type admission struct {
	started time.Time
	small   sizeClass
	large   sizeClass

	refusalEvery time.Duration
	nextRefusal  atomic.Int64 // earliest time of the next refusal, in nanoseconds since started
}

// sizeClass is the writes of one size class. Every handler reads and writes its fields without a
// lock; a race between two handlers changes the rate by at most one request.
type sizeClass struct {
	count atomic.Int64 // writes in flight
	bytes atomic.Int64 // the sum of their weights

	began  atomic.Int64 // start of the window, in nanoseconds since admission.started
	left   atomic.Int64 // weight of the writes that ended in the window
	quiet  atomic.Bool  // few writes were in flight at some moment of the window
	perSec atomic.Int64 // weight completed per second in the latest windows; 0 if unknown
	took   atomic.Int64 // approximate mean duration of the last completed writes, in nanoseconds

	free int64 // number of writes that are always admitted
}

func newAdmission() *admission {
	perSec := refusalsPerCPU * runtime.GOMAXPROCS(0)
	a := &admission{started: time.Now(), refusalEvery: time.Second / time.Duration(perSec)}
	a.small.free, a.large.free = smallFree, largeFree
	return a
}

// refusalDelay returns how long to delay a refusal, at most bound. It uses cost refusals of
// the ration, unless it returns the bound.
func (a *admission) refusalDelay(cost int, bound time.Duration) time.Duration {
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

// classOf returns the size class of a write with a body of n bytes, n below 0 for a body in
// chunks, and the weight of the write.
func (a *admission) classOf(n int) (l *sizeClass, weight int64) {
	switch {
	case isSmall(n):
		return &a.small, int64(n) + writeOverheadBytes
	case n < 0:
		return &a.large, smallBodyBytesMax + writeOverheadBytes // at least this much
	}
	return &a.large, int64(n) + writeOverheadBytes
}

// admits reports whether a write that arrives now can expect its answer within its share of
// timeout.
func (l *sizeClass) admits(weight int64, timeout time.Duration) bool {
	perSec := l.perSec.Load()
	if perSec == 0 || l.count.Load() < l.free {
		return true
	}
	expected := float64(l.bytes.Load()+weight) / float64(perSec)
	return expected <= timeout.Seconds()/deadlineShare || l.took.Load() <= int64(timeout/(2*deadlineShare))
}

func (l *sizeClass) enter(weight int64) {
	l.noteQuiet(l.count.Add(1))
	l.bytes.Add(weight)
}

// noteQuiet records that few writes are in flight.
func (l *sizeClass) noteQuiet(count int64) {
	if count < l.free/2 && !l.quiet.Load() {
		l.quiet.Store(true)
	}
}

// leave ends a write that arrived at received. counts is false for a write that was refused for its
// content: its duration shows nothing about the speed.
func (a *admission) leave(in *arrival, received time.Time, counts bool) {
	l := in.class
	l.bytes.Add(-in.weight)
	l.noteQuiet(l.count.Add(-1))
	ended := time.Now()
	if counts {
		l.left.Add(in.weight)
		l.took.Add((int64(ended.Sub(received)) - l.took.Load()) / tookOver)
	}
	now := int64(ended.Sub(a.started))
	if began := l.began.Load(); now-began >= int64(classWindow) && l.began.CompareAndSwap(began, now) {
		l.measure(time.Duration(now - began))
	}
}

// measure ends a window. A size class with few writes completes everything that arrives, which does
// not show its capacity. So measure doubles the assumed speed for each such window, and the class
// fills gradually.
func (l *sizeClass) measure(window time.Duration) {
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

// arrival is what is known about a request before its body is read.
type arrival struct {
	endpoint  *endpoint
	timeout   time.Duration
	bodyBytes int // below 0 for a body in chunks
	class     *sizeClass
	weight    int64 // in its size class
}
