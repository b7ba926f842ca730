package rpc

import (
	"context"
	"iter"
	"sync"
	"time"
)

// AskTimeout bounds each question of AskAll to one node.
const AskTimeout = time.Second

// AskAll asks all nodes concurrently. It returns, by node key, the answers that arrive within
// AskTimeout.
func AskAll[A any](ctx context.Context, nodes iter.Seq[string], ask func(ctx context.Context, node string) (A, error)) map[string]A {
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	var mu sync.Mutex
	answers := map[string]A{}
	var asked sync.WaitGroup
	for node := range nodes {
		asked.Go(func() { // ends after AskTimeout at the latest
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
