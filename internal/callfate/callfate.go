// Package callfate is many callers of one method, for tests of calls between nodes. It owns
// the callers, and compares what they were told with what the handlers have seen. It never
// decides what an error means: its user names the two errors that matter. Invariant: once
// End has returned, no caller is left.
package callfate

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Fates is many callers of one method of node "b", and what they were told.
type Fates struct {
	Answered, NotSent, Lost atomic.Uint64

	notSent, lost error

	next    atomic.Uint64
	told    sync.Map // request → error or nil
	stop    chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex
	handled map[uint64]int // times
}

// callers is how many call at once.
const callers = 16

// Call is rpc.Calls.Call, or the same by another way.
type Call = func(ctx context.Context, node, method string, request []byte) ([]byte, error)

// New returns fates that tell a call that was not sent, and one that was lost, by these
// errors.
func New(notSent, lost error) *Fates {
	return &Fates{notSent: notSent, lost: lost, stop: make(chan struct{}), handled: make(map[uint64]int)}
}

// End ends the callers and waits for them.
func (f *Fates) End() {
	close(f.stop)
	f.running.Wait()
}

// Handlers answers the calls, after a moment.
func (f *Fates) Handlers() map[string]func(context.Context, []byte) ([]byte, error) {
	return map[string]func(context.Context, []byte) ([]byte, error){"count": func(_ context.Context, request []byte) ([]byte, error) {
		f.mu.Lock()
		f.handled[binary.BigEndian.Uint64(request)]++
		f.mu.Unlock()
		time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
		return request[:8], nil
	}}
}

// Start starts the callers.
func (f *Fates) Start(t *testing.T, call Call) {
	for range callers {
		f.running.Go(func() {
			for {
				select {
				case <-f.stop:
					return
				default:
					f.callOne(t, call)
				}
			}
		})
	}
}

func (f *Fates) callOne(t *testing.T, call Call) {
	id := f.next.Add(1)
	request := append(binary.BigEndian.AppendUint64(nil, id), make([]byte, rand.IntN(3000))...)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := call(ctx, "b", "count", request)
	f.told.Store(id, err)
	switch {
	case err == nil:
		f.Answered.Add(1)
	case errors.Is(err, f.notSent):
		f.NotSent.Add(1)
		time.Sleep(time.Millisecond) // a peer that is down is not asked as fast as can be
	case errors.Is(err, f.lost):
		f.Lost.Add(1)
	default:
		t.Errorf("call %d: %v", id, err)
	}
}

// GoOn waits until all callers have been answered again.
func (f *Fates) GoOn(t *testing.T) {
	t.Helper()
	before := f.Answered.Load()
	for deadline := time.Now().Add(time.Minute); f.Answered.Load() <= before+callers; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("calls are not answered")
		}
	}
}

// MustBeTrue compares what they were told with what the
// handlers, which must have ended, have seen.
func (f *Fates) MustBeTrue(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told.Range(func(key, value any) bool {
		err, _ := value.(error)
		switch n := f.handled[key.(uint64)]; {
		case n > 1:
			t.Errorf("call %d was handled %d times", key, n)
		case n == 0 && err == nil:
			t.Errorf("call %d was answered and not handled", key)
		case n > 0 && errors.Is(err, f.notSent):
			t.Errorf("call %d was handled: %v", key, err)
		}
		return true
	})
	t.Logf("%d answered, %d not sent, %d lost", f.Answered.Load(), f.NotSent.Load(), f.Lost.Load())
}
