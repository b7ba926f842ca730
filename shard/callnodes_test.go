package shard

import (
	"context"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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

// node starts a node that answers the given methods and echo.
func (n *callNodes) node(t testing.TB, name string, handlers map[string]callHandler) *calls {
	t.Helper()
	m, err := ListenMux(MuxConfig{Addr: "127.0.0.1:0", ClusterID: [16]byte{1, 2, 3}})
	mustDo(t, err)
	c, err := newCalls(callsConfig{Mux: m, Lookup: n.lookup})
	mustDo(t, err)
	c.handle("echo", echo)
	for method, h := range handlers {
		c.handle(method, h)
	}
	c.serve()
	n.put(name, m.Addr().String())
	t.Cleanup(func() {
		c.close()
		m.Close()
	})
	return c
}

func echo(_ context.Context, request []byte) ([]byte, error) { return request, nil }

func within10s(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func mustEcho(t *testing.T, from *calls, node, text string) {
	t.Helper()
	got, err := from.call(within10s(t), node, "echo", []byte(text))
	if err != nil || string(got) != text {
		t.Fatalf("echo of %q: %q, %v", text, got, err)
	}
}

// mustLeaveNothing checks that nothing of calls, lanes or gRPC runs any more once
// what the test opens after it is closed.
func mustLeaveNothing(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		eventually(t, "no goroutine is left", func() bool {
			b := make([]byte, 4<<20)
			stacks := string(b[:runtime.Stack(b, true)])
			return !strings.Contains(stacks, "google.golang.org/grpc") && !strings.Contains(stacks, "shard.(*call") &&
				!strings.Contains(stacks, "shard.(*lane")
		})
	})
}

// testProxy stands between a node and its peers, and can be cut like a cable.
type testProxy struct {
	listener net.Listener
	to       string
	wg       sync.WaitGroup // everything that it has started

	mu struct {
		sync.Mutex
		conns  map[net.Conn]struct{}
		closed bool
	}
	refuse atomic.Bool  // new connections are closed at once
	still  sync.RWMutex // while it is write-locked bytes go neither way
}

func newTestProxy(t *testing.T, to string) *testProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	mustDo(t, err)
	p := &testProxy{listener: listener, to: to}
	p.mu.conns = make(map[net.Conn]struct{})
	p.wg.Go(p.serve)
	t.Cleanup(p.close)
	return p
}

func (p *testProxy) addr() string { return p.listener.Addr().String() }

func (p *testProxy) close() {
	p.listener.Close()
	p.mu.Lock()
	p.mu.closed = true
	p.mu.Unlock()
	p.cut()
	p.wg.Wait()
}

// cut closes every connection.
func (p *testProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.mu.conns {
		conn.Close()
		delete(p.mu.conns, conn)
	}
}

// hold keeps the connections open and lets nothing through until the function
// that it returns is called.
func (p *testProxy) hold() (release func()) {
	p.still.Lock()
	return p.still.Unlock
}

func (p *testProxy) serve() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			in.Close()
			continue
		}
		p.mu.Lock()
		if p.mu.closed || p.refuse.Load() {
			in.Close()
			out.Close()
		}
		p.mu.conns[in], p.mu.conns[out] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.wg.Go(func() { p.copy(in, out) })
		p.wg.Go(func() { p.copy(out, in) })
	}
}

// copy moves bytes until either side is closed, and closes the other then.
func (p *testProxy) copy(to io.WriteCloser, from io.ReadCloser) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		p.still.RLock()
		if n > 0 {
			if _, werr := to.Write(b[:n]); werr != nil {
				err = werr
			}
		}
		p.still.RUnlock()
		if err != nil {
			return
		}
	}
}
