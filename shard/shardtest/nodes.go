package shardtest

import (
	"testing"

	"github.com/countd/countd/internal/calltest"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/rpc"
)

// Nodes is the nodes of a test. It owns them until the test ends, and never calls one itself.
type Nodes struct{ calltest.Nodes }

// Node starts a node that answers the given methods and echo. cut may be nil; see
// rpc.CallsConfig.
func (n *Nodes) Node(t testing.TB, name string, handlers map[string]rpc.Handler, cut func(string)) (*rpc.Calls, *rpc.Mux) {
	t.Helper()
	m, err := rpc.ListenMux(rpc.MuxConfig{Addr: "127.0.0.1:0", ClusterID: [16]byte{1, 2, 3}})
	must.Do(t, err)
	c, err := rpc.NewCalls(rpc.CallsConfig{Mux: m, Lookup: n.Lookup, Cut: cut})
	must.Do(t, err)
	c.Handle("echo", calltest.Echo)
	for method, h := range handlers {
		c.Handle(method, h)
	}
	c.Serve()
	n.Put(name, m.Addr().String())
	t.Cleanup(func() {
		c.Close()
		m.Close()
	})
	return c, m
}
