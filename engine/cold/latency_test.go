package cold

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Each latency is between the bounds of its class, and the quantile is within a fifth of the true one.
func TestLatencies(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var l latencies
	var all []time.Duration
	var sum time.Duration
	for range 10_000 {
		took := time.Duration(r.Int64N(1 << (11 + r.IntN(20))))
		class := latencyClass(took)
		if micros := max(took.Truncate(time.Microsecond), time.Microsecond); micros >= latencyBound(class) || class > 0 && micros < latencyBound(class-1).Truncate(time.Microsecond) {
			t.Fatalf("%v is in class %d, up to %v", took, class, latencyBound(class))
		}
		l.add(took)
		sum += took
		all = append(all, took)
	}
	slices.Sort(all)
	told := l.load()
	if n := told.Count(); n != uint64(len(all)) || told.Sum != sum {
		t.Errorf("%d reads of %d took %v of %v", n, len(all), told.Sum, sum)
	}
	bounds := 0
	told.Doublings(func(bound time.Duration, reads uint64) {
		bounds++
		less, _ := slices.BinarySearchFunc(all, bound, func(took, bound time.Duration) int {
			return cmp.Compare(max(took.Truncate(time.Microsecond), time.Microsecond), bound)
		})
		if bound != 2*time.Microsecond<<(bounds-1) || reads != uint64(less) {
			t.Errorf("%d reads took less than %v, want %d", reads, bound, less)
		}
	})
	if bounds != 26 {
		t.Errorf("%d doublings", bounds)
	}
	for _, share := range []float64{0.5, 0.9, 0.99, 1} {
		want := max(all[min(len(all)-1, int(share*float64(len(all))))], time.Microsecond)
		if got := told.Quantile(share); got < want || float64(got) > 1.26*float64(want)+1000 {
			t.Errorf("%v of all took up to %v, told %v", share, want, got)
		}
	}
	var none Latencies
	if none.Quantile(0.5) != 0 {
		t.Error("no read took some time")
	}
	if got := latencyClass(time.Hour); got != latencyClasses-1 {
		t.Errorf("an hour is in class %d", got)
	}
}
