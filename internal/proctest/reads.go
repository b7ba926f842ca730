package proctest

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// staleEvery is the pause between two reads of a node. It is short, so that the reads notice even a
// short time without answers.
const staleEvery = 5 * time.Millisecond

// StaleReads continuously sends stale reads, which each node answers from its own replicas.
type StaleReads struct {
	*crew

	mu struct {
		sync.Mutex
		done    int
		failed  []string
		longest time.Duration
	}
}

// StartStaleReads starts a reader for each node. Check stops the readers.
func (c *Cluster) StartStaleReads(nodes ...*Member) *StaleReads {
	c.t.Helper()
	s := &StaleReads{crew: newCrew(c.t)}
	for _, n := range nodes {
		s.work(func() error { return s.run(n) })
	}
	return s
}

func (s *StaleReads) run(n *Member) error {
	r := &request{
		method: http.MethodPost, path: "/v1/counters/posts/get?consistency=stale",
		body: map[string]any{"ids": []string{"0", "1", "2", "3"}},
	}
	for s.calm.Err() == nil {
		var a answer
		s.note(n, n.try(s.ctx, r, tryTimeout, &a))
		select {
		case <-s.calm.Done():
		case <-time.After(staleEvery):
		}
	}
	return nil
}

func (s *StaleReads) note(n *Member, try outcome) {
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
	s.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.failed) > 0 || s.mu.done == 0 {
		s.t.Errorf("%d of %d stale reads failed: %q", len(s.mu.failed), s.mu.done, s.mu.failed[:min(3, len(s.mu.failed))])
	}
	s.t.Logf("stale reads: %d, the longest took %v", s.mu.done, round(s.mu.longest))
}
