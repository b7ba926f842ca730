package must

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Nodes holds the addresses of the nodes of a test.
type Nodes struct {
	mu    sync.Mutex
	addrs map[string]string
}

// Lookup returns the address of a node.
func (n *Nodes) Lookup(node string) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	addr, known := n.addrs[node]
	return addr, known
}

// Put sets the address of a node; "" removes it.
func (n *Nodes) Put(node, addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.addrs == nil {
		n.addrs = make(map[string]string)
	}
	if n.addrs[node] = addr; addr == "" {
		delete(n.addrs, node)
	}
}

// Echo answers a call with its request.
func Echo(_ context.Context, request []byte) ([]byte, error) { return request, nil }

// Context returns a context that ends after BecomeMax, or with the test.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), BecomeMax)
	t.Cleanup(cancel)
	return ctx
}

// LeaveNothing checks at the end of the test that no goroutine of a call, a batcher or gRPC is
// left. Its check runs after the cleanups that the test registers later.
func LeaveNothing(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		Become(t, "no goroutine is left", func() bool {
			b := make([]byte, 4<<20)
			stacks := string(b[:runtime.Stack(b, true)])
			for _, ours := range []string{"google.golang.org/grpc", "rpc.(*call", "rpc.(*Call", "rpc.(*Batcher"} {
				if strings.Contains(stacks, ours) {
					return false
				}
			}
			return true
		})
	})
}
