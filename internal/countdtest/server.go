// Package countdtest owns a countd server for tests of its clients: the contract of the public
// API on a map, and the faults that a test asks for.
//
// It never stores anything beyond a test, and it is not fast. A test that needs consensus,
// restarts or several nodes runs the real programs (package proctest).
//
// Invariant: a refused request changed nothing, unless its Fault says that it was applied all
// the same.
package countdtest

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault is how a request is refused.
type Fault struct {
	Status     int
	Code       string
	Message    string
	Field      string
	RetryAfter string        // header; "" for none
	After      bool          // the request is applied all the same
	Shards     []int         // with After: only these apply the request, and the answer names them; nil for all
	Late       time.Duration // with After: so long after the answer; 0 for before it
	Hang       bool          // no answer: the connection is cut
}

// Server is the fake. Set Fail before the first request; SetFail changes it
// between requests.
type Server struct {
	*httptest.Server
	// Fail, if not nil, may refuse a request. body is the request's body.
	Fail func(r *http.Request, body []byte) *Fault

	mu struct {
		sync.Mutex
		fail      func(r *http.Request, body []byte) *Fault // in place of Fail, once set
		keyspaces []*keyspace
		writes    int
		notReady  string
		clusterID string
		producers map[producerAt]*producer
		keys      map[keyAt]*keyed
		forgotten map[producerAt]uint64 // highest numbers
		groups    int                   // that were ever made, without that of the catalog
		cluster   *Cluster
	}
	late sync.WaitGroup // of requests that are applied after their answer; the test's end waits
}

type keyspace struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Columns []string `json:"columns"`
	Shards  int      `json:"shards"`
	Warning string   `json:"warning,omitempty"` // of every answer to its creation
	Dropped []int    `json:"dropped_columns,omitempty"`
	group   int      // the number of its group
	numbers []int    // of Columns
	rows    map[uint64][]int64
	lost    []int  // shards that no node has
	pairs   []pair // of all columns' sets, in the order in which they joined

	Everywhere bool             `json:"everywhere,omitempty"`
	Floors     map[string]int64 `json:"floors,omitempty"`
	Sharding   string           `json:"sharding,omitempty"` // shardOf does not look at it
}

// AddKind adds a keyspace of a kind other than counters. The counter paths do not find it.
func (s *Server) AddKind(name, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addLocked(&keyspace{Name: name, Kind: kind, Columns: []string{}})
}

// New starts a server with the built-in keyspaces, which ends with the test.
func New(t testing.TB) *Server {
	s := &Server{}
	s.mu.clusterID = "test"
	s.mu.producers, s.mu.keys, s.mu.forgotten = map[producerAt]*producer{}, map[keyAt]*keyed{}, map[producerAt]uint64{}
	for _, k := range []*keyspace{
		{Name: "posts", Kind: "counters", Columns: []string{"repost", "comment", "like", "view"}, Shards: 4, rows: map[uint64][]int64{}},
		{Name: "users", Kind: "counters", Columns: []string{"posts", "followers", "following"}, Shards: 4, rows: map[uint64][]int64{}},
	} {
		s.addLocked(k)
	}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	s.SetCluster("n1")
	t.Cleanup(func() {
		s.Close()
		s.late.Wait()
	})
	return s
}

// addLocked adds a keyspace, whose group has a number that no other ever has.
func (s *Server) addLocked(k *keyspace) {
	s.mu.groups++
	k.group = s.mu.groups
	s.mu.keyspaces = append(s.mu.keyspaces, k)
}

// RowOf returns the counts of a row of a keyspace.
func (s *Server) RowOf(keyspace string, id uint64) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(keyspace).get(id)
}

// Row returns the counts of a row of posts.
func (s *Server) Row(id uint64) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.keyspaces[0].get(id)
}

// Put sets the counts of a row of posts.
func (s *Server) Put(id uint64, counts ...int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.keyspaces[0].put(id, counts)
}

// Lose makes a shard of posts one that no living node has.
func (s *Server) Lose(shard int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.keyspaces[0].lost = append(s.mu.keyspaces[0].lost, shard)
}

// Rows returns the number of rows of posts that have a count.
func (s *Server) Rows() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.keyspaces[0].rows)
}

// SetNotReady sets the reason that /readyz answers; "" makes the server ready.
func (s *Server) SetNotReady(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.notReady = why
}

// SetClusterID changes the id of the cluster.
func (s *Server) SetClusterID(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.clusterID = id
}

// SetFail replaces Fail. Requests under way may still meet the one before.
func (s *Server) SetFail(fail func(r *http.Request, body []byte) *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.fail = fail
}

func (s *Server) failing() func(*http.Request, []byte) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.fail != nil {
		return s.mu.fail
	}
	return s.Fail
}

func (k *keyspace) get(id uint64) []int64 {
	row := make([]int64, len(k.Columns))
	copy(row, k.rows[id])
	return row
}

func (k *keyspace) put(id uint64, row []int64) {
	if slices.ContainsFunc(row, func(v int64) bool { return v != 0 }) {
		k.rows[id] = slices.Clone(row)
		return
	}
	delete(k.rows, id)
}

func (s *Server) find(name string) *keyspace {
	i := slices.IndexFunc(s.mu.keyspaces, func(k *keyspace) bool { return k.Name == name })
	if i < 0 {
		return nil
	}
	return s.mu.keyspaces[i]
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the caller has gone
	}
	var fault *Fault
	if fail := s.failing(); fail != nil {
		fault = fail(r, body)
	}
	if fault == nil {
		status, answer := s.answer(r, body, nil)
		reply(w, status, answer)
		return
	}
	if fault.After {
		s.applyAll(r, body, fault)
	}
	if fault.Hang {
		panic(http.ErrAbortHandler)
	}
	if fault.RetryAfter != "" {
		w.Header().Set("Retry-After", fault.RetryAfter)
	}
	refusal := refuse(fault.Code, cmp.Or(fault.Message, "refused by the test"), fault.Field)
	if fault.Shards != nil {
		refusal["applied"], refusal["unknown"] = s.split(r, body, fault)
	}
	reply(w, fault.Status, refusal)
}

// applyAll applies the request although the answer is a fault.
func (s *Server) applyAll(r *http.Request, body []byte, fault *Fault) {
	if fault.Late == 0 {
		s.answer(r, body, fault.Shards)
		return
	}
	again := r.Clone(context.WithoutCancel(r.Context()))
	s.late.Go(func() { // ends by itself; the test's cleanup waits
		time.Sleep(fault.Late)
		s.answer(again, body, fault.Shards)
	})
}

// split separates the ids that a fault lets through from those whose outcome it hides.
func (s *Server) split(r *http.Request, body []byte, fault *Fault) (applied, unknown []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.find(strings.Split(r.URL.Path, "/")[3])
	var request ops
	if k == nil || strict(body, &request) != nil {
		return nil, nil
	}
	for _, op := range request.Ops {
		id, _ := strconv.ParseUint(op.ID, 10, 64)
		if slices.Contains(fault.Shards, k.shardOf(id)) {
			applied = append(applied, op.ID)
		} else if fault.Status == http.StatusGatewayTimeout {
			unknown = append(unknown, op.ID)
		}
	}
	return applied, unknown
}

func reply(w http.ResponseWriter, status int, answer any) {
	if stream, ok := answer.(stream); ok {
		for name, value := range stream.headers {
			w.Header().Set(name, value)
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(stream.body)))
		_, _ = w.Write(stream.body) // a caller that has gone does not matter
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // a caller that has gone does not matter
}

func refuse(code, message, field string) map[string]any {
	return map[string]any{"error": map[string]string{"code": code, "message": message, "field": field}}
}
