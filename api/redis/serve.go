package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/names"
)

// New validates the config and registers the metrics.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, limited: new(program.LogLimiter).Logger(cfg.Logger), started: time.Now(), commands: newCommands(),
		helpers: gate.Budget{Max: gate.HelpersMax}, shared: resp.Shared{Bounds: cfg.Bounds, Memory: gate.Budget{Max: int64(cfg.LargeBytesMax)}, Stopped: make(chan struct{})},
	}
	s.Attach(cfg.Backend)
	s.batches.New = func() any { return &batch{} }
	if s.metrics, err = resp.NewMetrics(cfg.Registry); err != nil {
		return nil, err
	}
	for name, cmd := range s.commands { // look up the metrics once, so that a command needs no lookup
		cmd.calls = s.metrics.Calls.WithLabelValues(name)
	}
	s.shared.Timeouts, s.shared.OutputFull, s.shared.Received, s.shared.Sent = s.metrics.Timeouts, s.metrics.OutputFull, s.metrics.Received, s.metrics.Sent
	s.listener = gate.NewListener(gate.ListenerConfig{
		Listener: cfg.Listener, Port: "redis", ConnsMax: cfg.ConnsMax, DescriptorsMax: cfg.DescriptorsMax,
		Refusal: []byte("-ERR max number of clients reached\r\n"), Conns: s.metrics.Conns, Refused: s.metrics.ConnsRefused, Logger: cfg.Logger,
	})
	return s, nil
}

// Attach replaces the backend for later calls. The server may be serving.
func (s *Server) Attach(b Backend) {
	s.attached.Store(&node{Backend: b, unread: inbox.NewNumbers(b), timelines: inbox.NewTimelines(b, s.cfg.Outboxes), names: names.New(b)})
}

// Serve serves until Shutdown is called, and then returns nil.
func (s *Server) Serve() error {
	for {
		raw, err := s.listener.Accept()
		if err != nil {
			return nil // Shutdown has closed the listener
		}
		s.start.Lock()
		if s.shared.Stopping() {
			_ = raw.Close()
		} else {
			s.shared.Running.Go(func() { s.serve(newConn(s, raw)) }) // the client or Shutdown ends the connection; Shutdown waits
		}
		s.start.Unlock()
	}
}

// serve runs one connection to its end. A panic ends only that connection.
func (s *Server) serve(c *conn) {
	defer func() {
		if cause := recover(); cause != nil {
			s.metrics.Panics.Inc()
			s.limited.Error("a Redis command panicked", "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
		}
		_ = c.net.Close()
		c.release()
	}()
	c.serve()
}

// Shutdown stops accepting connections, and waits until the commands that were read are answered.
// When ctx ends, it closes the remaining connections. A connection that waits for a write ends when
// the write is answered, or at the write's deadline.
func (s *Server) Shutdown(ctx context.Context) error {
	s.start.Lock()
	if !s.shared.Stopping() {
		close(s.shared.Stopped)
	}
	s.start.Unlock()
	closeErr := s.listener.Close()
	s.listener.Wake()
	done := make(chan struct{})
	go func() { s.shared.Running.Wait(); close(done) }() // ends when the last connection ends
	select {
	case <-done:
	case <-ctx.Done():
		s.cut.Store(true)
		s.listener.CloseConns()
		<-done
		return fmt.Errorf("cannot finish the commands in flight: %w", ctx.Err())
	}
	if closeErr != nil && !errors.Is(closeErr, net.ErrClosed) {
		return fmt.Errorf("cannot close the Redis listener: %w", closeErr)
	}
	return nil
}

func newCommands() commandTable {
	t := commandTable{}
	for _, list := range [][]spec{counterCommands(), keyCommands(), memberCommands(), rankingCommands(), unreadCommands(), timelineCommands(), connectionCommands()} {
		for _, s := range list {
			t[s.name] = &command{spec: s}
		}
	}
	return t
}
