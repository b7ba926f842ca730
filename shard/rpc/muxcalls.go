package rpc

import (
	"errors"
	"fmt"
	"net"
	"sync"
)

// callListener is the part of a Mux on which other nodes call this one. It owns a connection until
// Accept has returned it.
type callListener struct {
	addr    net.Addr
	accepts chan net.Conn // from the Mux; at most acceptQueueMax
	done    chan struct{} // closed by Close

	mu struct {
		sync.Mutex
		closed bool
	}
}

var _ net.Listener = (*callListener)(nil)

func newCallListener() *callListener {
	return &callListener{accepts: make(chan net.Conn, acceptQueueMax), done: make(chan struct{})}
}

// Offer queues a connection for Accept, or fails without closing it.
func (l *callListener) Offer(conn net.Conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return errors.New("calls are not taken any more")
	}
	select {
	case l.accepts <- conn:
		return nil
	default:
		return fmt.Errorf("the server of calls has not taken the %d before it", acceptQueueMax)
	}
}

// Accept implements net.Listener.
func (l *callListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepts:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener: it returns the address that peers dial.
func (l *callListener) Addr() net.Addr { return l.addr }

// Close refuses further connections and closes those that were not accepted.
func (l *callListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return nil
	}
	l.mu.closed = true
	close(l.done)
	for {
		select {
		case conn := <-l.accepts:
			conn.Close()
		default:
			return nil
		}
	}
}
