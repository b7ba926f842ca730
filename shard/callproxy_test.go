package shard

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

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
