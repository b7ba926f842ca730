package shard

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// confirmTimeout bounds one round of asking. Peers that are there answer within
// a few round trips, or else once a write to disk that holds up their raft is
// done.
const confirmTimeout = time.Second

// confirmation says that every write of a group that was acknowledged before
// asked is in its log at index or before. asked is on this process's monotonic
// clock. It stays true for ever.
type confirmation struct {
	asked time.Time
	index uint64
}

// freshness is what a replica has learned of its place behind its leader. Rounds
// of asking follow each other; whoever comes while one is under way takes part
// in the next, because that one asked too early for it.
type freshness struct {
	ask  func(context.Context) (index uint64, err error) // one round
	last atomic.Pointer[confirmation]

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

// since returns the newest confirmation if it was not asked before the time.
func (f *freshness) since(notBefore time.Time) *confirmation {
	if c := f.last.Load(); c != nil && !c.asked.Before(notBefore) {
		return c
	}
	return nil
}

// confirm waits for a confirmation that was asked after this call.
func (f *freshness) confirm(ctx context.Context) (index uint64, err error) {
	r := f.join()
	if r == nil {
		return 0, ErrDraining
	}
	select {
	case <-r.done:
		return r.index, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// renew starts a round unless one is about to begin. Nobody waits for it.
func (f *freshness) renew() { f.join() }

// join returns the round that begins next, nil after close.
func (f *freshness) join() *round {
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

// run asks for as long as somebody waits. join starts it, close waits for it.
func (f *freshness) run() {
	for {
		f.mu.Lock()
		r := f.mu.next
		f.mu.next, f.mu.running = nil, r != nil
		f.mu.Unlock()
		if r == nil {
			return
		}
		asked := time.Now()
		ctx, cancel := context.WithDeadline(context.Background(), asked.Add(confirmTimeout))
		r.index, r.err = f.ask(ctx)
		cancel()
		if r.err == nil {
			f.last.Store(&confirmation{asked, r.index})
		}
		close(r.done)
	}
}

// close begins no further round and waits for the one under way.
func (f *freshness) close() {
	f.mu.Lock()
	f.mu.closed = true
	f.mu.Unlock()
	f.wg.Wait()
}
