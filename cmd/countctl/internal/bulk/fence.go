package bulk

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/countd/countd/client"
)

const (
	// runNumbers is more than the number of writes that a run can send.
	runNumbers = 1 << 36
	// Each run adds runNumbers times a random factor from 1 to stepsMax to the Base of the previous
	// run. The factor is random so that two runs from copies of one progress file use different
	// numbers.
	stepsMax = 1 << 12
)

// errPassed is returned for a write of a run after a later run of the same import has begun.
var errPassed = errors.New("another run of this import has begun meanwhile")

// Fence is the state that the runs of an import share. Each run derives the numbers of its writes
// from it, so that a late write of an earlier run cannot overwrite the values of a later run. The
// caller saves the Fence in the progress file before the first write of a run.
//
// Invariant: each number of a run is at least client.Window above every number of the earlier
// runs. A shard that has applied one write of a run therefore refuses all later arrivals from
// earlier runs.
type Fence struct {
	Producer string `json:"producer"`
	Base     uint64 `json:"base"` // lower bound of the latest run's numbers
}

// newFence returns the fence of a first run.
func newFence() Fence { return Fence{Producer: client.NewProducer()} }

// Next returns the fence of the next run. If f is the zero Fence or has no numbers left, it returns
// the fence of a first run.
func (f Fence) Next() Fence {
	step := runNumbers * (1 + rand.Uint64N(stepsMax))
	if f.Producer == "" || f.Base > math.MaxUint64-step-runNumbers {
		return newFence()
	}
	return Fence{f.Producer, f.Base + step}
}

// fencedWriter sends the writes of one run. Its methods may be called concurrently.
type fencedWriter struct {
	producer string
	retry    client.Retry

	mu struct {
		sync.Mutex
		next   uint64          // number of the next write
		lowest uint64          // lowest number in open, or next if open is empty
		open   map[uint64]bool // numbers of writes without a final answer
		freed  chan struct{}   // closed and replaced when lowest rises
	}
}

// newFencedWriter returns a writer for the run that has the fence f. It repeats each write as retry
// defines.
func newFencedWriter(f Fence, retry client.Retry) *fencedWriter {
	w := &fencedWriter{producer: f.Producer, retry: retry}
	w.mu.next, w.mu.lowest = f.Base+1, f.Base+1
	if f.Base > 0 {
		w.mu.next += client.Window
		w.mu.lowest = w.mu.next
	}
	w.mu.open, w.mu.freed = map[uint64]bool{}, make(chan struct{})
	return w
}

// Write sends a write under a new number, and repeats it until the answer is final. Once ctx is
// done, it sends no other request, but still waits for the answer to a request in flight.
func (w *fencedWriter) Write(ctx context.Context, send func(context.Context, client.WriteOptions) (client.WriteResult, error)) (client.WriteResult, error) {
	seq, err := w.take(ctx)
	if err != nil {
		return client.WriteResult{}, err
	}
	defer w.settle(seq)
	o := client.WriteOptions{Quiet: true, Producer: w.producer, Seq: seq, Once: true}
	var result client.WriteResult
	err = w.retry.Do(ctx, func() (err error) {
		result, err = send(context.WithoutCancel(ctx), o)
		return err
	})
	if refused := new(client.Error); errors.As(err, &refused) && refused.Code == "idempotency_expired" {
		return result, fmt.Errorf("%w: %w", errPassed, err)
	}
	return result, err
}

// take returns the next number and marks it as open. It waits while that number is client.Window or
// more above the lowest open number. Without this wait, a shard could refuse the lowest open
// number: it refuses a number once it has applied one that is client.Window higher.
func (w *fencedWriter) take(ctx context.Context) (uint64, error) {
	for {
		seq, freed := w.tryTake()
		if freed == nil {
			return seq, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (w *fencedWriter) tryTake() (seq uint64, freed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.next >= w.mu.lowest+client.Window {
		return 0, w.mu.freed
	}
	seq = w.mu.next
	w.mu.next++
	w.mu.open[seq] = true
	return seq, nil
}

// settle removes a number from the open numbers. The caller sends nothing more under it.
func (w *fencedWriter) settle(seq uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.mu.open, seq)
	for w.mu.lowest < w.mu.next && !w.mu.open[w.mu.lowest] {
		w.mu.lowest++
	}
	close(w.mu.freed)
	w.mu.freed = make(chan struct{})
}
