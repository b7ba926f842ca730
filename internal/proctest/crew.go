package proctest

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// crew runs the goroutines of a load until Stop, or until one of them fails. They end before the
// test does.
type crew struct {
	t       testing.TB
	ctx     context.Context // ends with the test; its end aborts the requests
	calm    context.Context // ends with Stop or a failure; after it, no request begins
	stop    context.CancelCauseFunc
	workers sync.WaitGroup
}

func newCrew(t testing.TB) *crew {
	c := &crew{t: t, ctx: t.Context()}
	c.calm, c.stop = context.WithCancelCause(c.ctx)
	t.Cleanup(c.workers.Wait)
	return c
}

// work runs f, which must return once calm ends. If f returns an error, work stops the crew.
func (c *crew) work(f func() error) {
	c.workers.Go(func() {
		if err := f(); err != nil {
			c.stop(err)
		}
	})
}

// Stop stops the crew and waits until each worker has finished its last request. It fails the test
// if a worker failed.
func (c *crew) Stop() {
	c.t.Helper()
	c.stop(nil)
	c.workers.Wait()
	if err := context.Cause(c.calm); !errors.Is(err, context.Canceled) {
		c.t.Fatalf("the load ended: %v", err)
	}
}
