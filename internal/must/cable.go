package must

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Cable is a TCP proxy between a node and its peers. A test can cut it like a cable.
type Cable struct {
	listener net.Listener
	to       string
	wg       sync.WaitGroup // all goroutines of the cable

	mu struct {
		sync.Mutex
		conns  map[net.Conn]struct{}
		closed bool
	}
	Refuse atomic.Bool  // if true, new connections are closed at once
	still  sync.RWMutex // while it is write-locked, no bytes pass
}

// NewCable starts a cable in front of the address to. The end of the test closes the cable.
func NewCable(t *testing.T, to string) *Cable {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Do(t, err)
	c := &Cable{listener: listener, to: to}
	c.mu.conns = make(map[net.Conn]struct{})
	c.wg.Go(c.serve)
	t.Cleanup(c.Close)
	return c
}

// Addr returns the address of the cable, which peers dial.
func (c *Cable) Addr() string { return c.listener.Addr().String() }

// Close closes every connection and waits for the cable's goroutines.
func (c *Cable) Close() {
	c.listener.Close()
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.Cut()
	c.wg.Wait()
}

// Cut closes every connection.
func (c *Cable) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.mu.conns {
		conn.Close()
		delete(c.mu.conns, conn)
	}
}

// Hold keeps the connections open, but stops all traffic until release is called.
func (c *Cable) Hold() (release func()) {
	c.still.Lock()
	return c.still.Unlock
}

func (c *Cable) serve() {
	for {
		in, err := c.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", c.to)
		if err != nil {
			in.Close()
			continue
		}
		c.mu.Lock()
		if c.mu.closed || c.Refuse.Load() {
			in.Close()
			out.Close()
		}
		c.mu.conns[in], c.mu.conns[out] = struct{}{}, struct{}{}
		c.mu.Unlock()
		c.wg.Go(func() { c.copy(in, out) })
		c.wg.Go(func() { c.copy(out, in) })
	}
}

// copy copies bytes until one connection is closed, and then closes the other one.
func (c *Cable) copy(to io.WriteCloser, from io.ReadCloser) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		c.still.RLock()
		if n > 0 {
			if _, werr := to.Write(b[:n]); werr != nil {
				err = werr
			}
		}
		c.still.RUnlock()
		if err != nil {
			return
		}
	}
}
