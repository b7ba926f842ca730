//go:build !race

// Under the race detector, sync.Pool drops some values at random, so these tests would count too
// many allocations.

package api

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard"
)

// quietNode answers reads and writes without allocating, so that only the api's
// allocations are counted.
type quietNode struct {
	*fakeNode
	posts *shard.Keyspace
}

func (n quietNode) Keyspace(string) *shard.Keyspace { return n.posts }

func (n quietNode) Read(_ *shard.Keyspace, query raftfsm.Query, _ []uint64, _ *shard.ReadOptions) error {
	if q, is := query.(*counters.ContainsQuery); is {
		clear(q.In)
	}
	return nil
}

func (n quietNode) Write(_ *shard.Keyspace, w *shard.Write) error {
	w.Token.At = append(w.Token.At[:0], shard.GroupIndex{Group: 1, Index: 7})
	return nil
}

// TestServeAllocates checks that a request allocates nothing but the name of its keyspace.
func TestServeAllocates(t *testing.T) {
	l := startFakeServer(t, func(c *Config) { c.Backend = quietNode{newFakeNode(), postsKeyspace()} })
	for _, c := range []struct{ name, method, path, body string }{
		{"one row", "GET", "/v1/counters/posts/4467107636950632", ""},
		{"a page", "POST", "/v1/counters/posts/get", `{"ids":["1","2","3"],"columns":["like"]}`},
		{"100 increments", "POST", "/v1/counters/posts/incr", string(hundredOps())},
		{"100 members", "POST", "/v1/members/posts/like", opsOf(strings.Repeat(joined("1", "7", true)+",", 99) + joined("1", "7", false))},
		{"a check", "POST", "/v1/members/posts/like/check", `{"member":"7","ids":["1","2","3"]}`},
		{"a page with a member", "POST", "/v1/counters/posts/get", `{"ids":["1","2","3"],"member":"7"}`},
		{"no results", "POST", "/v1/counters/posts/set", `{"ops":[{"id":"1","set":{"like":1}}],"want":"none"}`},
	} {
		if n := allocations(t, l, c.method, c.path, c.body); n > 1 {
			t.Errorf("%s: %v allocations, want at most 1", c.name, n)
		}
	}
}

// allocations returns the allocations of a request that is served.
func allocations(t *testing.T, l *fakeServer, method, path, text string) float64 {
	t.Helper()
	ctx := newCall(method, path, text)
	ctx.Request.Header.Set(gate.HeaderTimeout, "5s")
	body := []byte(text)
	n := testing.AllocsPerRun(100, func() {
		ctx.Request.SetBodyRaw(body) // serve resets the body
		l.server.serve(ctx)
	})
	if status := ctx.Response.StatusCode(); status != 200 {
		t.Errorf("%s %s is answered %d %s", method, path, status, ctx.Response.Body())
	}
	return n
}

// TestTextsAllocate checks that ids that are texts allocate nothing more, if they are in the cache of
// names.
func TestTextsAllocate(t *testing.T) {
	texts := startTexts(t)
	known := opsOf(`{"id":"a","add":{"like":1}}`, `{"id":"b","add":{"like":1}}`, `{"id":"é/☃","add":{"like":1}}`, `{"id":"`+uuid+`","add":{"like":1}}`)
	texts.do("POST", articles+"/incr", known)
	texts.do("POST", "/v1/members/articles/like", opsOf(joined("a", "bob", true)))
	quiet := quietTexts{quietNode{texts.node, nil}, texts.node}
	l := startFakeServer(t, func(c *Config) { c.Backend = quiet })
	for _, warm := range []string{known, opsOf(`{"id":"a","add":{"like":1}}`)} {
		l.do("POST", articles+"/incr", warm)
	}
	l.do("POST", "/v1/members/articles/like", opsOf(joined("a", "bob", true)))
	for _, c := range []struct{ name, method, path, body string }{
		{"one row", "GET", articles + "/" + uuid, ""},
		{"a page", "POST", articles + "/get", `{"ids":["a","b","é/☃","` + uuid + `"],"columns":["like"]}`},
		{"increments", "POST", articles + "/incr", known},
		{"a member", "POST", "/v1/members/articles/like", opsOf(joined("a", "bob", true))},
		{"a check", "POST", "/v1/members/articles/like/check", `{"member":"bob","ids":["a","b"]}`},
	} {
		if n := allocations(t, l, c.method, c.path, c.body); n > 1 {
			t.Errorf("%s: %v allocations, want at most 1", c.name, n)
		}
	}
}

// quietTexts is a quietNode whose names are those of a fake node.
type quietTexts struct {
	quietNode
	names *fakeNode
}

func (n quietTexts) Keyspace(name string) *shard.Keyspace { return n.names.Keyspace(name) }

func (n quietTexts) Read(ks *shard.Keyspace, query raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error {
	if n.names.names.Answer(ks.Name, query) {
		return nil
	}
	return n.quietNode.Read(ks, query, ids, opt)
}

func (n quietTexts) Write(ks *shard.Keyspace, w *shard.Write) error {
	if n.names.names.Write(ks.Name, w) {
		return nil
	}
	return n.quietNode.Write(ks, w)
}

// TestPollAllocates bounds the allocations of a poll, including those of the reads in the shards.
func TestPollAllocates(t *testing.T) {
	l := startFakeServer(t, before(openReal(t, t.TempDir())))
	l.ok(`{"seq":1,"duplicate":false,"token":"TOKEN"}`, "POST", "/v1/notices/news", "")
	l.ok(`{"unread":0,"duplicate":false,"token":"TOKEN"}`, "POST", "/v1/feed/7/reset", `{"followees":["1","2","3","4","5","6","7","8"]}`)
	for _, c := range []struct {
		name, method, path, body string
		most                     float64
	}{
		{"one", "GET", "/v1/poll/7?channels=news,shop&dots=sale&consistency=stale", "", 2},
		{"100", "POST", "/v1/poll?consistency=stale", manyUsers(100), 8},
	} {
		ctx := newCall(c.method, c.path, c.body)
		body := []byte(c.body)
		n := math.Inf(1)
		for range 5 { // the node allocates concurrently, so the lowest measurement counts
			n = min(n, testing.AllocsPerRun(100, func() {
				ctx.Request.SetBodyRaw(body)
				l.server.serve(ctx)
			}))
		}
		if status := ctx.Response.StatusCode(); status != 200 || n > c.most {
			t.Errorf("%s: answered %d with %v allocations, want at most %v: %.200s", c.name, status, n, c.most, ctx.Response.Body())
		}
	}
}

// manyUsers returns the body of a poll of users 1 to n.
func manyUsers(n int) string {
	users := make([]string, n)
	for i := range users {
		users[i] = strconv.Itoa(i + 1)
	}
	return `{"users":[` + strings.Join(users, ",") + `],"channels":["news","shop"],"dots":["sale"]}`
}

// TestRefusalDoesNotAllocate checks that a refusal allocates nothing. Under overload, most of the
// server's work is refusals.
func TestRefusalDoesNotAllocate(t *testing.T) {
	l := startFakeServer(t, func(c *Config) { c.Backend = quietNode{newFakeNode(), postsKeyspace()} })
	defer crowd(t, l.server.admission, 100)()
	ctx := newCall("POST", "/v1/counters/posts/incr", string(hundredOps()))
	n := testing.AllocsPerRun(100, func() { l.server.serve(ctx) })
	if status := ctx.Response.StatusCode(); status != 429 || n > 0 {
		t.Errorf("answered %d with %v allocations", status, n)
	}
}

// After a request with a large answer, a connection keeps at most keptAnswerBytesMax of the
// answer's buffer.
func TestConnectionsKeepLittle(t *testing.T) {
	l := startFakeServer(t, nil)
	ctx := newCall("POST", "/v1/counters/posts/incr", manyOps(10_000))
	l.server.serve(ctx)
	if kept := cap(ctx.Response.SwapBody(nil)); ctx.Response.StatusCode() != 200 || kept > keptAnswerBytesMax {
		t.Errorf("answered %d, %d bytes are kept", ctx.Response.StatusCode(), kept)
	}
}

// awaitBody, which runs before a body is read, allocates nothing.
func TestAwaitBodyDoesNotAllocate(t *testing.T) {
	l := startFakeServer(t, nil)
	ctx := newCall("POST", "/v1/counters/posts/incr", manyOps(1))
	ctx.Request.Header.SetContentLength(100)
	ctx.Request.Header.Set(gate.HeaderTimeout, "500ms")
	var got time.Duration
	n := testing.AllocsPerRun(100, func() { got = l.server.awaitBody(&ctx.Request.Header).ReadTimeout })
	if n > 0 || got != 500*time.Millisecond {
		t.Errorf("%v allocations, timeout %v", n, got)
	}
}
