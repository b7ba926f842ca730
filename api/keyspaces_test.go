package api

import (
	"strings"
	"testing"

	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
)

// A request for the list of keyspaces or groups may have the same options as any read. A fresh list includes
// what another node has created. The server refuses the read if no leader confirms
// that the list is complete.
func TestKeyspacesAreReadAsFreshAsAsked(t *testing.T) {
	for _, c := range []struct {
		name, query string
		headers     []string
		confirmed   bool
	}{
		{"not told", "", nil, false},
		{"stale", "?consistency=stale", nil, false},
		{"stale within", "?consistency=stale&max_staleness=1s", nil, false},
		{"bounded", "?consistency=bounded", nil, false},
		{"bounded within", "?consistency=bounded&max_staleness=500ms", nil, true},
		{"within", "?max_staleness=1h", nil, true},
		{"linearizable", "?consistency=linearizable", nil, true},
		{"linearizable by its header", "", []string{"consistency", "linearizable"}, true},
		{"the query goes first", "?consistency=stale", []string{"consistency", "linearizable"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l *fakeServer
			for _, path := range []string{"/v1/admin/groups", "/v1/keyspaces"} {
				l = startFakeServer(t, nil)
				l.node.mu.Lock()
				l.node.mu.elsewhere = map[string]*shard.Keyspace{"fresh": {Name: "fresh", Kind: kinds.Counters, Columns: []string{"a"}, Shards: 1}}
				l.node.mu.Unlock()
				if got := l.do("GET", path+c.query, "", c.headers...); got.status != 200 {
					t.Errorf("%s: answered %d %s", path, got.status, got.body)
				}
				if got := l.do("GET", "/v1/keyspaces", ""); strings.Contains(got.body, `"fresh"`) != c.confirmed {
					t.Errorf("after %s there are %s", path, got.body)
				}
			}
			l.node.setFault("no_leader")
			if got := l.do("GET", "/v1/keyspaces"+c.query, "", c.headers...); c.confirmed {
				wantFault(t, got, 503, "no_leader", "")
			} else if got.status != 200 {
				t.Errorf("without a leader: %d %s", got.status, got.body)
			}
		})
	}
	l := startFakeServer(t, nil)
	for query, field := range map[string]string{"consistency=strong": "consistency", "max_staleness=0s": "max_staleness", "since=1": "since", "consistency=stale&consistency=stale": "consistency"} {
		wantFault(t, l.do("GET", "/v1/keyspaces?"+query, ""), 400, "invalid_argument", field)
	}
}

// A real node serves a linearizable read of the list.
func TestRealKeyspacesAreConfirmed(t *testing.T) {
	l := startReal(t)
	if got := l.do("GET", "/v1/keyspaces?consistency=linearizable", ""); got.status != 200 || !strings.Contains(got.body, `"posts"`) {
		t.Errorf("answered %d %s", got.status, got.body)
	}
}
