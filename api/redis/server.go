// Package redis is the node's second front: it speaks RESP2 and RESP3, the
// protocol of Redis, so that its clients and tools can count. It owns the
// commands (docs/REDIS.md), the forms of keys, the order of a pipeline, and the
// bounds of what a connection may take. It stores nothing and routes nothing;
// that is the Backend's.
//
// Its invariant: the replies of a connection are those of its commands executed
// one after the other, however many of them went to the Backend in one call, and
// a command that was answered with an error other than UNKNOWN changed nothing.
package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/internal/lograte"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

// Backend is the node that the front serves; *shard.Node is one. Every method may be called
// at any time from any goroutine and keeps none of its arguments after it returned. Nothing
// changes a result afterwards.
type Backend interface {
	// Node reads and writes the rows of a keyspace. See shard.ReadError and
	// shard.PartialError.
	unread.Node
	Scan(ks *shard.Keyspace, after uint64, hasAfter bool, limit, width int, opt *shard.ReadOptions) (*shard.ScanResult, error)
	// Keyspaces returns all keyspaces sorted by name.
	Keyspaces() []*shard.Keyspace
	// CatchUp waits until Keyspace knows every change that any node acknowledged before
	// the call.
	CatchUp(ctx context.Context) error
	Status() shard.Status
}

// node is a Backend with the unread numbers that it holds.
type node struct {
	Backend
	unread *unread.Numbers
}

// Server serves the protocol on one listener. Make it with New, run Serve once
// and end it with Shutdown.
type Server struct {
	cfg      Config
	limited  *slog.Logger // for what each of many commands meets
	attached atomic.Pointer[node]
	metrics  *metrics
	commands commandTable
	listener net.Listener
	started  time.Time
	large    budget // of the connections' memory beyond what each may always have
	lanes    budget // of goroutines that help connections with what goes side by side

	batches sync.Pool // of *batch, for connections that execute something
	written sync.Map  // *written by keyspace
	nextID  atomic.Uint64
	stopped chan struct{}  // closed by Shutdown
	running sync.WaitGroup // serve of each connection, and their senders

	mu struct {
		sync.Mutex
		closed bool
		conns  map[*conn]struct{}
	}
}

// New checks the config and registers the metrics.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, limited: new(lograte.Limiter).Logger(cfg.Logger), listener: cfg.Listener, started: time.Now(), commands: newCommands(),
		large: budget{max: int64(cfg.LargeBytesMax)}, lanes: budget{max: lanesMax}, stopped: make(chan struct{}),
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
func (s *Server) Attach(b Backend) { s.attached.Store(&node{b, unread.New(b)}) }

func (s *Server) node() *node { return s.attached.Load() }

// Addr is the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

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

// refusalTimeout bounds the telling of a client that there are too many.
const refusalTimeout = 100 * time.Millisecond

// admit starts to serve a connection, or refuses it beyond the cap.
func (s *Server) admit(raw net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed || len(s.mu.conns) >= s.cfg.ConnsMax {
		s.metrics.connsRefused.Inc()
		_ = raw.SetWriteDeadline(time.Now().Add(refusalTimeout)) // a new socket's buffer is empty
		_, _ = raw.Write([]byte("-ERR max number of clients reached\r\n"))
		_ = raw.Close()
		return
	}
	c := newConn(s, raw)
	s.mu.conns[c] = struct{}{}
	s.metrics.conns.Inc()
	s.running.Go(func() { s.serve(c) }) // ended by its client or by Shutdown, which waits
}

// serve runs one connection to its end. A panic ends that connection alone.
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

// conns returns how many connections are open.
func (s *Server) conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.conns)
}

// Shutdown stops the accepting, lets what was read be answered, and waits for
// that until ctx ends, when it cuts off the connections that are left.
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

// cutOff closes every connection. One that waits for a write leaves when that is
// answered, which is by its deadline.
func (s *Server) cutOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.mu.conns {
		c.close()
	}
}

// stopping reports whether Shutdown was called.
func (s *Server) stopping() bool {
	select {
	case <-s.stopped:
		return true
	default:
		return false
	}
}

// budget bounds what all connections together hold of something.
type budget struct {
	max  int64
	used atomic.Int64
}

// take reports whether there is room for n more, which is then taken. What is
// refused takes no room from others, not for a moment.
func (b *budget) take(n int) bool {
	for {
		used := b.used.Load()
		if used+int64(n) > b.max {
			return false
		}
		if b.used.CompareAndSwap(used, used+int64(n)) {
			return true
		}
	}
}

// takeUpTo takes part of what there is, so that others come by theirs: n, or a share
// of it at the most. It returns how much.
func (b *budget) takeUpTo(n, shares int) int {
	for {
		used := b.used.Load()
		taken := max(min(int64(n), (b.max-used)/int64(shares)), 0)
		if b.used.CompareAndSwap(used, used+taken) {
			return int(taken)
		}
	}
}

func (b *budget) give(n int) { b.used.Add(-int64(n)) }
