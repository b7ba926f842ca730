package clustertest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// stallEvery is the pause between two looks at the machine.
	stallEvery = 20 * time.Millisecond
	// stallMin is what a look may take besides its pause on a machine that keeps up: a
	// wake-up and one sync. What is beyond counts as a stall.
	stallMin = 50 * time.Millisecond
	// stallsInRequest is how many delays as of one look a request may meet one after the
	// other: of its client, its node, the leader and a follower, each of which wakes, and
	// syncs or not.
	stallsInRequest = 4
)

// stalls measures how much slower than a machine of its own the machine of a test is: other
// tests and programs share it. A look takes a wake-up and a sync, as each node does for a
// write, so that a cluster that is slow by itself gets no credit for it.
type stalls struct {
	mu struct {
		sync.Mutex
		seen []stall // ascending
	}
}

// stall is a time in which the machine was late.
type stall struct {
	at   time.Time // its end
	took time.Duration
}

// watch looks until ctx ends. It returns an error if it cannot write to dir.
func (s *stalls) watch(ctx context.Context, dir string) error {
	f, err := os.Create(filepath.Join(dir, "stalls"))
	if err != nil {
		return err
	}
	defer f.Close()
	for ctx.Err() == nil {
		began := time.Now()
		time.Sleep(stallEvery)
		if _, err := f.WriteAt([]byte{1}, 0); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		now := time.Now()
		s.note(now, now.Sub(began)-stallEvery-stallMin)
	}
	return nil
}

// note notes that a look was late by a time, if it was.
func (s *stalls) note(at time.Time, late time.Duration) {
	if late <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.seen = append(s.mu.seen, stall{at, late})
}

// between returns for how long the machine stalled in a stretch of time.
func (s *stalls) between(from, to time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := time.Duration(0)
	for _, one := range s.mu.seen {
		began := one.at.Add(-one.took)
		if began.Before(from) {
			began = from
		}
		end := one.at
		if end.After(to) {
			end = to
		}
		sum += max(0, end.Sub(began))
	}
	return sum
}
