package stream

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/shard/rpc"
)

// callNodes is where the nodes of a test are.
type callNodes struct {
	mu    sync.Mutex
	addrs map[string]string
}

func (n *callNodes) lookup(node string) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	addr, known := n.addrs[node]
	return addr, known
}

// put says where a node is, "" for nowhere.
func (n *callNodes) put(node, addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.addrs == nil {
		n.addrs = make(map[string]string)
	}
	if n.addrs[node] = addr; addr == "" {
		delete(n.addrs, node)
	}
}

// nodeWith starts a node that answers the given methods and echo. Its calls close other
// connections to a node by cut.
func (n *callNodes) nodeWith(t testing.TB, name string, handlers map[string]rpc.Handler, cut func(string)) (*rpc.Calls, *rpc.Mux) {
	t.Helper()
	m, err := rpc.ListenMux(rpc.MuxConfig{Addr: "127.0.0.1:0", ClusterID: [16]byte{1, 2, 3}})
	mustDo(t, err)
	c, err := rpc.NewCalls(rpc.CallsConfig{Mux: m, Lookup: n.lookup, Cut: cut})
	mustDo(t, err)
	c.Handle("echo", echo)
	for method, h := range handlers {
		c.Handle(method, h)
	}
	c.Serve()
	n.put(name, m.Addr().String())
	t.Cleanup(func() {
		c.Close()
		m.Close()
	})
	return c, m
}

func echo(_ context.Context, request []byte) ([]byte, error) { return request, nil }

func within10s(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// mustLeaveNothing checks that nothing of calls, batchers or gRPC runs any more once
// what the test opens after it is closed.
func mustLeaveNothing(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		eventually(t, "no goroutine is left", func() bool {
			b := make([]byte, 4<<20)
			stacks := string(b[:runtime.Stack(b, true)])
			return !strings.Contains(stacks, "google.golang.org/grpc") && !strings.Contains(stacks, "rpc.(*call") &&
				!strings.Contains(stacks, "rpc.(*Call") && !strings.Contains(stacks, "rpc.(*Batcher")
		})
	})
}
