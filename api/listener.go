package api

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/countd/countd/internal/lograte"
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

// listener returns at most connsMax open connections and answers the others with a refusal.
// It survives failed accepts, which would stop fasthttp.
type listener struct {
	net.Listener
	connsMax     int
	writeTimeout time.Duration
	refusal      []byte // a whole HTTP answer
	metrics      *metrics
	logger       *slog.Logger

	done     chan struct{}  // closed by Close
	refusals sync.WaitGroup // of refuse; started by Accept, waited for by Server.Shutdown

	mu struct {
		sync.Mutex
		closed   bool
		conns    map[*conn]struct{} // open and handed on
		refusing int                // running refuse calls, at most refusalsMax
	}
}

func newListener(ln net.Listener, cfg *Config, m *metrics) *listener {
	f := &fault{status: 503, code: codeOverloaded, message: "too many connections"}
	body := append(f.appendJSON(nil), '\n')
	l := &listener{
		Listener:     ln,
		connsMax:     cfg.ConnsMax,
		writeTimeout: cfg.WriteTimeout,
		refusal: fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nServer: %s\r\nContent-Type: %s\r\n"+
			"Retry-After: %d\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
			serverName, contentTypeJSON, retryAfter, len(body), body),
		metrics: m,
		logger:  new(lograte.Limiter).Logger(cfg.Logger),
		done:    make(chan struct{}),
	}
	l.mu.conns = make(map[*conn]struct{})
	return l
}

// Accept returns the next connection within the cap. Its only error is
// net.ErrClosed.
func (l *listener) Accept() (net.Conn, error) {
	wait := time.Duration(0)
	for {
		raw, err := l.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if err != nil {
			wait = min(max(2*wait, 5*time.Millisecond), acceptRetryMax)
			l.logger.Error("cannot accept a connection", "err", err, "retry_in", wait)
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
func (l *listener) admit(raw net.Conn) *conn {
	c := &conn{Conn: raw, listener: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mu.closed && len(l.mu.conns) < l.connsMax {
		l.mu.conns[c] = struct{}{}
		l.metrics.conns.Inc()
		return c
	}
	l.metrics.connsRefused.Inc()
	if l.mu.closed || l.mu.refusing == refusalsMax {
		_ = raw.Close()
		return nil
	}
	l.mu.refusing++
	l.refusals.Add(1)
	go l.refuse(raw)
	return nil
}

// refuse answers a client that there are too many connections.
func (l *listener) refuse(raw net.Conn) {
	defer l.refusals.Done()
	_ = raw.SetWriteDeadline(time.Now().Add(lingerTime))
	if _, err := raw.Write(l.refusal); err == nil {
		linger(raw)
	}
	_ = raw.Close()
	l.mu.Lock()
	l.mu.refusing--
	l.mu.Unlock()
}

// Close stops accepting connections. Open ones stay open.
func (l *listener) Close() error {
	l.mu.Lock()
	if !l.mu.closed {
		l.mu.closed = true
		close(l.done)
	}
	l.mu.Unlock()
	return l.Listener.Close()
}

// closeConns cuts off every connection.
func (l *listener) closeConns() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.mu.conns {
		_ = plain(c.Conn).Close()
	}
}

// plain returns the connection under TLS, or c if it has none. crypto/tls closes a connection
// only once it has told the client, for which it waits up to 5 s.
func plain(c net.Conn) net.Conn {
	if over, ok := c.(interface{ NetConn() net.Conn }); ok {
		return over.NetConn()
	}
	return c
}

// conn is a connection within the cap.
type conn struct {
	net.Conn
	listener *listener
	close    sync.Once
	closeErr error

	begun   bool // the first bytes were read
	counted bool // a user's limit of connections counts it

	// lingers makes Close continue to read for a while. It is set by closeAfterAnswer, on the
	// goroutine that serves the connection and then closes it. No other goroutine closes a connection that lingers: fasthttp closes only
	// connections between two requests from elsewhere.
	lingers bool
}

// tlsHandshake is the first byte of a connection over TLS, and of no request.
const tlsHandshake = 0x16

// errTLS is returned by Read for a client that expects TLS of a port without it. Such a
// client sends nothing more, so that its first bytes must be answered.
var errTLS = errors.New("this port has no TLS: use http://")

// Read reads what the client sends.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.begun || n == 0 {
		return n, err
	}
	c.begun = true
	if b[0] == tlsHandshake {
		c.listener.logger.Warn("refused a connection: it speaks TLS, and this port does not", "port", "http", "from", c.RemoteAddr().String())
		return 0, errTLS
	}
	return n, err
}

// SetReadDeadline also moves the write deadline. fasthttp sets that only before an answer of
// a handler, so an error answer or a 100 Continue on a kept connection would have the
// deadline of the previous answer.
func (c *conn) SetReadDeadline(t time.Time) error {
	write := t
	if !t.IsZero() {
		write = t.Add(c.listener.writeTimeout)
	}
	if err := c.SetWriteDeadline(write); err != nil {
		return err
	}
	return c.Conn.SetReadDeadline(t)
}

// Close closes the connection and releases its place in the cap.
func (c *conn) Close() error {
	c.close.Do(func() {
		if c.lingers {
			linger(c.Conn)
		}
		c.closeErr = c.Conn.Close()
		c.listener.mu.Lock()
		delete(c.listener.mu.conns, c)
		c.listener.mu.Unlock()
		c.listener.metrics.conns.Dec()
	})
	return c.closeErr
}

// linger ends sending and drops further input, until the client closes too or lingerTime has
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
