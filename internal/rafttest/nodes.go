package rafttest

import (
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/rpc"
)

// Nodes owns the nodes of a test until the test ends.
type Nodes struct{ must.Nodes }

// Node starts a node that answers the given methods and "echo". cut may be nil; see
// rpc.CallsConfig.Cut.
func (n *Nodes) Node(t testing.TB, name string, handlers map[string]rpc.Handler, cut func(string)) (*rpc.Calls, *rpc.Mux) {
	t.Helper()
	m := Mux(t, rpc.MuxConfig{})
	c, err := rpc.NewCalls(rpc.CallsConfig{Mux: m, Lookup: n.Lookup, Cut: cut})
	must.Do(t, err)
	c.Handle("echo", must.Echo)
	for method, h := range handlers {
		c.Handle(method, h)
	}
	c.Serve()
	n.Put(name, m.Addr().String())
	t.Cleanup(c.Close)
	return c, m
}

// Mux returns a Mux on a free loopback port. It sets the address and the cluster id of cfg.
func Mux(t testing.TB, cfg rpc.MuxConfig) *rpc.Mux {
	t.Helper()
	cfg.Addr, cfg.ClusterID = "127.0.0.1:0", [16]byte{1, 2, 3}
	m, err := rpc.ListenMux(cfg)
	must.Do(t, err)
	t.Cleanup(func() { must.Do(t, m.Close()) })
	return m
}
