// Package redis serves the Redis protocol, RESP2 and RESP3, so that Redis clients and
// tools can count. It owns the commands (docs/REDIS.md), the forms of keys, the order of
// a pipeline, and the bounds on what a connection may use. It never stores or routes
// anything; the Backend does.
//
// Invariant: the replies of a connection are those of its commands executed one after the
// other, however many of them were one call of the Backend. A command that was answered
// with an error other than UNKNOWN changed nothing.
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

	"github.com/countd/countd/auth"
	"github.com/countd/countd/internal/lograte"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/timeline"
	"github.com/countd/countd/unread"
)

// Backend is what the server needs of a node; *shard.Node implements it. Its methods are
// safe for concurrent use and keep none of their arguments. Nothing changes a result
// afterwards.
type Backend interface {
	// Node reads and writes the rows of a keyspace. See shard.ReadError and
	// shard.PartialError.
	unread.Node
	timeline.Node
	// Members reads the sets of members.
	Members() shard.MemberReads
	Scan(ks *shard.Keyspace, after uint64, hasAfter bool, limit, width int, opt *shard.ReadOptions) (*shard.ScanResult, error)
	// Keyspaces returns all keyspaces sorted by name.
	Keyspaces() []*shard.Keyspace
	// CatchUp waits until Keyspace knows every change that any node acknowledged before
	// the call.
	CatchUp(ctx context.Context) error
	Status() shard.Status
}

// node is a Backend with the unread numbers and timelines over it.
type node struct {
	Backend
	unread    *unread.Numbers
	timelines *timeline.Timelines
}

// Server serves the protocol on one listener. Create it with New, run Serve once, and end
// it with Shutdown.
type Server struct {
	cfg      Config
	limited  *slog.Logger // for messages that many commands may repeat
	attached atomic.Pointer[node]
	metrics  *metrics
	commands commandTable
	needs    map[*command]*auth.Need // of the matrix
	listener net.Listener
	started  time.Time
	large    budget // the connections' memory beyond the free part of each
	helpers  budget // the goroutines that run one connection's calls concurrently

	batches sync.Pool // of *batch, for connections that are executing commands
	written sync.Map  // *written by keyspace
	nextID  atomic.Uint64
	stopped chan struct{}  // closed by Shutdown
	running sync.WaitGroup // the serve of each connection, and its sender

	mu struct {
		sync.Mutex
		closed bool
		conns  map[*conn]struct{}
	}
}

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
	s.needs = needsOf(s.commands)
	s.batches.New = func() any { return &batch{} }
	s.mu.conns = map[*conn]struct{}{}
	if s.metrics, err = newMetrics(cfg.Registry, s.commands); err != nil {
		return nil, err
	}
	return s, nil
}

// Attach replaces the backend for the calls that follow. The server may be serving.
func (s *Server) Attach(b Backend) { s.attached.Store(&node{b, unread.New(b), timeline.New(b)}) }

func (s *Server) node() *node { return s.attached.Load() }

// Addr returns the address that the server listens on.
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

// refusalTimeout bounds the write of an error to a client beyond ConnsMax.
const refusalTimeout = 100 * time.Millisecond

// admit starts to serve a connection, or refuses it beyond ConnsMax.
func (s *Server) admit(raw net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed || len(s.mu.conns) >= s.cfg.ConnsMax {
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

// conns returns the number of open connections.
func (s *Server) conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.conns)
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

// stopping reports whether Shutdown was called.
func (s *Server) stopping() bool {
	select {
	case <-s.stopped:
		return true
	default:
		return false
	}
}

// budget bounds a resource that all connections share.
type budget struct {
	max  int64
	used atomic.Int64
}

// acquire reserves n and reports whether there was room. A refusal reserves nothing, not
// even briefly.
func (b *budget) acquire(n int) bool {
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

// acquireUpTo reserves n, or if that is less, one of the given number of shares of what
// is free, so that others get some too. It returns how much it reserved.
func (b *budget) acquireUpTo(n, shares int) int {
	for {
		used := b.used.Load()
		taken := max(min(int64(n), (b.max-used)/int64(shares)), 0)
		if b.used.CompareAndSwap(used, used+taken) {
			return int(taken)
		}
	}
}

func (b *budget) release(n int) { b.used.Add(-int64(n)) }
