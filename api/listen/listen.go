// Package listen accepts the connections of clients, for HTTP and for Redis. It owns how many there
// are, and refuses, wakes and closes them. It never reads a request, only the first byte of a
// connection.
//
// Invariant: at most ConnsMax connections are open, and none of them has a file descriptor that is
// reserved for the node.
package listen

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/internal/lograte"
	"github.com/countd/countd/internal/scarce"
)

const (
	// refusalsMax bounds the connections beyond the cap that receive a refusal at the same
	// time. Further ones are closed without an answer.
	refusalsMax = 64
	// lingerTime is how long a connection that is closed after a fault continues to read.
	// Closing with unread bytes resets the connection, and a client that is still sending
	// would lose the answer.
	lingerTime = time.Second
	// acceptRetryMax bounds the wait after a failed accept, which is nearly
	// always a lack of file descriptors.
	acceptRetryMax = time.Second
)

// Config is what a Listener needs.
type Config struct {
	Listener net.Listener
	Port     string // the port's name in the log
	ConnsMax int
	// Descriptors from DescriptorsMax on are reserved for the node itself, so connections with such
	// a descriptor are refused. 0 stands for the bound of scarce.Bounds.
	DescriptorsMax int
	// WriteTimeout, if not 0, bounds how long a client may take to accept bytes that are written
	// before a handler runs: each read deadline sets the write deadline that much later.
	WriteTimeout time.Duration
	Refusal      []byte // a whole answer
	Conns        prometheus.Gauge
	Refused      prometheus.Counter
	Logger       *slog.Logger
}

// Listener accepts at most ConnsMax open connections and answers others with a refusal. It
// survives failed accepts, which would stop a server.
type Listener struct {
	net.Listener
	cfg Config

	done     chan struct{}  // closed by Close
	refusals sync.WaitGroup // of refuse; started by Accept, waited for by CloseConns

	mu struct {
		sync.Mutex
		closed   bool
		conns    map[*Conn]struct{} // open connections that Accept has returned
		refusing int                // running refuse calls, at most refusalsMax
	}
}

// New returns a listener over another. It limits the messages of the logger.
func New(cfg Config) *Listener {
	cfg.Logger = new(lograte.Limiter).Logger(cfg.Logger)
	l := &Listener{Listener: cfg.Listener, cfg: cfg, done: make(chan struct{})}
	l.mu.conns = make(map[*Conn]struct{})
	return l
}

// Accept returns the next connection within the cap. Its only error is
// net.ErrClosed.
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

// admit returns the connection if it is within the cap; otherwise it refuses the connection
// and returns nil.
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

// refuse sends the refusal to a client beyond the cap.
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

// Wake ends the wait for bytes of every open connection.
func (l *Listener) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.mu.conns {
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// CloseConns closes every open connection without an answer to the client. Then it waits until the
// refusals under way have ended, which takes two lingerTimes at most.
func (l *Listener) CloseConns() {
	l.mu.Lock()
	for c := range l.mu.conns {
		_ = plain(c.Conn).Close()
	}
	l.mu.Unlock()
	l.refusals.Wait()
}

// plain returns the connection below TLS, or c if it has none.
func plain(c net.Conn) net.Conn {
	if over, ok := c.(interface{ NetConn() net.Conn }); ok {
		return over.NetConn()
	}
	return c
}

// Conn is a connection within the cap.
type Conn struct {
	net.Conn
	listener *Listener
	close    sync.Once
	closeErr error

	begun   bool // the first bytes were read
	Counted bool // a user's limit of connections counts it

	// Lingers makes Close continue to read for a while. The goroutine that serves the connection
	// sets it and then closes the connection. No other goroutine calls Close once it is set.
	Lingers bool
}

// tlsHandshake is the first byte of every connection over TLS. No request begins with it.
const tlsHandshake = 0x16

// ErrTLS is returned by Read for a client that expects TLS at a port without it. Such a client
// sends nothing more, so the server must answer its first bytes.
var ErrTLS = errors.New("this port has no TLS: connect without it")

// Read reads what the client sends.
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

// SetReadDeadline also moves the write deadline if there is a WriteTimeout. fasthttp sets the
// write deadline only before an answer of a handler, so an error answer or a 100 Continue on a
// kept connection would have the deadline of the previous answer.
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

// Close closes the connection and releases its place in the cap.
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
