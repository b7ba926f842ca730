// Package gate bounds what clients take from a node, over HTTP and over Redis: connections, memory,
// goroutines, and writes in flight. It owns the open connections, and refuses, wakes and closes
// them. Of a request of HTTP it reads headers and decodes the path, but never the body.
//
// Invariant: at most ConnsMax connections are open, and none of them has a file descriptor that is
// reserved for the node. A Budget never exceeds its maximum, not even for a moment.
package gate

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/internal/scarce"
)

const (
	// refusalsMax bounds the refusals that are being sent to connections above ConnsMax. Further
	// connections are closed without an answer.
	refusalsMax = 64
	// lingerTime is the time for which Close continues to read after a fault. Closing with unread
	// bytes resets the connection, and a client that is still sending would lose the answer.
	lingerTime = time.Second
	// acceptRetryMax bounds the wait after a failed accept. Accepts usually fail for lack of file
	// descriptors.
	acceptRetryMax = time.Second
)

// ListenerConfig configures NewListener.
type ListenerConfig struct {
	Listener net.Listener
	Port     string // the port's name in the log
	ConnsMax int
	// Descriptors of DescriptorsMax or more are reserved for the node itself, so connections
	// with such a descriptor are refused. 0 means the bound of scarce.Bounds.
	DescriptorsMax int
	// WriteTimeout, if not 0, bounds the time in which a client must accept bytes that are written
	// before a handler runs. The write deadline is the read deadline plus WriteTimeout.
	WriteTimeout time.Duration
	Refusal      []byte // complete answer to a refused client
	Conns        prometheus.Gauge
	Refused      prometheus.Counter
	Logger       *slog.Logger
}

// Listener accepts at most ConnsMax open connections, and answers others with Refusal. It retries
// failed accepts, because a failed accept would otherwise stop the server.
type Listener struct {
	net.Listener
	cfg ListenerConfig

	done     chan struct{}  // closed by Close
	refusals sync.WaitGroup // running calls of refuse; started by Accept, waited for by CloseConns

	mu struct {
		sync.Mutex
		closed   bool
		conns    map[*Conn]struct{} // open connections that Accept has returned
		refusing int                // number of running calls of refuse, at most refusalsMax
	}
}

// NewListener returns a Listener over cfg.Listener. It limits the rate of its log messages.
func NewListener(cfg ListenerConfig) *Listener {
	cfg.Logger = new(program.LogLimiter).Logger(cfg.Logger)
	l := &Listener{Listener: cfg.Listener, cfg: cfg, done: make(chan struct{})}
	l.mu.conns = make(map[*Conn]struct{})
	return l
}

// Accept returns the next connection that is not refused. Its only error is net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	wait := time.Duration(0)
	for {
		raw, err := l.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if err != nil {
			wait = min(max(2*wait, 5*time.Millisecond), acceptRetryMax)
			l.cfg.Logger.Error("cannot accept a connection", "err", err, "retry_in", wait)
			select {
			case <-time.After(wait):
				continue
			case <-l.done:
				return nil, net.ErrClosed
			}
		}
		wait = 0
		if c := l.admit(raw); c != nil {
			return c, nil
		}
	}
}

// admit returns the connection. It refuses the connection and returns nil if there are too many, if
// the file descriptor is reserved, or if the listener is closed.
func (l *Listener) admit(raw net.Conn) *Conn {
	clients, _ := scarce.Bounds()
	clients = cmp.Or(l.cfg.DescriptorsMax, clients)
	c, kept := &Conn{Conn: raw, listener: l}, scarce.Descriptor(raw) >= clients
	if kept {
		l.cfg.Logger.Warn("refused a connection: the other file descriptors are kept for the node's own files", "port", l.cfg.Port, "descriptors_for_clients", clients)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mu.closed && !kept && len(l.mu.conns) < l.cfg.ConnsMax {
		l.mu.conns[c] = struct{}{}
		l.cfg.Conns.Inc()
		return c
	}
	l.cfg.Refused.Inc()
	if l.mu.closed || l.mu.refusing == refusalsMax {
		_ = raw.Close()
		return nil
	}
	l.mu.refusing++
	l.refusals.Add(1)
	go l.refuse(raw)
	return nil
}

// refuse sends ListenerConfig.Refusal to a client.
func (l *Listener) refuse(raw net.Conn) {
	defer l.refusals.Done()
	_ = raw.SetWriteDeadline(time.Now().Add(lingerTime))
	if _, err := raw.Write(l.cfg.Refusal); err == nil {
		linger(raw)
	}
	_ = raw.Close()
	l.mu.Lock()
	l.mu.refusing--
	l.mu.Unlock()
}

// Close stops accepting connections. Open ones stay open.
func (l *Listener) Close() error {
	l.mu.Lock()
	if !l.mu.closed {
		l.mu.closed = true
		close(l.done)
	}
	l.mu.Unlock()
	return l.Listener.Close()
}

// Open returns how many connections are open.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.conns)
}

// Wake ends the running reads of all open connections.
func (l *Listener) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.mu.conns {
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// CloseConns closes every open connection without an answer to the client. Then it waits for
// running refusals, for at most twice lingerTime.
func (l *Listener) CloseConns() {
	l.mu.Lock()
	for c := range l.mu.conns {
		_ = plain(c.Conn).Close()
	}
	l.mu.Unlock()
	l.refusals.Wait()
}

// plain returns the connection under a TLS connection, or c itself.
func plain(c net.Conn) net.Conn {
	if over, ok := c.(interface{ NetConn() net.Conn }); ok {
		return over.NetConn()
	}
	return c
}

// Conn is an accepted connection.
type Conn struct {
	net.Conn
	listener *Listener
	close    sync.Once
	closeErr error

	begun   bool // the first bytes were read
	Counted bool // the connection counts against a user's limit of connections

	// Lingers makes Close continue to read for lingerTime. The goroutine that serves the connection
	// sets Lingers before it calls Close. Once Lingers is set, no other goroutine may call Close.
	Lingers bool
}

// tlsHandshake is the first byte of every connection over TLS. No request begins with it.
const tlsHandshake = 0x16

// ErrTLS is returned by Read for a client that expects TLS at a port without TLS. Such a client
// waits for an answer to its first bytes.
var ErrTLS = errors.New("this port has no TLS: connect without it")

// Read implements net.Conn. It returns ErrTLS if the first byte begins a TLS handshake.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.begun || n == 0 {
		return n, err
	}
	c.begun = true
	if b[0] == tlsHandshake {
		c.listener.cfg.Logger.Warn("refused a connection: it speaks TLS, and this port does not", "port", c.listener.cfg.Port, "from", c.RemoteAddr().String())
		return 0, ErrTLS
	}
	return n, err
}

// SetReadDeadline also sets the write deadline if there is a WriteTimeout. The reason is that
// fasthttp sets a write deadline only for a handler's answer. An error answer or a 100 Continue on
// a reused connection would otherwise have the deadline of the previous answer.
func (c *Conn) SetReadDeadline(t time.Time) error {
	write := t
	switch {
	case c.listener.cfg.WriteTimeout == 0:
		return c.Conn.SetReadDeadline(t)
	case !t.IsZero():
		write = t.Add(c.listener.cfg.WriteTimeout)
	}
	if err := c.SetWriteDeadline(write); err != nil {
		return err
	}
	return c.Conn.SetReadDeadline(t)
}

// Close closes the connection, which then no longer counts as open.
func (c *Conn) Close() error {
	c.close.Do(func() {
		if c.Lingers {
			linger(c.Conn)
		}
		c.closeErr = c.Conn.Close()
		c.listener.mu.Lock()
		delete(c.listener.mu.conns, c)
		c.listener.mu.Unlock()
		c.listener.cfg.Conns.Dec()
	})
	return c.closeErr
}

// linger stops sending and drops further input, until the client closes too or lingerTime has
// passed.
func linger(raw net.Conn) {
	half, ok := raw.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || raw.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	var drop [8 << 10]byte
	for {
		if _, err := raw.Read(drop[:]); err != nil {
			return
		}
	}
}
