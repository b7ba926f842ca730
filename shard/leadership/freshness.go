package leadership

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/shard/errs"
)

// ConfirmTimeout bounds one round. A living peer answers within a few round trips, or after a disk
// write that blocks its raft.
const ConfirmTimeout = time.Second

// Confirmation states that every write acknowledged before Asked is in the group's log at or below
// Index. It stays true for ever.
//
// Two clocks measure its age, and the larger age counts. The monotonic clock stops while the
// machine is suspended, and the wall clock may be set back. So the measured age is too small only
// if both happen at once. CLOCK_BOOTTIME would prevent that too, at the cost of a system call in
// each read.
//
// Only reads with a bounded age depend on these clocks. A linearizable read requests a confirmation
// after its arrival, and a write needs a majority.
type Confirmation struct {
	Asked time.Time
	Index uint64

	wall time.Time // wall-clock time of Asked, without the monotonic reading
}

// Freshness tracks when the leader last confirmed an index to this replica. It runs one round of
// questions at a time. A caller that arrives during a round waits for the next round, because the
// questions of the current round were sent earlier.
type Freshness struct {
	Ask  func(context.Context) (index uint64, err error) // runs one round
	last atomic.Pointer[Confirmation]

	mu struct {
		sync.Mutex
		next    *round // next round, not started yet; nil for none
		running bool
		closed  bool
	}
	wg sync.WaitGroup // goroutine: run
}

type round struct {
	done  chan struct{} // closed once the other fields are set
	index uint64
	err   error
}

// Since returns the newest confirmation, or nil if that was requested before the time notBefore.
func (f *Freshness) Since(notBefore time.Time) *Confirmation {
	if c := f.last.Load(); c != nil && !c.Asked.Before(notBefore) && !c.wall.Before(notBefore.Round(0)) {
		return c
	}
	return nil
}

// Confirm waits for a confirmation that is requested after this call began.
func (f *Freshness) Confirm(ctx context.Context) (index uint64, err error) {
	r := f.join()
	if r == nil {
		return 0, errs.ErrDraining
	}
	select {
	case <-r.done:
		return r.index, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Renew starts a round, unless one is about to start, and does not wait for its result.
func (f *Freshness) Renew() { f.join() }

// join returns the next round, or nil after Close.
func (f *Freshness) join() *round {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return nil
	}
	if f.mu.next == nil {
		f.mu.next = &round{done: make(chan struct{})}
	}
	if !f.mu.running {
		f.mu.running = true
		f.wg.Go(f.run)
	}
	return f.mu.next
}

// run runs rounds while callers wait. join starts it; Close waits for it.
func (f *Freshness) run() {
	for {
		f.mu.Lock()
		r := f.mu.next
		f.mu.next, f.mu.running = nil, r != nil
		f.mu.Unlock()
		if r == nil {
			return
		}
		asked := time.Now()
		ctx, cancel := context.WithDeadline(context.Background(), asked.Add(ConfirmTimeout))
		r.index, r.err = f.Ask(ctx)
		cancel()
		if r.err == nil {
			f.last.Store(&Confirmation{asked, r.index, asked.Round(0)})
		}
		close(r.done)
	}
}

// Close prevents further rounds and waits for the running one.
func (f *Freshness) Close() {
	f.mu.Lock()
	f.mu.closed = true
	f.mu.Unlock()
	f.wg.Wait()
}
