package proctest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Stats summarises the requests of a load that began in a period.
type Stats struct {
	Requests int
	Late     int            // number of requests that took longer than RequestDeadline, without the machine's stalls; their client would have given up
	Stalled  time.Duration  // total time for which the machine stalled
	Retried  int            // number of requests that were sent more than once
	Failed   map[string]int // failed tries by reason
	P50, P99 time.Duration
	Max      time.Duration
	Longest  []FailedTry // failed tries of the request that took longest
}

// Between summarises the requests that began between two times.
func (l *Load) Between(from, to time.Time) Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{Failed: map[string]int{}, Stalled: l.stalls.between(from, to)}
	var took []time.Duration
	for _, r := range l.mu.requests {
		if r.Begun.Before(from) || r.Begun.After(to) {
			continue
		}
		took = append(took, r.Took)
		if r.Took > s.Max {
			s.Max, s.Longest = r.Took, r.Failed
		}
		if r.Took > RequestDeadline && r.Took > RequestDeadline+stallsInRequest*l.stalls.between(r.Begun, r.Begun.Add(r.Took)) {
			s.Late++
		}
		if len(r.Failed) > 0 {
			s.Retried++
		}
		for _, try := range r.Failed {
			s.Failed[try.Why]++
		}
	}
	s.Requests = len(took)
	if len(took) == 0 {
		return s
	}
	slices.Sort(took)
	s.P50, s.P99 = Quantile(took, 0.5), Quantile(took, 0.99)
	return s
}

// Quantile returns the q-quantile of sorted durations. There must be at least one.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func (s Stats) String() string {
	var why []string
	for _, reason := range slices.Sorted(maps.Keys(s.Failed)) {
		why = append(why, fmt.Sprintf("%s ×%d", reason, s.Failed[reason]))
	}
	text := fmt.Sprintf("%d requests, p50 %v, p99 %v, longest %v, %d late, %d sent again, stalls of the machine %v",
		s.Requests, round(s.P50), round(s.P99), round(s.Max), s.Late, s.Retried, round(s.Stalled))
	if len(why) > 0 {
		text += fmt.Sprintf(" (%s; the longest: %v)", strings.Join(why, ", "), s.Longest)
	}
	return text
}

func round(d time.Duration) time.Duration {
	if d < 100*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}
