package rpc

import (
	"context"
	"iter"
	"sync"
	"time"
)

// AskTimeout bounds what one node is asked of itself.
const AskTimeout = time.Second

// AskAll asks nodes at once, and returns the answers, by key, of those that answer within
// AskTimeout.
func AskAll[A any](ctx context.Context, nodes iter.Seq[string], ask func(ctx context.Context, node string) (A, error)) map[string]A {
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	var mu sync.Mutex
	answers := map[string]A{}
	var asked sync.WaitGroup
	for node := range nodes {
		asked.Go(func() { // ends at the timeout
			if a, err := ask(ctx, node); err == nil {
				mu.Lock()
				defer mu.Unlock()
				answers[node] = a
			}
		})
	}
	asked.Wait()
	return answers
}
