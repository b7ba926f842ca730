package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	// RetryForDefault is longer than a node takes to restart. It is far below the ten minutes
	// for which a server remembers a key.
	RetryForDefault = 30 * time.Second
	// RetryNever is the Retry.For of calls that are sent once.
	RetryNever = time.Duration(-1)

	retryFirst = 50 * time.Millisecond
	// retryMax bounds the wait, so that a client uses a server again within seconds of its
	// return.
	retryMax = 5 * time.Second
)

// Retry configures how calls are repeated.
type Retry struct {
	// For bounds the time for which a call is repeated, counted from its first failure. 0 means
	// RetryForDefault; a negative value means never.
	For time.Duration
	// With OnlyNoLeader, a call is repeated only if the server refused it because there was no
	// leader: the cluster is starting, or is electing a leader.
	OnlyNoLeader bool
	// OnWait, if not nil, is called after each failure and before the following wait. The
	// goroutine that makes the call runs it.
	OnWait func(err error, wait time.Duration)
}

// Do calls f until it succeeds or fails for good, For is over, or ctx is done. Between tries it
// waits for the server's Retry-After plus a random time, so that callers that failed together do
// not return together. The random time is from 0 to a bound that doubles from 50 ms to 5 s. The
// last wait ends when For is over. Then Do calls f for the last time. If ctx would end during a
// wait, Do gives up at once. It returns the last error of f.
func (r Retry) Do(ctx context.Context, f func() error) error {
	err := f()
	if err == nil || !r.repeats(err) {
		return err
	}
	end := time.Now().Add(r.patience())
	for bound := retryFirst; ; bound = min(2*bound, retryMax) {
		left := time.Until(end)
		wait := min(retryAfterOf(err)+rand.N(bound), left)
		if left <= 0 || endsWithin(ctx, wait) {
			return err
		}
		if r.OnWait != nil {
			r.OnWait(err, wait)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
		if err = f(); err == nil || !r.repeats(err) {
			return err
		}
	}
}

func (r Retry) repeats(err error) bool {
	var refused *Error
	return Retryable(err) && (!r.OnlyNoLeader || errors.As(err, &refused) && refused.Code == "no_leader")
}

func (r Retry) patience() time.Duration {
	if r.For == 0 {
		return RetryForDefault
	}
	return max(r.For, 0)
}

// endsWithin reports whether ctx is done or ends within d.
func endsWithin(ctx context.Context, d time.Duration) bool {
	deadline, has := ctx.Deadline()
	return ctx.Err() != nil || has && time.Until(deadline) <= d
}

func retryAfterOf(err error) time.Duration {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.RetryAfter
	}
	return 0
}
