package load

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// pacer decides when the requests of a run are due. In a closed loop, a request is due when a
// worker is free for it. In an open loop, request n is due at start + n/rate, even if no worker is
// free.
type pacer struct {
	start    time.Time
	interval float64      // nanoseconds from one request to the next; 0 in a closed loop
	slots    int64        // maximum number of requests of the run
	next     atomic.Int64 // number of the next request; in an open loop, guarded by sleeping

	// In an open loop, the worker with the next request holds this lock until the request is due.
	// The other free workers wait for the lock, because their requests are due later.
	sleeping sync.Mutex
}

func newPacer(cfg *Config, start time.Time) *pacer {
	p := &pacer{start: start, slots: cfg.slots()}
	if cfg.Rate > 0 {
		p.interval = float64(time.Second) / cfg.Rate
	}
	return p
}

// take waits until the next request is due, and returns the time at which it was due. ok is false
// if the run is over.
func (p *pacer) take(ctx context.Context) (due time.Time, ok bool) {
	if p.interval == 0 {
		return time.Now(), ctx.Err() == nil && p.next.Add(1) <= p.slots
	}
	p.sleeping.Lock()
	defer p.sleeping.Unlock()
	if ctx.Err() != nil || p.next.Load() >= p.slots {
		return time.Time{}, false
	}
	due = p.due(p.next.Load())
	if !sleepUntil(ctx, due) {
		return time.Time{}, false
	}
	p.next.Add(1)
	return due, true
}

// due returns the time at which request n of an open loop is due.
func (p *pacer) due(n int64) time.Time {
	return p.start.Add(time.Duration(float64(n) * p.interval))
}

// unsent calls visit for each request of an open loop that was due before end but was not sent,
// because no worker was free. waited is the time from due to end.
func (p *pacer) unsent(end time.Time, visit func(waited time.Duration)) {
	if p.interval == 0 {
		return
	}
	for n := p.next.Load(); n < p.slots && p.due(n).Before(end); n++ {
		visit(end.Sub(p.due(n)))
	}
}

// sleepUntil waits until instant and returns true. If ctx ends first, it returns false.
func sleepUntil(ctx context.Context, instant time.Time) bool {
	// A Go timer can fire a millisecond late on an idle machine, and the measured latency would
	// include that. So the timer fires earlier by timerLateness, and sleepExactly waits for the
	// rest.
	const timerLateness = 1500 * time.Microsecond
	if wait := time.Until(instant) - timerLateness; wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
	}
	if wait := time.Until(instant); wait > 0 {
		sleepExactly(wait)
	}
	return true
}
