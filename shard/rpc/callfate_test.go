package rpc

import (
	"testing"

	"github.com/countd/countd/internal/must"
)

func TestCallsTellTheirFate(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	f := must.NewFates(ErrNotSent, ErrCallLost)
	b := nodes.node(t, "b", f.Handlers())
	proxy := must.NewCable(t, b.cfg.Mux.Addr().String())
	nodes.Put("b", proxy.Addr())
	f.OutliveCuts(t, a.Call, proxy, b.Close)
}

func TestCallsOfANodeThatRestarts(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	a := nodes.node(t, "a", nil)
	f := must.NewFates(ErrNotSent, ErrCallLost)
	b := nodes.node(t, "b", f.Handlers())
	f.OutliveRestarts(t, a.Call, func() {
		b.Close()
		mustDo(t, b.cfg.Mux.Close())
		b = nodes.node(t, "b", f.Handlers())
	}, func() { b.Close() })
}
