package rpc

import (
	"context"
	"sync"
	"time"
)

const (
	// CheckEvery is the interval at which the caller of a node checks whether it should still wait.
	CheckEvery = 250 * time.Millisecond
	// If checksMax checks in a row fail, the caller stops waiting. One is too few: a node that has just
	// handed its leadership over still answers.
	checksMax = 2
)

// Questions counts the running questions to other nodes; a node waits for them when it closes. A
// request that arrived right before Close may still ask other nodes, but a sync.WaitGroup must not
// rise from 0 during Wait. So such a request calls Begin. Use Go and Add only if the caller ends
// before Close, or within a question that has begun.
type Questions struct {
	sync.WaitGroup

	gate struct {
		sync.Mutex
		closed bool
	}
}

// Begin counts a question; Done ends it. After Close, Begin returns false and counts nothing.
func (q *Questions) Begin() bool {
	q.gate.Lock()
	defer q.gate.Unlock()
	if !q.gate.closed {
		q.Add(1)
	}
	return !q.gate.closed
}

// Close waits for the questions that have begun.
func (q *Questions) Close() {
	q.gate.Lock()
	q.gate.closed = true
	q.gate.Unlock()
	q.Wait()
}

// While returns a context that ends once holds has returned false in checksMax checks in a row. Call
// it within a question.
//
// The goroutine of While starts only at the first check, because most calls end sooner. It ends with
// the context, which the caller must cancel. Close waits for the goroutine.
func (q *Questions) While(ctx context.Context, holds func(context.Context) bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	q.Add(1)
	first := time.AfterFunc(CheckEvery, func() {
		defer q.Done()
		tick := time.NewTicker(CheckEvery)
		defer tick.Stop()
		for failed := 0; ; {
			if holds(ctx) {
				failed = 0
			} else if failed++; failed == checksMax {
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel()
	})
	return ctx, func() {
		if first.Stop() {
			q.Done()
		}
		cancel()
	}
}
