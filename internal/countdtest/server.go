// Package countdtest is a countd server for the tests of its clients: the public
// API's contract over a map.
//
// It owns no promise of speed or durability. Its invariant: a request that it
// refuses changed nothing.
package countdtest

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
)

// Fault is how a request is refused.
type Fault struct {
	Status     int
	Code       string
	Message    string
	Field      string
	RetryAfter string // header; "" for none
	After      bool   // the request is applied all the same
	Hang       bool   // no answer: the connection is cut
}

// Server is the fake. Set Fail before the first request.
type Server struct {
	*httptest.Server
	// Fail, unless nil, may refuse a request. body is what was sent.
	Fail func(r *http.Request, body []byte) *Fault

	mu struct {
		sync.Mutex
		keyspaces []*keyspace
		writes    int
		notReady  string
		clusterID string
	}
}

type keyspace struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Columns []string `json:"columns"`
	Shards  int      `json:"shards"`
	rows    map[uint64][]int64
}

// New starts a server with the built-in keyspaces, which ends with the test.
func New(t testing.TB) *Server {
	s := &Server{}
	s.mu.clusterID = "test"
	s.mu.keyspaces = []*keyspace{
		{"posts", "counters", []string{"repost", "comment", "like", "view"}, 4, map[uint64][]int64{}},
		{"users", "counters", []string{"posts", "followers", "following"}, 4, map[uint64][]int64{}},
	}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
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

// Rows returns how many rows of posts have a count.
func (s *Server) Rows() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.keyspaces[0].rows)
}

// SetNotReady makes /readyz say why not; "" makes it ready.
func (s *Server) SetNotReady(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.notReady = why
}

// SetClusterID makes the server another cluster.
func (s *Server) SetClusterID(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.clusterID = id
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
		panic(http.ErrAbortHandler) // the caller is gone
	}
	var fault *Fault
	if s.Fail != nil {
		fault = s.Fail(r, body)
	}
	if fault != nil && fault.Hang {
		if fault.After {
			s.answer(r, body)
		}
		panic(http.ErrAbortHandler)
	}
	if fault != nil {
		if fault.After {
			s.answer(r, body)
		}
		if fault.RetryAfter != "" {
			w.Header().Set("Retry-After", fault.RetryAfter)
		}
		reply(w, fault.Status, refuse(fault.Code, cmp.Or(fault.Message, "refused by the test"), fault.Field))
		return
	}
	status, answer := s.answer(r, body)
	reply(w, status, answer)
}

func reply(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // a caller that is gone misses it
}

func refuse(code, message, field string) any {
	return map[string]any{"error": map[string]string{"code": code, "message": message, "field": field}}
}
