package cold

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// latencyClasses is the number of buckets of the histogram: four for each doubling from 1 µs to 67
// s, and one for anything longer.
const latencyClasses = 26*4 + 1

// latencies is a histogram of reads by duration.
type latencies struct {
	classes [latencyClasses]atomic.Uint64
	nanos   atomic.Uint64
}

func (l *latencies) add(took time.Duration) {
	l.classes[latencyClass(took)].Add(1)
	l.nanos.Add(uint64(took))
}

func (l *latencies) load() (all Latencies) {
	for i := range l.classes {
		all.classes[i] = l.classes[i].Load()
	}
	all.Sum = time.Duration(l.nanos.Load())
	return all
}

func latencyClass(took time.Duration) int {
	micros := uint64(max(1, took.Microseconds()))
	doublings := bits.Len64(micros) - 1
	return min(doublings*4+int(micros<<2>>doublings&3), latencyClasses-1)
}

func latencyBound(class int) time.Duration {
	return time.Duration((4+class%4+1)<<(class/4)) * time.Microsecond / 4
}

// Latencies is a copy of a histogram of reads by duration.
type Latencies struct {
	Sum     time.Duration // sum of all durations
	classes [latencyClasses]uint64
}

// Count returns the number of reads.
func (l *Latencies) Count() (n uint64) {
	for _, some := range l.classes {
		n += some
	}
	return n
}

// Doublings calls fn with each bound of 2 µs, 4 µs and so on up to 67 s, and with the number of
// reads that took less.
func (l *Latencies) Doublings(fn func(bound time.Duration, reads uint64)) {
	reads := uint64(0)
	for class, some := range l.classes {
		if reads += some; class%4 == 3 {
			fn(latencyBound(class), reads)
		}
	}
}

// Quantile returns the duration within which the given share of the reads ended, accurate to a
// fifth. It returns 0 if there were no reads.
func (l *Latencies) Quantile(share float64) time.Duration {
	n := l.Count()
	if n == 0 {
		return 0
	}
	rank := uint64(share * float64(n))
	seen := uint64(0)
	for class, some := range l.classes {
		if seen += some; seen > rank || seen == n {
			return latencyBound(class)
		}
	}
	return 0
}
