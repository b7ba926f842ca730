package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	backoffFirst = 50 * time.Millisecond
	// backoffMax keeps the wait short enough that a server that is back is
	// used again within seconds.
	backoffMax = 5 * time.Second
)

// Backoff repeats calls that are safe to repeat.
type Backoff struct {
	For time.Duration // how long after the first failure to keep trying; 0 never repeats
	// OnWait, unless nil, is told of each failure before the wait that follows.
	OnWait func(err error, wait time.Duration)
}

// Do runs f until it succeeds, fails for good, For is over or ctx is done. It
// waits at least what the server asked for in Retry-After, else a random time
// below a bound that doubles from 50 ms to 5 s; never past the end of For,
// where f gets its last try. It returns the last error of f.
func (b Backoff) Do(ctx context.Context, f func() error) error {
	err := f()
	if err == nil || !Retryable(err) {
		return err
	}
	end := time.Now().Add(b.For)
	for bound := backoffFirst; ; bound = min(2*bound, backoffMax) {
		left := time.Until(end)
		if left <= 0 {
			return err
		}
		wait := min(max(retryAfterOf(err), bound/2+rand.N(bound/2)), left)
		if b.OnWait != nil {
			b.OnWait(err, wait)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
		if err = f(); err == nil || !Retryable(err) {
			return err
		}
	}
}

func retryAfterOf(err error) time.Duration {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.RetryAfter
	}
	return 0
}
