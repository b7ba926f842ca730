package must

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

// Fates runs many concurrent callers of one method of node "b", and records the result of each
// call.
type Fates struct {
	Answered, NotSent, Lost atomic.Uint64

	notSent, lost error

	next    atomic.Uint64
	told    sync.Map // by request: the error of its call, or nil
	stop    chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex
	handled map[uint64]int // by request: how many times it was handled
}

const callers = 16

// Call is rpc.Calls.Call or a function with the same effect.
type Call = func(ctx context.Context, node, method string, request []byte) ([]byte, error)

// NewFates returns a Fates whose callers have not started. A call that was not sent fails with
// the error notSent, and a call whose answer was lost fails with the error lost.
func NewFates(notSent, lost error) *Fates {
	return &Fates{notSent: notSent, lost: lost, stop: make(chan struct{}), handled: make(map[uint64]int)}
}

// End ends the callers and waits for them.
func (f *Fates) End() {
	close(f.stop)
	f.running.Wait()
}

// Handlers returns the handler of the method, which answers each call after a moment.
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
	ctx, cancel := context.WithTimeout(context.Background(), BecomeMax)
	defer cancel()
	_, err := call(ctx, "b", "count", request)
	f.told.Store(id, err)
	switch {
	case err == nil:
		f.Answered.Add(1)
	case errors.Is(err, f.notSent):
		f.NotSent.Add(1)
		time.Sleep(time.Millisecond) // pause, because a call to a dead peer fails at once
	case errors.Is(err, f.lost):
		f.Lost.Add(1)
	default:
		t.Errorf("call %d: %v", id, err)
	}
}

// GoOn waits until more further calls are answered than there are callers, so that at least one of
// these calls began after GoOn.
func (f *Fates) GoOn(t *testing.T) {
	t.Helper()
	before := f.Answered.Load()
	Become(t, "calls are answered", func() bool { return f.Answered.Load() > before+callers })
}

// OutliveCuts starts the callers and repeatedly cuts line. It checks that
//
//  1. no request is handled twice;
//  2. an answered request was handled;
//  3. a request reported as not sent was never handled;
//  4. calls succeed again after each cut.
//
// closeNode must end the requests that may still be in progress.
func (f *Fates) OutliveCuts(t *testing.T, call Call, line *Cable, closeNode func()) {
	t.Helper()
	f.Start(t, call)
	for i := range 40 {
		f.GoOn(t)
		unsent := f.NotSent.Load()
		line.Refuse.Store(i%8 == 0)
		line.Cut()
		if line.Refuse.Load() {
			Become(t, "calls are not sent", func() bool { return f.NotSent.Load() > unsent })
			line.Refuse.Store(false)
		}
	}
	f.GoOn(t)
	f.End()
	closeNode()
	f.MustBeTrue(t)
}

// OutliveRestarts starts the callers, and repeatedly calls restart, which restarts the node at
// another address. It checks the four points of OutliveCuts. It also checks that no call is lost: a
// node answers a call before it closes, or the call is not sent.
func (f *Fates) OutliveRestarts(t *testing.T, call Call, restart, closeNode func()) {
	t.Helper()
	f.Start(t, call)
	for range 8 {
		f.GoOn(t)
		restart()
	}
	f.GoOn(t)
	f.End()
	closeNode()
	f.MustBeTrue(t)
	if n := f.Lost.Load(); n > 0 {
		t.Errorf("%d calls are lost", n)
	}
}

// MustBeTrue checks the results of the calls against the requests that the handlers have served.
// The handlers must have ended.
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
