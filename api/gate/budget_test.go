package gate

import (
	"sync"
	"sync/atomic"
	"testing"
)

// A refused reservation reserves nothing, not even for a moment.
func TestBudget(t *testing.T) {
	b := Budget{Max: 10}
	var done atomic.Bool
	var all sync.WaitGroup
	all.Go(func() { // ends once the loop below sets done
		for !done.Load() {
			if b.Acquire(11) {
				t.Error("more is taken than there is")
			}
		}
	})
	for range 100_000 {
		if !b.Acquire(10) || !b.Acquire(0) {
			t.Error("what there is is refused")
			break
		}
		b.Release(10)
	}
	done.Store(true)
	all.Wait()
}
