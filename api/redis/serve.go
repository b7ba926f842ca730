package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"github.com/countd/countd/api/listen"
	"github.com/countd/countd/internal/lograte"
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
		cfg: cfg, limited: new(lograte.Limiter).Logger(cfg.Logger), started: time.Now(), commands: newCommands(),
		large: budget{max: int64(cfg.LargeBytesMax)}, helpers: budget{max: helpersMax}, stopped: make(chan struct{}),
	}
	s.Attach(cfg.Backend)
	s.batches.New = func() any { return &batch{} }
	if s.metrics, err = newMetrics(cfg.Registry, s.commands); err != nil {
		return nil, err
	}
	s.listener = listen.New(listen.Config{
		Listener: cfg.Listener, Port: "redis", ConnsMax: cfg.ConnsMax, DescriptorsMax: cfg.DescriptorsMax,
		Refusal: []byte("-ERR max number of clients reached\r\n"), Conns: s.metrics.conns, Refused: s.metrics.connsRefused, Logger: cfg.Logger,
	})
	return s, nil
}

// Attach replaces the backend for the calls that follow. The server may be serving.
func (s *Server) Attach(b Backend) {
	b = gated{b}
	s.attached.Store(&node{b, unread.New(b), timeline.New(b)})
}

// Serve serves until Shutdown is called, and then returns nil.
func (s *Server) Serve() error {
	for {
		raw, err := s.listener.Accept()
		if err != nil {
			return nil // Shutdown has closed it
		}
		s.start.Lock()
		if s.stopping() {
			_ = raw.Close()
		} else {
			s.running.Go(func() { s.serve(newConn(s, raw)) }) // the client or Shutdown ends the connection; Shutdown waits
		}
		s.start.Unlock()
	}
}

// serve runs one connection to its end. A panic ends only that connection.
func (s *Server) serve(c *conn) {
	defer func() {
		if cause := recover(); cause != nil {
			s.metrics.panics.Inc()
			s.limited.Error("a Redis command panicked", "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
		}
		_ = c.net.Close()
		c.release()
	}()
	c.serve()
}

// Shutdown stops accepting connections, and waits until the commands that were read are answered.
// When ctx ends, it closes the remaining connections. A connection that waits for a write ends once
// the write is answered, at its deadline at the latest.
func (s *Server) Shutdown(ctx context.Context) error {
	s.start.Lock()
	if !s.stopping() {
		close(s.stopped)
	}
	s.start.Unlock()
	closeErr := s.listener.Close()
	s.listener.Wake()
	done := make(chan struct{})
	go func() { s.running.Wait(); close(done) }() // ends with the connections
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
	for _, list := range [][]spec{stringCommands(), hashCommands(), setCommands(), keyCommands(), connectionCommands(), serverCommands(), countdCommands(), userCommands(), boardCommands(), feedCommands(), timelineCommands(), pollCommands()} {
		for _, of := range list {
			t[of.name] = &command{spec: of}
		}
	}
	return t
}
