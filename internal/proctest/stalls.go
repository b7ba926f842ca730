package proctest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// stallEvery is the pause between two probes of the machine.
	stallEvery = 20 * time.Millisecond
	// stallMin bounds the time that a wake-up and a sync take without a stall. Any longer time
	// counts as a stall.
	stallMin = 50 * time.Millisecond
	// stallsInRequest is how many stalls may delay one request, one after the other: of its client,
	// its node, the leader and a follower. Each of these must wake up, and may sync.
	stallsInRequest = 4
)

// stalls measures how much other tests and programs slow the machine down. It repeats a probe: a
// wake-up and a sync, which a node also needs for a write. Probes do not involve the cluster, so a
// slow cluster never counts as a stall.
type stalls struct {
	mu struct {
		sync.Mutex
		seen []stall // sorted by end
	}
}

// stall is a period in which the machine delayed a probe.
type stall struct {
	end  time.Time // time at which the stall ended
	took time.Duration
}

// watch probes until ctx ends. It returns an error if it cannot write to dir.
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

// note records a probe that ended at the time at with the delay late. A delay of zero or less is no
// stall.
func (s *stalls) note(at time.Time, late time.Duration) {
	if late <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.seen = append(s.mu.seen, stall{at, late})
}

// between returns the total duration of stalls between two times.
func (s *stalls) between(from, to time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := time.Duration(0)
	for _, one := range s.mu.seen {
		began := one.end.Add(-one.took)
		if began.Before(from) {
			began = from
		}
		end := one.end
		if end.After(to) {
			end = to
		}
		sum += max(0, end.Sub(began))
	}
	return sum
}
