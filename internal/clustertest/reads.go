package clustertest

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// staleEvery is the pause between two reads of a node: often enough to meet any
// moment in which it does not answer.
const staleEvery = 5 * time.Millisecond

// StaleReads continuously reads the nodes' own rows.
type StaleReads struct {
	t       testing.TB
	stop    context.CancelFunc
	readers sync.WaitGroup

	mu struct {
		sync.Mutex
		done    int
		failed  []string
		longest time.Duration
	}
}

// StartStaleReads starts a reader for each node; Check stops them.
func (c *Cluster) StartStaleReads(nodes ...*Node) *StaleReads {
	c.t.Helper()
	s := &StaleReads{t: c.t}
	ctx, cancel := context.WithCancel(c.t.Context())
	s.stop = cancel
	c.t.Cleanup(func() { cancel(); s.readers.Wait() })
	for _, n := range nodes {
		s.readers.Go(func() { s.run(ctx, c.t.Context(), n) })
	}
	return s
}

// run reads until stopping ends; a read in flight then continues.
func (s *StaleReads) run(stopping, ctx context.Context, n *Node) {
	r := &request{
		method: http.MethodPost, path: "/v1/counters/posts/get?consistency=stale",
		body: map[string]any{"ids": []string{"0", "1", "2", "3"}},
	}
	for stopping.Err() == nil {
		var a answer
		try := n.try(ctx, r, tryTimeout, &a)
		s.note(n, try)
		select {
		case <-stopping.Done():
		case <-time.After(staleEvery):
		}
	}
}

func (s *StaleReads) note(n *Node, try outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.done++
	s.mu.longest = max(s.mu.longest, try.took)
	if try.fate != done {
		s.mu.failed = append(s.mu.failed, fmt.Sprintf("%s: %s", n.Name, try.why))
	}
}

// Check fails the test if a read failed.
func (s *StaleReads) Check() {
	s.t.Helper()
	s.stop()
	s.readers.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.failed) > 0 || s.mu.done == 0 {
		s.t.Errorf("%d of %d stale reads failed: %q", len(s.mu.failed), s.mu.done, s.mu.failed[:min(3, len(s.mu.failed))])
	}
	s.t.Logf("stale reads: %d, the longest took %v", s.mu.done, round(s.mu.longest))
}
