// Package nodetest owns a countd node that serves its HTTP API inside the process of a test. It
// also owns a front that refuses or delays requests and cuts connections for the test.
//
// It never changes an answer of the node. A test of several nodes or of the program itself
// runs the real programs (package proctest).
//
// Invariant: a refused request never reaches the node, unless its Fault lets the node apply the
// request anyway.
package nodetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/api"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/source"
	"github.com/countd/countd/sources"
)

// Server is a node behind a front, whose URL it embeds. Set Fail before the first request;
// SetFail changes it between requests.
type Server struct {
	*httptest.Server
	// Fail, if not nil, may refuse a request. body is the request's body.
	Fail func(r *http.Request, body []byte) *Fault

	t      testing.TB
	change []func(*shard.Config)
	late   sync.WaitGroup // waits for requests that the node applies after their answer

	mu struct {
		sync.Mutex
		fail func(r *http.Request, body []byte) *Fault // replaces Fail if it is not nil
		node *shard.Node
		pass *httputil.ReverseProxy // forwards requests to the node
	}
}

// New starts a node with four shards of posts and of users, and one of each other keyspace,
// in a new cluster. change may change its configuration. The node ends with the test.
func New(t testing.TB, change ...func(*shard.Config)) *Server {
	t.Helper()
	s := &Server{t: t, change: change}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	s.Renew()
	t.Cleanup(func() {
		s.Close()
		s.late.Wait()
	})
	return s
}

// Renew replaces the current node by a new node of a new cluster.
func (s *Server) Renew() {
	s.t.Helper()
	registry, logger := prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	cfg := shard.Config{
		Dir: s.dir(), NodeKey: "n1.00000000", NodeName: "n1", Bootstrap: true, ClusterID: fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()), Version: "test",
		ClusterAddr: "127.0.0.1:0", HTTPAddr: strings.TrimPrefix(s.URL, "http://"), GossipAddr: "127.0.0.1:1",
		Shards: map[string]int{kinds.KeyspacePosts: 4, kinds.KeyspaceUsers: 4, kinds.KeyspaceUnread: 1, kinds.KeyspaceFeed: 1},
		Logger: logger, Metrics: registry,
		Fatal: func(err error) { s.t.Errorf("fatal: %v", err) },
	}
	for _, change := range s.change {
		change(&cfg)
	}
	node, err := shard.Open(cfg)
	must.Do(s.t, err)
	s.t.Cleanup(func() { s.within(node.Close) })
	s.within(node.WaitReady)

	opened := func() (*shard.Node, error) { return node, nil }
	alive := func(string) bool { return true }
	server, err := api.New(api.Config{
		Backend: node, Addr: "127.0.0.1:0", Version: "test", Registry: registry, Logger: logger,
		Admin: admin.New(admin.Config{Node: opened, Alive: alive, Logger: logger}),
		Sources: sources.New(sources.Config{Node: opened, Self: cfg.NodeKey, Alive: alive, Logger: logger, Open: func(*source.Config, source.Secrets) (source.Broker, error) {
			return nil, errors.New("a node of a test has no brokers")
		}}),
	})
	must.Do(s.t, err)
	go func() { _ = server.Serve() }() // ends with Shutdown
	s.t.Cleanup(func() { s.within(server.Shutdown) })

	pass := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: server.Addr().String()})
	pass.Transport = &http.Transport{MaxIdleConnsPerHost: 256}
	pass.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) } // the client has disconnected
	s.t.Cleanup(pass.Transport.(*http.Transport).CloseIdleConnections)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.node, s.mu.pass = node, pass
}

// dir returns a directory that the end of the test removes. The directory is in memory if the
// system supports that, so that clients do not wait for a disk.
func (s *Server) dir() string {
	dir, err := os.MkdirTemp("/dev/shm", "countd-nodetest-")
	if err != nil {
		return s.t.TempDir()
	}
	s.t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "groups")
}

// within fails the test if a step fails or takes longer than must.BecomeMax.
func (s *Server) within(step func(context.Context) error) {
	s.t.Helper()
	if err := step(must.Context(s.t)); err != nil {
		s.t.Error(err)
	}
}

// Node returns the current node.
func (s *Server) Node() *shard.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.node
}

// RowOf returns the counts of a row of a keyspace, in the order of the columns that were not
// dropped.
func (s *Server) RowOf(keyspace string, id uint64) []int64 {
	s.t.Helper()
	node := s.Node()
	ks := node.Keyspace(keyspace)
	row := make([]int64, len(ks.Columns))
	opt := &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: time.Now().Add(must.BecomeMax)}
	if err := node.Read(ks, &rows.Query{Width: len(row), Rows: row}, []uint64{id}, opt); err != nil {
		s.t.Errorf("row %d of %s: %v", id, keyspace, err)
	}
	var named []int64
	for column, name := range ks.Columns {
		if name != "" { // the column was not dropped
			named = append(named, row[column])
		}
	}
	return named
}

// Row returns the counts of a row of posts.
func (s *Server) Row(id uint64) []int64 {
	s.t.Helper()
	return s.RowOf(kinds.KeyspacePosts, id)
}

// Put sets the counts of a row of posts.
func (s *Server) Put(id uint64, counts ...int64) {
	s.t.Helper()
	op := engine.Op{ID: id, Kind: engine.OpSet}
	for column, count := range counts {
		op.Cells = append(op.Cells, engine.Cell{Column: uint8(column), Value: count})
	}
	node := s.Node()
	if err := node.Write(node.Keyspace(kinds.KeyspacePosts), &shard.Write{Ops: counters.Ops{op}, Deadline: time.Now().Add(must.BecomeMax)}); err != nil {
		s.t.Errorf("cannot set row %d: %v", id, err)
	}
}

// Rows returns how many rows of posts have a count other than 0.
func (s *Server) Rows() int {
	s.t.Helper()
	const page = 10_000
	node := s.Node()
	ks, n := node.Keyspace(kinds.KeyspacePosts), 0
	for after, has, more := uint64(0), false, true; more; has = true {
		opt := &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: time.Now().Add(must.BecomeMax)}
		got := rows.Scan{Width: len(ks.Columns), Limit: page, After: after, HasAfter: has, Dropped: ks.Dropped}
		if err := node.Read(ks, &got, nil, opt); err != nil {
			s.t.Errorf("cannot scan: %v", err)
			return n
		}
		for row := range slices.Chunk(got.Rows, len(ks.Columns)) {
			if slices.ContainsFunc(row, func(count int64) bool { return count != 0 }) {
				n++
			}
		}
		if more = got.More && len(got.IDs) > 0; more {
			after = got.IDs[len(got.IDs)-1]
		}
	}
	return n
}

// Shards gives a built-in keyspace n shards.
func Shards(keyspace string, n int) func(*shard.Config) {
	return func(c *shard.Config) { c.Shards[keyspace] = n }
}

// OneProducer is a parameter change for New. It makes each shard remember only one producer, as
// ForgetProducers requires.
func OneProducer(c *shard.Config) {
	c.Limits = shard.LimitsDefault
	c.Limits.ProducersMax = 1
}

// ForgetProducers makes the shards of posts forget their producer, as if it had been idle for long.
// It writes to each shard as another producer.
func (s *Server) ForgetProducers() {
	s.t.Helper()
	node := s.Node()
	ks := node.Keyspace(kinds.KeyspacePosts)
	w := &shard.Write{ID: dedup.ByProducer([]byte("another"), uint64(time.Now().UnixNano())), Deadline: time.Now().Add(must.BecomeMax)}
	var ops counters.Ops
	for id := range uint64(ks.Shards) {
		ops = append(ops, engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 0}}})
	}
	w.Ops = ops
	if err := node.Write(ks, w); err != nil {
		s.t.Errorf("cannot make producers forgotten: %v", err)
	}
}
