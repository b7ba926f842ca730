package rpc

import (
	"testing"

	"github.com/countd/countd/internal/must"
)

// callNodes holds the nodes of a test, which call each other.
type callNodes struct{ must.Nodes }

// node starts a node that answers the given methods and echo.
func (n *callNodes) node(t testing.TB, name string, handlers map[string]Handler) *Calls {
	t.Helper()
	m, err := ListenMux(MuxConfig{Addr: "127.0.0.1:0", ClusterID: [16]byte{1, 2, 3}})
	mustDo(t, err)
	c, err := NewCalls(CallsConfig{Mux: m, Lookup: n.Lookup})
	mustDo(t, err)
	c.Handle("echo", must.Echo)
	for method, h := range handlers {
		c.Handle(method, h)
	}
	c.Serve()
	n.Put(name, m.Addr().String())
	t.Cleanup(func() {
		c.Close()
		m.Close()
	})
	return c
}

var testContext, mustLeaveNothing = must.Context, must.LeaveNothing

func mustEcho(t *testing.T, from *Calls, node, text string) {
	t.Helper()
	got, err := from.Call(testContext(t), node, "echo", []byte(text))
	if err != nil || string(got) != text {
		t.Fatalf("echo of %q: %q, %v", text, got, err)
	}
}
