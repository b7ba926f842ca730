// Package cable is a TCP proxy that tests put between two nodes, and cut like a cable. It owns its
// goroutines and connections, and never interprets the bytes. Invariant: once Close has returned,
// no goroutine and no connection is left.
package cable

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/countd/countd/internal/must"
)

// Proxy stands between a node and its peers.
type Proxy struct {
	listener net.Listener
	to       string
	wg       sync.WaitGroup // everything that it has started

	mu struct {
		sync.Mutex
		conns  map[net.Conn]struct{}
		closed bool
	}
	Refuse atomic.Bool  // new connections are closed at once
	still  sync.RWMutex // while it is write-locked, no bytes pass
}

// New starts a proxy in front of an address. It ends with the test at the latest.
func New(t *testing.T, to string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	p := &Proxy{listener: listener, to: to}
	p.mu.conns = make(map[net.Conn]struct{})
	p.wg.Go(p.serve)
	t.Cleanup(p.Close)
	return p
}

// Addr returns the address to dial.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close closes every connection and waits for the proxy's goroutines.
func (p *Proxy) Close() {
	p.listener.Close()
	p.mu.Lock()
	p.mu.closed = true
	p.mu.Unlock()
	p.Cut()
	p.wg.Wait()
}

// Cut closes every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.mu.conns {
		conn.Close()
		delete(p.mu.conns, conn)
	}
}

// Hold keeps the connections open and lets nothing through until the function
// that it returns is called.
func (p *Proxy) Hold() (release func()) {
	p.still.Lock()
	return p.still.Unlock
}

func (p *Proxy) serve() {
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
		if p.mu.closed || p.Refuse.Load() {
			in.Close()
			out.Close()
		}
		p.mu.conns[in], p.mu.conns[out] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.wg.Go(func() { p.copy(in, out) })
		p.wg.Go(func() { p.copy(out, in) })
	}
}

// copy moves bytes until either side is closed, and then closes the other side.
func (p *Proxy) copy(to io.WriteCloser, from io.ReadCloser) {
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
