package api

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// smallFree and largeFree are how many writes of a lane are let in whatever
	// is expected: so few wait for nothing but the log.
	smallFree = 64
	largeFree = 8
	// laneWindow is over how long a lane's speed is measured. It holds several
	// entries of a disk with slow syncs.
	laneWindow = 100 * time.Millisecond
	// tookOver is about how many writes lane.took is the mean of.
	tookOver = 16
	// perSecMax is a speed that no lane has.
	perSecMax = 1 << 40
	// laneShare is the part of a write's deadline that the writes before it may
	// be expected to take, 1/laneShare. The rest is for what that does not see:
	// the way from the socket and back, and that writes are not alike. With half
	// of the deadline the slowest of the accepted writes missed it.
	laneShare = 4
	// turnedAwayPerCPU bounds the refusals a second. One takes some 10 µs: more of
	// them than this, which is a twentieth of the processors, would take the time
	// of the writes that were let in.
	turnedAwayPerCPU = 5000
	// decodedPerRefusal is how much of a body is decoded in the time of a refusal.
	decodedPerRefusal = 1 << 10
	// turnedAwayBurst is how long unused refusals are kept for a burst.
	turnedAwayBurst = 10 * time.Millisecond
	// doorWaitMax bounds the wait of a request that is to be turned away. It is
	// what Retry-After would have the caller wait.
	doorWaitMax = time.Second
	// writeOverheadBytes is what a write weighs beside its body.
	writeOverheadBytes = 256
)

// admission refuses a write as soon as it comes when the writes before it will
// take more than a quarter of its deadline. Refusing costs a small part of the work
// of writing; a write that is let in and then given up costs all of it.
//
// What to expect is what the lane has in flight over what left it a second, by
// weight (Little's law), so that it follows the disk, the processors and the
// size of the batches without a setting. A speed over a moment is a guess, so
// that it must be borne out: the writes that left last took long themselves.
//
// Small writes and large ones go in lanes of their own, as in the queues behind
// (shard's proposer): a few clients with huge batches, who wait long, must not
// have the single increments of the others refused.
//
// Refusals are rationed too. Callers that come back at once would have a node
// refuse and do nothing else; past the ration a request waits at the door, where
// it costs a goroutine and holds up its connection, and is then let in if it can
// be.
type admission struct {
	started time.Time
	small   lane
	large   lane

	refusalEvery time.Duration
	nextRefusal  atomic.Int64 // when there may be one more, in nanoseconds since started
}

// lane is the writes of one size. Its fields are read and written by every
// handler, without a lock; what a race between two makes of them is a rate that
// is off by a request.
type lane struct {
	count atomic.Int64 // writes in flight
	bytes atomic.Int64 // what they weigh

	began  atomic.Int64 // the window's, in nanoseconds since admission.started
	left   atomic.Int64 // weight of the writes that ended in the window
	quiet  atomic.Bool  // few writes were in flight at some moment of the window
	perSec atomic.Int64 // weight that left a second in the latest windows; 0 for not known
	took   atomic.Int64 // nanoseconds, about the mean of the writes that left last

	free int64 // writes that are always let in
}

func newAdmission() *admission {
	perSec := turnedAwayPerCPU * runtime.GOMAXPROCS(0)
	a := &admission{started: time.Now(), refusalEvery: time.Second / time.Duration(perSec)}
	a.small.free, a.large.free = smallFree, largeFree
	return a
}

// doorWait returns how long a request is to wait before it is turned away, at
// most a bound. It takes cost refusals of the ration, unless it returns the
// bound.
func (a *admission) doorWait(cost int, bound time.Duration) time.Duration {
	for {
		now, next := int64(time.Since(a.started)), a.nextRefusal.Load()
		at := max(next, now-int64(turnedAwayBurst))
		if at-now >= int64(bound) {
			return bound
		}
		if a.nextRefusal.CompareAndSwap(next, at+int64(cost)*int64(a.refusalEvery)) {
			return time.Duration(max(at-now, 0))
		}
	}
}

// laneOf returns the lane for a write with a body of n bytes, below 0 for in
// chunks, and what it weighs.
func (a *admission) laneOf(n int) (l *lane, weight int64) {
	switch {
	case isSmall(n):
		return &a.small, int64(n) + writeOverheadBytes
	case n < 0:
		return &a.large, smallBodyBytesMax + writeOverheadBytes // at least
	}
	return &a.large, int64(n) + writeOverheadBytes
}

// admits reports whether a write that comes now can expect its answer in good
// time.
func (l *lane) admits(weight int64, timeout time.Duration) bool {
	perSec := l.perSec.Load()
	if perSec == 0 || l.count.Load() < l.free {
		return true
	}
	expected := float64(l.bytes.Load()+weight) / float64(perSec)
	return expected <= timeout.Seconds()/laneShare || l.took.Load() <= int64(timeout/(2*laneShare))
}

func (l *lane) enter(weight int64) {
	l.look(l.count.Add(1))
	l.bytes.Add(weight)
}

// look notes that few writes are in flight.
func (l *lane) look(count int64) {
	if count < l.free/2 && !l.quiet.Load() {
		l.quiet.Store(true)
	}
}

// leave ends a write that was received at a time. One that was refused for what
// it says tells nothing of the lane's speed.
func (a *admission) leave(in *arrival, received time.Time, tells bool) {
	l := in.lane
	l.bytes.Add(-in.weight)
	l.look(l.count.Add(-1))
	ended := time.Now()
	if tells {
		l.left.Add(in.weight)
		l.took.Add((int64(ended.Sub(received)) - l.took.Load()) / tookOver)
	}
	now := int64(ended.Sub(a.started))
	if began := l.began.Load(); now-began >= int64(laneWindow) && l.began.CompareAndSwap(began, now) {
		l.measure(time.Duration(now - began))
	}
}

// measure ends a window. A lane that was quiet in it took what came, which says
// nothing of what it could take: it is thought twice as fast for each window,
// so that it fills by and by and not at once.
func (l *lane) measure(window time.Duration) {
	left, before := float64(l.left.Swap(0))/window.Seconds(), l.perSec.Load()
	switch {
	case l.quiet.Swap(false):
		if before >= perSecMax>>min(window/laneWindow, 62) {
			l.perSec.Store(0)
		} else {
			l.perSec.Store(before << (window / laneWindow))
		}
	case before > 0:
		l.perSec.Store(max(int64((left+float64(before))/2), 1))
	default:
		l.perSec.Store(max(int64(left), 1))
	}
}
