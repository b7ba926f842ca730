// Package redis serves the Redis protocol, RESP2 and RESP3, so that Redis clients and
// tools can count. It owns the commands (docs/REDIS.md), the forms of keys, the order of
// a pipeline, and the bounds on what a connection may use. It never stores or routes
// anything; the Backend does.
//
// Invariant: a connection gets the same replies as if its commands were executed one after the
// other, although several commands may share a call of the Backend. If the answer to a command is
// an error other than UNKNOWN, the command changed nothing.
package redis

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/names"
)

// node is a Backend, with unread numbers, timelines and names that read from it.
type node struct {
	Backend
	unread    *inbox.Numbers
	timelines *inbox.Timelines
	names     *names.Names
}

// namesOf returns Names of a built-in keyspace.
func (n *node) namesOf(keyspace string) (string, error) {
	if ks := n.Keyspace(keyspace); ks != nil {
		return ks.Names, nil
	}
	return "", errNoKeyspaces
}

// Server serves the protocol on one listener. Create it with New, run Serve once, and end
// it with Shutdown.
type Server struct {
	cfg      Config
	limited  *slog.Logger // for messages that many commands may repeat
	attached atomic.Pointer[node]
	metrics  *resp.Metrics
	commands commandTable
	listener *gate.Listener
	started  time.Time
	shared   resp.Shared // what the connections share
	helpers  gate.Budget // the goroutines that run one connection's calls concurrently

	batches sync.Pool // pool of *batch, for connections that are executing commands
	written sync.Map  // *written by keyspace
	nextID  atomic.Uint64
	cut     atomic.Bool // connections execute no further command
	start   sync.Mutex  // held to register a connection, and to close shared.Stopped
}

func (s *Server) node() *node { return s.attached.Load() }

// Addr returns the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

func (s *Server) writtenTo(keyspace string) *written {
	w, _ := s.written.LoadOrStore(keyspace, &written{})
	return w.(*written)
}
