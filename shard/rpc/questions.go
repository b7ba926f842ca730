package rpc

import (
	"sync"
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
