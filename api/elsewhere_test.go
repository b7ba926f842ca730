package api

import (
	"slices"
	"testing"

	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
)

// A request finds keyspaces and columns that another node has just created. The node waits for the
// newest catalog at most once per request, and only if it does not know a name.
func TestNamesMadeElsewhere(t *testing.T) {
	const get, incr = "/v1/counters/likes/get", "/v1/counters/likes/incr"
	likes := &shard.Keyspace{Name: "likes", Kind: kinds.Counters, Columns: []string{"up"}, Shards: 4}
	hearts := &shard.Keyspace{Name: "hearts", Kind: kinds.Counters, Columns: []string{"up"}, Shards: 4}
	wider := *likes
	wider.Columns = []string{"up", "down", "side"}
	l := startFakeServer(t, nil)
	for _, c := range []struct {
		name, fault  string
		elsewhere    *shard.Keyspace
		method, path string
		body         string
		status       int
		catchUps     int
	}{
		{"a keyspace of nobody", "", nil, "GET", "/v1/counters/likes/1", "", 404, 1},
		{"it cannot be known", "no_quorum", nil, "GET", "/v1/counters/likes/1", "", 503, 1},
		{"counts of nobody", "", nil, "GET", "/v1/timeline/7?counts=likes", "", 404, 1},
		{"they cannot be known", "no_quorum", nil, "GET", "/v1/timeline/7?counts=likes", "", 503, 1},
		{"counts of another kind", "", nil, "GET", "/v1/timeline/7?counts=feed", "", 404, 0},
		{"counts", "", hearts, "GET", "/v1/timeline/7?counts=hearts", "", 200, 1},
		{"a keyspace", "", likes, "GET", "/v1/counters/likes/1", "", 200, 1},
		{"again", "", likes, "GET", "/v1/counters/likes/1", "", 200, 0},
		{"columns of nobody", "", likes, "POST", incr, `{"ops":[{"id":"1","add":{"down":1,"side":1}}]}`, 400, 1},
		{"they cannot be known", "no_leader", likes, "POST", incr, `{"ops":[{"id":"1","add":{"down":1}}]}`, 503, 1},
		{"columns", "", &wider, "POST", incr, `{"ops":[{"id":"1","add":{"up":1,"down":1,"side":1}}]}`, 200, 1},
		{"columns that were known", "", &wider, "POST", get, `{"ids":["1"],"columns":["down"]}`, 200, 0},
		{"not an object", "", &wider, "POST", incr, `{"ops":[{"id":"1","add":{"up":1,"up":1,"other":2}}]}`, 400, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.node.setFault(c.fault)
			l.node.mu.Lock()
			before := l.node.mu.catchUps
			l.node.mu.elsewhere = map[string]*shard.Keyspace{}
			if c.elsewhere != nil {
				l.node.mu.elsewhere[c.elsewhere.Name] = c.elsewhere
			}
			l.node.mu.Unlock()
			got := l.do(c.method, c.path, c.body)
			l.node.mu.Lock()
			defer l.node.mu.Unlock()
			if got.status != c.status || l.node.mu.catchUps-before != c.catchUps {
				t.Errorf("answered %d %s after %d questions, want %d after %d", got.status, got.body, l.node.mu.catchUps-before, c.status, c.catchUps)
			}
		})
	}
	if got := l.node.Keyspace("likes").Columns; !slices.Equal(got, wider.Columns) {
		t.Errorf("the columns are %v", got)
	}
}

// The parameter counts may name an unknown keyspace. If the request has already waited for the
// newest catalog, it does not wait a second time for that keyspace.
func TestCountsOfOneWhoCaughtUp(t *testing.T) {
	n := newFakeNode()
	r := &request{backend: n, caughtUp: true}
	if err := r.readCountsOf([]byte("likes")); err == nil {
		t.Error("counts of nobody are read")
	}
	if n.mu.catchUps != 0 {
		t.Errorf("%d questions", n.mu.catchUps)
	}
}
