// Package redis serves the Redis protocol, RESP2 and RESP3, so that Redis clients and
// tools can count. It owns the commands (docs/REDIS.md), the forms of keys, the order of
// a pipeline, and the bounds on what a connection may use. It never stores or routes
// anything; the Backend does.
//
// Invariant: the replies of a connection are the same as if its commands were executed one after
// the other, however many of them share a call of the Backend. If the answer to a command is an
// error other than UNKNOWN, the command changed nothing.
package redis

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/api/listen"
	"github.com/countd/countd/timeline"
	"github.com/countd/countd/unread"
)

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
	limited  *slog.Logger // limits messages that many commands may repeat
	attached atomic.Pointer[node]
	metrics  *metrics
	commands commandTable
	listener *listen.Listener
	started  time.Time
	large    budget // the connections' memory beyond the free part of each
	helpers  budget // the goroutines that run one connection's calls concurrently

	batches sync.Pool // of *batch, for connections that are executing commands
	written sync.Map  // *written by keyspace
	nextID  atomic.Uint64
	stopped chan struct{}  // closed by Shutdown
	cut     atomic.Bool    // connections execute no further command
	start   sync.Mutex     // held while a connection begins and while stopped is closed
	running sync.WaitGroup // serve of each connection, and its sender
}

func (s *Server) node() *node { return s.attached.Load() }

// Addr returns the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

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

// acquire reserves n, or returns false if less is free. In that case it reserves nothing, not even
// for a moment.
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

// acquireUpTo reserves the smaller of n and one of the given number of shares of what is free. So
// others get some too. It returns how much it reserved.
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
