package csvimport

import (
	"context"
	"math"
	"time"
)

// paceSecondsMax keeps the wait for an event of a far future within a Duration.
const paceSecondsMax = 100 * 365 * 24 * 3600

// pace waits for the time of events.
type pace struct {
	speed float64 // 0 does not wait
	began time.Time
	first float64
}

// wait waits until an event is due, relative to the first one, or until ctx ends. An event
// without a time, NaN, is due at once.
func (p *pace) wait(ctx context.Context, at float64) error {
	if p.speed == 0 || math.IsNaN(at) {
		return nil
	}
	if p.began.IsZero() {
		p.began, p.first = time.Now(), at
	}
	seconds := min((at-p.first)/p.speed, paceSecondsMax)
	left := time.Until(p.began.Add(time.Duration(seconds * float64(time.Second))))
	if left <= 0 {
		return nil
	}
	select {
	case <-time.After(left):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
