// Package retry owns the pauses between attempts that find no leader, and waits for conditions.
//
// It never decides whether something may be repeated. Invariant: it returns soon after its
// context ends.
package retry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/shard/errs"
)

const (
	// Until pauses for PauseMin after the first attempt, and doubles the pause up to
	// PauseMax. An election takes a second or two.
	PauseMin = 5 * time.Millisecond
	PauseMax = 100 * time.Millisecond
	// pollEvery is the interval at which WaitFor checks its condition.
	pollEvery = 5 * time.Millisecond
)

// Until calls attempt until attempt returns true, with a pause after each failure. It then returns
// true. If ctx ends during a pause, Until returns false.
func Until(ctx context.Context, attempt func() (done bool)) bool {
	for pause := PauseMin; !attempt(); pause = min(2*pause, PauseMax) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// WaitFor blocks until condition returns nil or errs.ErrDraining, and returns that. If ctx ends
// first, it returns ctx's error joined with the condition's last one.
func WaitFor(ctx context.Context, condition func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil || errors.Is(err, errs.ErrDraining) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}
