package rpc

import (
	"testing"

	"github.com/countd/countd/internal/cable"
	"github.com/countd/countd/internal/callfate"
)

// While the line is cut again and again: 1. no request is handled twice; 2. one
// that was answered was handled; 3. one of which it is said that it was not sent
// never was; 4. calls go through again once the line holds.
func TestCallsTellTheirFate(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	f := callfate.New(ErrNotSent, ErrCallLost)
	b := nodes.node(t, "b", f.Handlers())
	proxy := cable.New(t, b.cfg.Mux.Addr().String())
	nodes.put("b", proxy.Addr())
	f.Start(t, a.Call)
	for i := range 40 {
		f.GoOn(t)
		unsent := f.NotSent.Load()
		proxy.Refuse.Store(i%8 == 0)
		proxy.Cut()
		if proxy.Refuse.Load() {
			eventually(t, "calls are not sent", func() bool { return f.NotSent.Load() > unsent })
			proxy.Refuse.Store(false)
		}
	}
	f.GoOn(t)
	f.End()
	b.Close() // and with it what may still be handled
	f.MustBeTrue(t)
}

// While a node is closed and started elsewhere again and again, the same holds,
// and 5. no call is lost: it is answered before the node is gone or not sent.
func TestCallsOfANodeThatRestarts(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	f := callfate.New(ErrNotSent, ErrCallLost)
	b := nodes.node(t, "b", f.Handlers())
	f.Start(t, a.Call)
	for range 8 {
		f.GoOn(t)
		b.Close()
		mustDo(t, b.cfg.Mux.Close())
		b = nodes.node(t, "b", f.Handlers())
	}
	f.GoOn(t)
	f.End()
	b.Close()
	f.MustBeTrue(t)
	if n := f.Lost.Load(); n > 0 {
		t.Errorf("%d calls are lost", n)
	}
}
