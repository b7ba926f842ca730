package prover

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/shard/errs"
)

// ConfirmTimeout bounds one round of asking. Living peers answer within a few round
// trips, or after the disk write that blocks their raft.
const ConfirmTimeout = time.Second

// Confirmation says that every write of a group that was acknowledged before
// Asked is in its log at Index or before. It stays true for ever.
//
// Its age is the longer one by two clocks: the monotonic one stands still while the machine is
// suspended, and the wall clock may be set back. A confirmation passes for younger than it is only
// if the wall clock is set back by the time of a suspension. CLOCK_BOOTTIME would exclude that
// too, for a system call in each read.
//
// Nothing else that is acknowledged depends on a clock which may stand still: linearizable reads
// ask after they came, and a leader's writes need a majority, whatever its lease is.
type Confirmation struct {
	Asked time.Time
	Index uint64

	wall time.Time // Asked without its monotonic reading
}

// Freshness is what a replica knows of its distance to its leader. Rounds of asking follow
// each other. A caller that comes during a round waits for the next one, because the current
// round asked before the caller came.
type Freshness struct {
	Ask  func(context.Context) (index uint64, err error) // one round
	last atomic.Pointer[Confirmation]

	mu struct {
		sync.Mutex
		next    *round // has not asked yet; nil for none
		running bool
		closed  bool
	}
	wg sync.WaitGroup // run
}

type round struct {
	done  chan struct{} // closed when the rest is set
	index uint64
	err   error
}

// Since returns the newest confirmation if it was not asked before the time.
func (f *Freshness) Since(notBefore time.Time) *Confirmation {
	if c := f.last.Load(); c != nil && !c.Asked.Before(notBefore) && !c.wall.Before(notBefore.Round(0)) {
		return c
	}
	return nil
}

// Confirm waits for a confirmation that was asked after this call.
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

// Renew starts a round unless one is about to begin. Nobody waits for it.
func (f *Freshness) Renew() { f.join() }

// join returns the round that begins next, nil after Close.
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

// run asks for as long as somebody waits. join starts it, Close waits for it.
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

// Close begins no further round and waits for the one under way.
func (f *Freshness) Close() {
	f.mu.Lock()
	f.mu.closed = true
	f.mu.Unlock()
	f.wg.Wait()
}
