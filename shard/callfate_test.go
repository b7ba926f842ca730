package shard

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

// callFates is many callers of one method of node "b", and what they were told.
type callFates struct {
	answered, notSent, lost atomic.Uint64

	next    atomic.Uint64
	told    sync.Map // request → error or nil
	stop    chan struct{}
	callers sync.WaitGroup

	mu      sync.Mutex
	handled map[uint64]int // times
}

const fateCallers = 16

// fateCall is calls.call, or the same by another way.
type fateCall func(ctx context.Context, node, method string, request []byte) ([]byte, error)

func newCallFates() *callFates {
	return &callFates{stop: make(chan struct{}), handled: make(map[uint64]int)}
}

// handlers answers the calls, after a moment.
func (f *callFates) handlers() map[string]callHandler {
	return map[string]callHandler{"count": func(_ context.Context, request []byte) ([]byte, error) {
		f.mu.Lock()
		f.handled[binary.BigEndian.Uint64(request)]++
		f.mu.Unlock()
		time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
		return request[:8], nil
	}}
}

// start starts the callers.
func (f *callFates) start(t *testing.T, call fateCall) {
	for range fateCallers {
		f.callers.Go(func() {
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

func (f *callFates) callOne(t *testing.T, call fateCall) {
	id := f.next.Add(1)
	request := append(binary.BigEndian.AppendUint64(nil, id), make([]byte, rand.IntN(3000))...)
	_, err := call(within10s(t), "b", "count", request)
	f.told.Store(id, err)
	switch {
	case err == nil:
		f.answered.Add(1)
	case errors.Is(err, errNotSent):
		f.notSent.Add(1)
		time.Sleep(time.Millisecond) // a peer that is down is not asked as fast as can be
	case errors.Is(err, errCallLost):
		f.lost.Add(1)
	default:
		t.Errorf("call %d: %v", id, err)
	}
}

// goOn waits until all callers have been answered again.
func (f *callFates) goOn(t *testing.T) {
	t.Helper()
	before := f.answered.Load()
	eventually(t, "calls are answered", func() bool { return f.answered.Load() > before+fateCallers })
}

// mustBeTrue ends the callers and compares what they were told with what the
// handlers, which must have ended, have seen.
func (f *callFates) mustBeTrue(t *testing.T) {
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
		case n > 0 && errors.Is(err, errNotSent):
			t.Errorf("call %d was handled: %v", key, err)
		}
		return true
	})
	t.Logf("%d answered, %d not sent, %d lost", f.answered.Load(), f.notSent.Load(), f.lost.Load())
}

// While the line is cut again and again: 1. no request is handled twice; 2. one
// that was answered was handled; 3. one of which it is said that it was not sent
// never was; 4. calls go through again once the line holds.
func TestCallsTellTheirFate(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	f := newCallFates()
	b := nodes.node(t, "b", f.handlers())
	proxy := newTestProxy(t, b.cfg.Mux.Addr().String())
	nodes.put("b", proxy.addr())
	f.start(t, a.call)
	for i := range 40 {
		f.goOn(t)
		unsent := f.notSent.Load()
		proxy.refuse.Store(i%8 == 0)
		proxy.cut()
		if proxy.refuse.Load() {
			eventually(t, "calls are not sent", func() bool { return f.notSent.Load() > unsent })
			proxy.refuse.Store(false)
		}
	}
	f.goOn(t)
	close(f.stop)
	f.callers.Wait()
	b.close() // and with it what may still be handled
	f.mustBeTrue(t)
}

// While a node is closed and started elsewhere again and again, the same holds,
// and 5. no call is lost: it is answered before the node is gone or not sent.
func TestCallsOfANodeThatRestarts(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	f := newCallFates()
	b := nodes.node(t, "b", f.handlers())
	f.start(t, a.call)
	for range 8 {
		f.goOn(t)
		b.close()
		mustDo(t, b.cfg.Mux.Close())
		b = nodes.node(t, "b", f.handlers())
	}
	f.goOn(t)
	close(f.stop)
	f.callers.Wait()
	b.close()
	f.mustBeTrue(t)
	if n := f.lost.Load(); n > 0 {
		t.Errorf("%d calls are lost", n)
	}
}
