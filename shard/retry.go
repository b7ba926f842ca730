package shard

import (
	"context"
	"time"
)

const (
	// What finds no leader is tried again after retryPauseMin, then at double the
	// pause each time up to retryPauseMax. An election takes a second or two.
	retryPauseMin = 5 * time.Millisecond
	retryPauseMax = 100 * time.Millisecond
)

// tryUntil calls try until it returns true, with a pause after each time, and
// returns true. If ctx ends in a pause it returns false.
func tryUntil(ctx context.Context, try func() (done bool)) bool {
	for pause := retryPauseMin; !try(); pause = min(2*pause, retryPauseMax) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
	return true
}
