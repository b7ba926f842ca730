package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"github.com/countd/countd/internal/lograte"
	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/timeline"
	"github.com/countd/countd/unread"
)

// New validates the config and registers the metrics.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, limited: new(lograte.Limiter).Logger(cfg.Logger), listener: cfg.Listener, started: time.Now(), commands: newCommands(),
		large: budget{max: int64(cfg.LargeBytesMax)}, helpers: budget{max: helpersMax}, stopped: make(chan struct{}),
	}
	s.Attach(cfg.Backend)
	s.batches.New = func() any { return &batch{} }
	s.mu.conns = map[*conn]struct{}{}
	if s.metrics, err = newMetrics(cfg.Registry, s.commands); err != nil {
		return nil, err
	}
	return s, nil
}

// Attach replaces the backend for the calls that follow. The server may be serving.
func (s *Server) Attach(b Backend) {
	b = gated{b}
	s.attached.Store(&node{b, unread.New(b), timeline.New(b)})
}

// acceptRetryMax bounds the wait after a failed accept, which is nearly always a
// lack of file descriptors.
const acceptRetryMax = time.Second

// Serve serves until Shutdown is called, and then returns nil.
func (s *Server) Serve() error {
	wait := time.Duration(0)
	for {
		raw, err := s.listener.Accept()
		switch {
		case err == nil:
			wait = 0
			s.admit(raw)
		case errors.Is(err, net.ErrClosed):
			return nil
		default:
			wait = min(max(2*wait, 5*time.Millisecond), acceptRetryMax)
			s.limited.Error("cannot accept a connection", "err", err, "retry_in", wait)
			select {
			case <-time.After(wait):
			case <-s.stopped:
				return nil
			}
		}
	}
}

// refusalTimeout bounds the write of an error to a client beyond ConnsMax.
const refusalTimeout = 100 * time.Millisecond

// admit starts to serve a connection, or refuses it beyond ConnsMax, or if its file descriptor is
// kept for the node itself.
func (s *Server) admit(raw net.Conn) {
	clients, _ := scarce.Bounds()
	clients = cmp.Or(s.cfg.DescriptorsMax, clients)
	kept := scarce.Descriptor(raw) >= clients
	if kept {
		s.limited.Warn("refused a connection: the other file descriptors are kept for the node's own files", "port", "redis", "descriptors_for_clients", clients)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed || kept || len(s.mu.conns) >= s.cfg.ConnsMax {
		s.metrics.connsRefused.Inc()
		_ = raw.SetWriteDeadline(time.Now().Add(refusalTimeout)) // never reached: a new socket's buffer is empty
		_, _ = raw.Write([]byte("-ERR max number of clients reached\r\n"))
		_ = raw.Close()
		return
	}
	c := newConn(s, raw)
	s.mu.conns[c] = struct{}{}
	s.metrics.conns.Inc()
	s.running.Go(func() { s.serve(c) }) // ended by its client or by Shutdown, which waits
}

// serve runs one connection to its end. A panic ends only that connection.
func (s *Server) serve(c *conn) {
	defer func() {
		if cause := recover(); cause != nil {
			s.metrics.panics.Inc()
			s.limited.Error("a Redis command panicked", "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
		}
		c.close()
		c.release()
		s.mu.Lock()
		delete(s.mu.conns, c)
		s.mu.Unlock()
		s.metrics.conns.Dec()
	}()
	c.serve()
}

// Shutdown stops accepting, and waits until commands that were read are answered. When
// ctx ends, it closes the remaining connections.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	first := !s.mu.closed
	s.mu.closed = true
	if first {
		close(s.stopped)
	}
	for c := range s.mu.conns {
		c.wake()
	}
	s.mu.Unlock()
	closeErr := s.listener.Close()
	done := make(chan struct{})
	go func() { s.running.Wait(); close(done) }() // ends with the connections
	select {
	case <-done:
	case <-ctx.Done():
		s.cutOff()
		<-done
		return fmt.Errorf("cannot finish the commands in flight: %w", ctx.Err())
	}
	if closeErr != nil && !errors.Is(closeErr, net.ErrClosed) {
		return fmt.Errorf("cannot close the Redis listener: %w", closeErr)
	}
	return nil
}

// cutOff closes every connection. A connection that waits for a write ends when that is
// answered, which is by its deadline.
func (s *Server) cutOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.mu.conns {
		if over, ok := c.net.(interface{ NetConn() net.Conn }); ok {
			_ = over.NetConn().Close() // crypto/tls would wait up to 5 s for a client that does not read
		}
		c.close()
	}
}

func newCommands() commandTable {
	t := commandTable{}
	for _, list := range [][]spec{stringCommands(), hashCommands(), setCommands(), keyCommands(), connectionCommands(), serverCommands(), countdCommands(), userCommands(), boardCommands(), feedCommands(), timelineCommands(), pollCommands()} {
		for _, of := range list {
			t[of.name] = &command{spec: of}
		}
	}
	return t
}
