package certs

import (
	"container/list"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/internal/program"
)

const (
	// handshakeTimeout bounds a handshake. It is long enough for many round trips.
	handshakeTimeout = 5 * time.Second
	// handshakesMax bounds the connections in their handshake. Further connections wait in the
	// kernel's queue until a handshake ends, or until the oldest handshake has taken
	// handshakeGrace. The listener then closes the oldest, so clients that never finish delay other
	// clients by at most handshakeGrace.
	handshakesMax  = 512
	handshakeGrace = time.Second // on an idle machine, a handshake takes milliseconds
	// lingerTime is how long the listener continues to read from a refused connection. If it closed
	// the connection with unread bytes, the kernel would reset the connection, and the client would
	// not see the reason.
	lingerTime = time.Second
)

// Protocol describes the protocol of a port. The listener needs it to answer clients without TLS.
type Protocol struct {
	Name string // for logs and metrics
	// Plain returns the answer to a client without TLS, whose first bytes are begin; nil for no
	// answer. If Plain is nil, such a client gets no answer.
	Plain func(begin [5]byte) []byte
}

// The protocols of clients.
var (
	HTTP  = Protocol{Name: "http", Plain: plainHTTP}
	Redis = Protocol{Name: "redis", Plain: plainRedis}
)

func plainHTTP(begin [5]byte) []byte {
	switch string(begin[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH":
		return []byte("HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n" +
			"Client sent an HTTP request to an HTTPS server: use https://\n")
	}
	return nil
}

func plainRedis([5]byte) []byte {
	return []byte("-ERR this port speaks TLS alone: connect with TLS, such as by redis-cli --tls\r\n")
}

// Listener returns connections whose handshake has succeeded. One goroutine accepts connections.
// Each handshake has a goroutine. If the handshake fails, the goroutine ends within the sum of
// handshakeTimeout and lingerTime; otherwise it passes the connection to Accept. Close ends all
// goroutines and waits for them.
type Listener struct {
	net.Listener
	protocol Protocol
	greet    func(net.Conn) (net.Conn, error) // runs the handshake and returns the resulting connection
	logger   *slog.Logger
	failures atomic.Uint64
	bound    int // bound on the connections in their handshake: handshakesMax, or less in tests

	ready chan accepted
	left  chan struct{} // receives a token when a handshake ends; has a capacity of one token
	done  chan struct{} // closed by Close
	wg    sync.WaitGroup

	mu struct {
		sync.Mutex
		closed  bool
		waiting *list.List // the connections in their handshake, oldest first
	}
}

// shaking is a connection in its handshake.
type shaking struct {
	net.Conn
	began time.Time
}

// accepted is what Accept returns.
type accepted struct {
	conn net.Conn
	err  error
}

// Listen returns a listener that runs TLS on the connections of plain. The new listener closes
// plain.
func (s *Source) Listen(plain net.Listener, protocol Protocol) *Listener {
	config := s.Server()
	return listen(plain, protocol, s.cfg.Logger, func(raw net.Conn) (net.Conn, error) {
		conn := tls.Server(raw, config)
		return conn, conn.Handshake()
	})
}

func listen(plain net.Listener, protocol Protocol, logger *slog.Logger, greet func(net.Conn) (net.Conn, error)) *Listener {
	l := &Listener{
		Listener: plain, protocol: protocol, greet: greet, logger: new(program.LogLimiter).Logger(logger), bound: handshakesMax,
		ready: make(chan accepted), left: make(chan struct{}, 1), done: make(chan struct{}),
	}
	l.mu.waiting = list.New()
	l.wg.Go(l.serve)
	return l
}

// Accept returns the next connection whose handshake has succeeded.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.ready:
		return a.conn, a.err
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close stops accepting, and ends the handshakes in progress. Connections that Accept has returned
// stay open.
func (l *Listener) Close() error {
	l.mu.Lock()
	if !l.mu.closed {
		l.mu.closed = true
		close(l.done)
	}
	for e := l.mu.waiting.Front(); e != nil; e = e.Next() {
		_ = e.Value.(shaking).Close()
	}
	l.mu.Unlock()
	err := l.Listener.Close()
	l.wg.Wait()
	return err
}

// serve accepts until Close.
func (l *Listener) serve() {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			if !l.hand(accepted{err: err}) || errors.Is(err, net.ErrClosed) {
				return
			}
			continue // no pause is needed: hand waits for the next Accept, and servers pause after an error
		}
		if place := l.enter(raw); place != nil {
			l.wg.Go(func() { l.handshake(raw, place) })
		} else {
			_ = raw.Close()
		}
	}
}

// hand waits until a call of Accept receives the result. It returns false if the listener is closed
// first.
func (l *Listener) hand(a accepted) bool {
	select {
	case l.ready <- a:
		return true
	case <-l.done:
		return false
	}
}

// enter adds a connection to l.mu.waiting. If l.bound connections are in their handshake, it first
// waits, as handshakesMax describes. It returns nil after Close.
func (l *Listener) enter(raw net.Conn) *list.Element {
	for {
		place, wait := l.tryEnter(raw)
		if wait == 0 {
			return place
		}
		select {
		case <-l.left:
		case <-time.After(wait):
		case <-l.done:
		}
	}
}

// tryEnter is like enter, but does not wait. If enter would wait, it returns the longest time that
// the caller should wait before it tries again.
func (l *Listener) tryEnter(raw net.Conn) (place *list.Element, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return nil, 0
	}
	if l.mu.waiting.Len() >= l.bound {
		oldest := l.mu.waiting.Front()
		if wait = handshakeGrace - time.Since(oldest.Value.(shaking).began); wait > 0 {
			return nil, wait
		}
		_ = oldest.Value.(shaking).Close()
		l.mu.waiting.Remove(oldest)
	}
	return l.mu.waiting.PushBack(shaking{raw, time.Now()}), 0
}

func (l *Listener) leave(place *list.Element) {
	l.mu.Lock()
	l.mu.waiting.Remove(place) // does nothing if tryEnter has already removed the place
	l.mu.Unlock()
	select {
	case l.left <- struct{}{}:
	default:
	}
}

// handshake runs the handshake of one connection, and passes the connection to Accept.
func (l *Listener) handshake(raw net.Conn, place *list.Element) {
	err := raw.SetDeadline(time.Now().Add(handshakeTimeout))
	var conn net.Conn
	if err == nil {
		conn, err = l.greet(raw)
	}
	if err == nil {
		err = raw.SetDeadline(time.Time{})
	}
	if err != nil {
		l.refuse(raw, err)
		l.leave(place)
		_ = raw.Close()
		return
	}
	l.leave(place)
	if !l.hand(accepted{conn: conn}) {
		_ = raw.Close()
	}
}

// refuse logs why a handshake failed, and answers a client that speaks without TLS.
func (l *Listener) refuse(raw net.Conn, err error) {
	l.failures.Add(1)
	select {
	case <-l.done:
		return
	default:
	}
	why, level := cause(err), slog.LevelWarn
	if errors.Is(err, io.EOF) {
		level = slog.LevelDebug // a probe of the port that sent nothing
	}
	l.logger.Log(context.Background(), level, "refused a connection: "+why, // the logger limits how often it logs each cause
		"port", l.protocol.Name, "from", raw.RemoteAddr().String(), "err", err)
	var record tls.RecordHeaderError
	if errors.As(err, &record) && record.Conn != nil && l.protocol.Plain != nil {
		_, _ = raw.Write(l.protocol.Plain(record.RecordHeader)) // ignore the error: the client may have disconnected
	}
	linger(raw)
}

// cause returns why a handshake failed. It returns one of a few fixed texts, whatever the other
// side sent, so that the logger can limit each.
func cause(err error) string {
	var (
		record  tls.RecordHeaderError
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		alert   tls.AlertError
		remote  *net.OpError
		network net.Error
	)
	switch {
	case errors.As(err, &record) && record.Conn != nil:
		return "it does not speak TLS"
	case errors.As(err, &unknown):
		return "no trusted authority signed its certificate"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "its certificate has expired or is not valid yet"
	case errors.As(err, &invalid):
		return "its certificate is not good for this"
	case errors.Is(err, ErrWrongName):
		return "its certificate has a wrong name"
	case errors.As(err, &alert), errors.As(err, &remote) && remote.Op == "remote error":
		return "it did not accept this node's certificate, or no common version"
	case errors.As(err, &network) && network.Timeout():
		return "its handshake took too long"
	case errors.Is(err, net.ErrClosed):
		return "too many handshakes were under way"
	}
	return "its handshake failed"
}

// linger ends the sending side of a connection, and discards received bytes until the other side
// closes the connection or lingerTime is over.
func linger(raw net.Conn) {
	half, ok := raw.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || raw.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, raw)
}
