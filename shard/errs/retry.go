package errs

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// RetryUntil pauses for RetryPauseMin after the first attempt, and doubles the pause up to
	// RetryPauseMax.
	RetryPauseMin = 5 * time.Millisecond
	RetryPauseMax = 100 * time.Millisecond
	// pollEvery is the interval at which WaitFor checks its condition.
	pollEvery = 5 * time.Millisecond
)

// RetryUntil calls attempt until attempt returns true, with a pause after each failure, and then
// returns true. If ctx ends during a pause, it returns false. Use it only if attempt may be
// repeated.
func RetryUntil(ctx context.Context, attempt func() (done bool)) bool {
	for pause := RetryPauseMin; !attempt(); pause = min(2*pause, RetryPauseMax) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// WaitFor blocks until condition returns nil or ErrDraining, and returns that result. If ctx ends
// first, it returns ctx's error joined with the last error of condition.
func WaitFor(ctx context.Context, condition func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil || errors.Is(err, ErrDraining) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}
