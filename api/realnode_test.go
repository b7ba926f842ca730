package api

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
)

// openReal opens a node on a directory and waits until it serves. The ids of the built-in keyspaces
// texts are texts.
func openReal(t *testing.T, dir string, texts ...string) *shard.Node {
	t.Helper()
	ofTexts := map[string]bool{}
	for _, name := range texts {
		ofTexts[name] = true
	}
	n, err := shard.Open(shard.Config{
		Dir: dir, NodeKey: "n1", NodeName: "n1", Bootstrap: true, ClusterID: strings.Repeat("5", 32), ClusterName: "likes", Version: "1.2.3", ClusterAddr: "127.0.0.1:0",
		HTTPAddr: "127.0.0.1:7400", GossipAddr: "127.0.0.1:7402",
		Shards: map[string]int{"posts": 7, "users": 7, "unread": 7, "feed": 7}, // so that requests span shards
		Texts:  ofTexts,
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeReal(t, n) })
	if err := n.WaitReady(must.Context(t)); err != nil {
		t.Fatal(err)
	}
	return n
}

// closeReal closes a node. Closing again does nothing.
func closeReal(t *testing.T, n *shard.Node) {
	t.Helper()
	if err := n.Close(must.Context(t)); err != nil {
		t.Error(err)
	}
}

func before(n *shard.Node) func(*Config) { return func(c *Config) { c.Backend = n } }

// realTarget is a shard.Node. After an example that changed keyspaces it opens a new node. After
// any other example it deletes the rows.
type realTarget struct {
	node  *shard.Node
	shape []shard.Keyspace
	live  *fakeServer
}

func newRealTarget(*testing.T) *realTarget { return &realTarget{} }

// has reports false for an example that needs a fault of the node, because the test cannot cause
// such a fault from outside. The test can cause overload of the server.
func (*realTarget) has(e example) bool {
	return !slices.Contains(beforeBackend, e.status) && (e.Setup == "" || e.Setup == "in_flight" || e.Setup == "songs")
}

func (r *realTarget) renew(t *testing.T) *fakeServer {
	t.Helper()
	if r.node == nil || !reflect.DeepEqual(shapes(r.node), r.shape) {
		r.node = openReal(t, t.TempDir())
		r.shape = shapes(r.node)
		r.live = startFakeServer(t, before(r.node))
	}
	for _, ks := range r.node.Keyspaces() {
		deleteRows(t, r.node, ks)
	}
	forgetUnread(t, r.node)
	return r.live
}

func shapes(n *shard.Node) []shard.Keyspace {
	var all []shard.Keyspace
	for _, ks := range n.Keyspaces() {
		all = append(all, *ks)
	}
	return all
}

// forgetUnread deletes the data of unread numbers that examples create, except counts.
func forgetUnread(t *testing.T, n *shard.Node) {
	t.Helper()
	deadline := time.Now().Add(must.BecomeMax)
	for keyspace, w := range map[string]*shard.Write{
		"unread": {Ops: unread.CursorOps{{ID: 7, Kind: engine.OpDelete}}},
		"feed":   {Ops: feed.Ops{{Kind: feed.Reset, User: 7}}},
		"board":  {Ops: &unread.BoardOp{Kind: unread.Clear}},
	} {
		w.Deadline = deadline
		if err := n.Write(n.Keyspace(keyspace), w); err != nil {
			t.Fatal(err)
		}
	}
}

func deleteRows(t *testing.T, n *shard.Node, ks *shard.Keyspace) {
	t.Helper()
	if len(ks.Columns) == 0 {
		return
	}
	deadline := time.Now().Add(must.BecomeMax)
	rows := rows.Scan{Width: len(ks.Columns), Limit: 10_000}
	if err := n.Read(ks, &rows, nil, &shard.ReadOptions{Deadline: deadline}); err != nil {
		t.Fatal(err)
	}
	var ops counters.Ops
	for _, id := range rows.IDs {
		ops = append(ops, engine.Op{ID: id, Kind: engine.OpDelete})
	}
	if err := n.Write(ks, &shard.Write{Ops: ops, Deadline: deadline}); err != nil || rows.More {
		t.Fatalf("rows are left: %v", err)
	}
}

// want checks an answer by its body, with "TOKEN" for any token, and returns the
// token.
func (l *fakeServer) want(status int, body, method, path, request string, headers ...string) (token string) {
	l.t.Helper()
	got := l.do(method, path, request, headers...)
	var answer struct{ Token string }
	if json.Unmarshal([]byte(got.body), &answer) == nil && answer.Token != "" {
		got.body = strings.Replace(got.body, answer.Token, "TOKEN", 1)
	}
	if got.status != status || got.body != body {
		l.t.Fatalf("%s %s %s is answered\n%d %s, want\n%d %s", method, path, request, got.status, got.body, status, body)
	}
	return answer.Token
}

// The test changes rows over HTTP, and reads them again after a restart of the node.
func TestRealCounters(t *testing.T) {
	dir := t.TempDir()
	n := openReal(t, dir)
	l := startFakeServer(t, before(n))
	const posts = "/v1/counters/posts"
	row := func(id string, repost, comment, like, view int64) string {
		return fmt.Sprintf(`{"id":"%s","counts":{"repost":%d,"comment":%d,"like":%d,"view":%d}`, id, repost, comment, like, view)
	}
	l.want(200, row("7", 0, 0, 0, 0)+"}", "GET", posts+"/7", "")
	token := l.want(200, `{"results":[`+row("1", 0, 0, 1, 0)+"},"+row("2", -1, 0, 0, 0)+"},"+row("1", 0, 0, 3, 0)+`}],"duplicate":false,"token":"TOKEN"}`,
		"POST", posts+"/incr", `{"ops":[{"id":"1","add":{"like":1}},{"id":2,"add":{"repost":-1}},{"id":"1","add":{"like":2}}]}`)
	for _, level := range []string{"stale", "bounded", "linearizable"} {
		l.want(200, row("1", 0, 0, 3, 0)+"}", "GET", posts+"/1?consistency="+level, "", "Countd-Token", token)
	}
	l.want(200, row("1", 0, 9, 3, 0)+`,"duplicate":false,"token":"TOKEN"}`, "PUT", posts+"/1", `{"set":{"comment":9}}`)
	l.want(200, `{"applied":2,"duplicate":false,"token":"TOKEN"}`,
		"POST", posts+"/set", `{"ops":[{"id":"18446744073709551615","set":{"view":9223372036854775807}},{"id":"0","set":{"view":65536}}],"want":"none"}`)

	overflow := `{"id":"18446744073709551615","error":{"code":"overflow",`
	got := l.do("POST", posts+"/incr", `{"ops":[{"id":"5","add":{"like":1}},{"id":"18446744073709551615","add":{"view":1}},{"id":"3","add":{"like":1}}]}`)
	if got.status != 200 || !strings.Contains(got.body, overflow) || !strings.Contains(got.body, `"failed":1`) ||
		strings.Index(got.body, `"5"`) > strings.Index(got.body, overflow) || strings.Index(got.body, `"id":"3"`) < strings.Index(got.body, overflow) {
		t.Errorf("one op of three overflows: %d %s", got.status, got.body)
	}
	if got := l.do("POST", posts+"/incr", `{"ops":[{"id":"18446744073709551615","add":{"view":1}}]}`); got.status != 409 || !strings.Contains(got.body, `"overflow"`) {
		t.Errorf("the only op overflows: %d %s", got.status, got.body)
	}

	const last = `{"id":"18446744073709551615","counts":{"like":0,"view":9223372036854775807}}`
	page := func(after, limit, ids, next string) {
		t.Helper()
		if next != "null" {
			next += `,"cursor":` + next
		}
		l.want(200, `{"results":[`+ids+`],"next":`+next+`}`, "POST", posts+"/scan", `{`+after+`"limit":`+limit+`,"columns":["like","view"]}`)
	}
	page("", "2", `{"id":"0","counts":{"like":0,"view":65536}},{"id":"1","counts":{"like":3,"view":0}}`, `"1"`)
	page(`"after":"1",`, "3", `{"id":"2","counts":{"like":0,"view":0}},{"id":"3","counts":{"like":1,"view":0}},{"id":"5","counts":{"like":1,"view":0}}`, `"5"`)
	page(`"after":"5",`, "3", last, `null`)
	page(`"after":"18446744073709551615",`, "3", ``, `null`)
	l.want(200, row("1", 0, 0, 0, 0)+`,"duplicate":false,"token":"TOKEN"}`, "DELETE", posts+"/1", "")

	closeReal(t, n)
	if got := l.do("GET", posts+"/1", ""); got.status != 503 || !strings.Contains(got.body, `"draining"`) {
		t.Errorf("of a node that has stopped: %d %s", got.status, got.body)
	}
	l = startFakeServer(t, before(openReal(t, dir)))
	l.want(200, `{"results":[{"id":"2","counts":{"repost":-1}},{"id":"1","counts":{"repost":0}},{"id":"2","counts":{"repost":-1}}]}`,
		"POST", posts+"/get", `{"ids":["2",1,"2"],"columns":["repost"]}`)
	page(`"after":"5",`, "3", last, `null`)
}

func TestRealKeyspaces(t *testing.T) {
	l := startFakeServer(t, before(openReal(t, t.TempDir())))
	const clips = `{"name":"clips","kind":"counters","columns":["play"],"shards":3}`
	l.want(200, clips, "POST", "/v1/keyspaces", `{"name":"clips","columns":["play"],"shards":3}`)
	l.want(200, clips, "POST", "/v1/keyspaces", `{"name":"clips","columns":["play"],"shards":3}`)
	l.want(200, `{"results":[{"id":"4","counts":{"play":5}}],"duplicate":false,"token":"TOKEN"}`,
		"POST", "/v1/counters/clips/incr", `{"ops":[{"id":"4","add":{"play":5}}]}`)
	wider := strings.Replace(clips, `"play"`, `"play","share"`, 1)
	l.want(200, wider, "POST", "/v1/keyspaces/clips/columns", `{"columns":["share","play"]}`)
	l.want(200, `{"id":"4","counts":{"play":5,"share":0}}`, "GET", "/v1/counters/clips/4", "")
	spread := strings.Replace(wider, "}", `,"everywhere":true}`, 1)
	l.want(200, spread, "POST", "/v1/keyspaces/clips/everywhere", `{"everywhere":true}`)
	l.want(200, spread, "POST", "/v1/keyspaces/clips/everywhere", `{"everywhere":true}`)
	l.want(200, wider, "POST", "/v1/keyspaces/clips/everywhere", `{"everywhere":false}`)
	l.refused(400, "invalid_argument", "everywhere", "POST", "/v1/keyspaces/board/everywhere", `{"everywhere":true}`)
	for path, body := range map[string]string{
		"/v1/keyspaces":                   `{"name":"clips","columns":["play"],"shards":3}`,
		"/v1/keyspaces/nobody/columns":    `{"columns":["a"]}`,
		"/v1/keyspaces/nobody/everywhere": `{"everywhere":true}`,
	} {
		if got := l.do("POST", path, body); got.status != 409 && got.status != 404 {
			t.Errorf("%s %s: %d %s", path, body, got.status, got.body)
		}
	}
	for _, bad := range []string{`{"name":"Clips","columns":["a"]}`, `{"name":"a","columns":[]}`, `{"name":"a","columns":["x","x"]}`, `{"name":"a","columns":["x"],"shards":65}`} {
		if got := l.do("POST", "/v1/keyspaces", bad); got.status != 400 {
			t.Errorf("%s: %d %s", bad, got.status, got.body)
		}
	}
	if got := l.do("GET", "/readyz", ""); got.status != 200 {
		t.Errorf("readyz: %d %s", got.status, got.body)
	}
}

// Ops with floors, and columns with floors, keep counts of counters and of unread numbers above the
// floors.
func TestRealFloors(t *testing.T) {
	l := startFakeServer(t, before(openReal(t, t.TempDir())))
	l.want(200, `{"name":"badges","kind":"counters","columns":["a","b"],"shards":2,"floors":{"b":0}}`,
		"POST", "/v1/keyspaces", `{"name":"badges","columns":["a",{"name":"b","floor":0}],"shards":2}`)
	const body = `{"ops":[{"id":"1","add":{"a":2,"b":2}},{"id":"2","add":{"b":-1}},{"id":"1","add":{"a":-3,"b":-3},"floor":-1},{"id":"1","add":{"a":-1},"floor":0}]}`
	l.want(200, `{"results":[{"id":"1","counts":{"a":2,"b":2}},{"id":"2","counts":{"a":0,"b":0},"added":{"b":0}},{"id":"1","counts":{"a":-1,"b":0},"added":{"b":-2}},`+
		`{"id":"1","counts":{"a":-1,"b":0},"added":{"a":0}}],"duplicate":false,"token":"TOKEN"}`, "POST", "/v1/counters/badges/incr", body, "Idempotency-Key", "k")
	l.want(200, `{"results":[{"id":"1","counts":{"a":-1,"b":0}},{"id":"2","counts":{"a":0,"b":0}},{"id":"1","counts":{"a":-1,"b":0}},{"id":"1","counts":{"a":-1,"b":0}}],"duplicate":true,"token":"TOKEN"}`,
		"POST", "/v1/counters/badges/incr", body, "Idempotency-Key", "k")
	l.want(200, `{"results":[{"user":"7","counts":{"at":0,"comment":0,"like":0,"dm":0},"added":{"comment":0}}],"duplicate":false,"token":"TOKEN"}`,
		"POST", "/v1/unread/incr", `{"ops":[{"user":"7","add":{"comment":-1}}]}`)
	l.want(200, `{"user":"7","counts":{"at":0,"comment":0,"like":0,"dm":0}}`, "GET", "/v1/unread/7?consistency=linearizable", "")
}

// A request may have ops on several keyspaces. The JSON members of an op may come in any order. The
// request has one idempotency key and one token.
func TestRealOps(t *testing.T) {
	l := startFakeServer(t, before(openReal(t, t.TempDir())))
	const body = `{"ops":[{"keyspace":"posts","id":"1","add":{"like":2}},{"add":{"comment":1,"like":-1},"user":"7"},{"set":{"posts":5},"keyspace":"users","id":1},` +
		`{"floor":0,"add":{"like":-3},"id":1,"keyspace":"posts"},{"keyspace":"unread","user":7,"add":{"comment":1}}]}`
	results := `{"results":[{"id":"1","counts":{"repost":0,"comment":0,"like":2,"view":0}},{"user":"7","counts":{"at":0,"comment":1,"like":0,"dm":0},"added":{"like":0}},` +
		`{"id":"1","counts":{"posts":5,"followers":0,"following":0}},{"id":"1","counts":{"repost":0,"comment":0,"like":0,"view":0},"added":{"like":-2}},` +
		`{"user":"7","counts":{"at":0,"comment":2,"like":0,"dm":0}}],"duplicate":false,"token":"TOKEN"}`
	token := l.want(200, results, "POST", "/v1/ops", body, "Idempotency-Key", "k")
	l.want(200, `{"user":"7","counts":{"at":0,"comment":2,"like":0,"dm":0}}`, "GET", "/v1/unread/7", "", "Countd-Token", token)
	l.want(200, `{"id":"1","counts":{"posts":5,"followers":0,"following":0}}`, "GET", "/v1/counters/users/1", "", "Countd-Token", token)
	none := strings.Replace(body, `{"ops"`, `{"want":"none","ops"`, 1)
	l.want(200, `{"applied":5,"duplicate":false,"token":"TOKEN"}`, "POST", "/v1/ops", none, "Countd-Producer", "p", "Countd-Seq", "1")
	l.want(200, `{"applied":5,"duplicate":true,"token":"TOKEN"}`, "POST", "/v1/ops", none, "Countd-Producer", "p", "Countd-Seq", "1")
	l.refused(409, "idempotency_conflict", "", "POST", "/v1/ops", `{"ops":[{"user":"70","add":{"like":1}}]}`, "Idempotency-Key", "k")
	l.want(200, `{"user":"7","counts":{"at":0,"comment":4,"like":0,"dm":0}}`, "GET", "/v1/unread/7?consistency=linearizable", "")
	l.want(200, `{"user":"70","counts":{"at":0,"comment":0,"like":0,"dm":0}}`, "GET", "/v1/unread/70?consistency=linearizable", "")
}

// If this cluster never issued the token of a request, the server answers with an error of the
// client. It sends no Retry-After, because a repeat would fail in the same way.
func TestRealBadTokens(t *testing.T) {
	n := openReal(t, t.TempDir())
	l := startFakeServer(t, before(n))
	var made struct{ Token string }
	got := l.do("POST", "/v1/counters/posts/incr", `{"ops":[{"id":"1","add":{"like":1}}]}`)
	if err := json.Unmarshal([]byte(got.body), &made); err != nil {
		t.Fatal(err)
	}
	token, err := shard.ParseToken([]byte(made.Token))
	if err != nil {
		t.Fatal(err)
	}
	future, foreign := shard.Token{Cluster: token.Cluster}, token
	foreign.Cluster++
	for _, g := range n.Status().Groups {
		future.At = append(future.At, shard.GroupIndex{Group: g.ID, Index: g.CommitIndex + 1000})
	}
	for name, bad := range map[string]shard.Token{"from the future": future, "of another cluster": foreign} {
		got := l.do("GET", "/v1/counters/posts/1", "", "Countd-Token", string(bad.AppendText(nil)))
		if got.status != 400 || !strings.Contains(got.body, `"field":"Countd-Token"`) || got.header.Get("Retry-After") != "" {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if got := l.do("GET", "/v1/counters/posts/1", "", "Countd-Token", made.Token); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// Increments of many clients at once:
//
//  1. no increment is lost or counted twice;
//  2. each client sees its row rise.
func TestRealIncrementsAtOnce(t *testing.T) {
	t.Parallel()
	l := startFakeServer(t, before(openReal(t, t.TempDir())))
	const clients, each = 12, 20
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			last := int64(0)
			for range each {
				got, err := l.try("POST", "/v1/counters/users/incr", strings.NewReader(`{"ops":[{"id":"1","add":{"posts":1}},{"id":"2","add":{"posts":1}},{"id":"1","add":{"posts":1}}]}`))
				var answer struct {
					Results []struct{ Counts map[string]int64 }
				}
				if err == nil {
					err = json.Unmarshal([]byte(got.body), &answer)
				}
				if err != nil || got.status != 200 || len(answer.Results) != 3 {
					t.Errorf("%d %s, %v", got.status, got.body, err)
					return
				}
				if v := answer.Results[0].Counts["posts"]; v <= last || answer.Results[2].Counts["posts"] != v+1 {
					t.Errorf("%s after %d", got.body, last)
				}
				last = answer.Results[2].Counts["posts"]
			}
		})
	}
	wg.Wait()
	l.want(200, fmt.Sprintf(`{"results":[{"id":"1","counts":{"posts":%d}},{"id":"2","counts":{"posts":%d}}]}`, 2*clients*each, clients*each),
		"POST", "/v1/counters/users/get?consistency=linearizable", `{"ids":["1","2"],"columns":["posts"]}`)
}

// A repeat does not report an op as applied if it overflowed. If a shard no longer remembers the
// result, both forms of the answer say so, even after a restart.
func TestRealRepeatsOfOverflows(t *testing.T) {
	dir := t.TempDir()
	n := openReal(t, dir)
	l := startFakeServer(t, before(n))
	const posts, full = "/v1/counters/posts", "9223372036854775807"
	l.do("POST", posts+"/set", `{"ops":[{"id":"9","set":{"like":`+full+`}},{"id":"10","set":{"like":`+full+`}}]}`)
	refused := func(op int, id string) string {
		field := fmt.Sprintf("ops[%d].add.like", op)
		return fmt.Sprintf(`{"id":"%s","error":{"code":"overflow","message":"%s: the sum is not a signed 64-bit integer","field":"%s"}}`, id, field, field)
	}
	// Ids 9 and 457 are on the same one of the 7 shards.
	const ops = `"ops":[{"id":"9","add":{"like":1}},{"id":"10","add":{"like":1}},{"id":"457","add":{"like":1}},{"id":"11","add":{"like":1}}]`
	for _, who := range [][]string{{"Idempotency-Key", "k"}, {"Countd-Producer", "p", "Countd-Seq", "1"}} {
		l.want(200, `{"applied":2,"failed":2,"errors":[`+refused(0, "9")+","+refused(1, "10")+`],"duplicate":false,"token":"TOKEN"}`,
			"POST", posts+"/incr", `{`+ops+`,"want":"none"}`, who...)
	}
	again := func() {
		t.Helper()
		for _, who := range [][]string{{"Idempotency-Key", "k"}, {"Countd-Producer", "p", "Countd-Seq", "1"}} {
			l.want(200, `{"applied":1,"failed":1,"errors":[`+refused(1, "10")+`],"unknown":["9","457"],"duplicate":true,"token":"TOKEN"}`,
				"POST", posts+"/incr", `{`+ops+`,"want":"none"}`, who...)
		}
		row := func(id, like string) string {
			return `{"id":"` + id + `","counts":{"repost":0,"comment":0,"like":` + like + `,"view":0}}`
		}
		l.want(200, `{"results":[`+row("9", full)+","+refused(1, "10")+","+row("457", "2")+","+row("11", "2")+`],"failed":1,"unknown":["9","457"],"duplicate":true,"token":"TOKEN"}`,
			"POST", posts+"/incr", `{`+ops+`}`, "Countd-Producer", "p", "Countd-Seq", "1")
	}
	again()
	closeReal(t, n)
	l = startFakeServer(t, before(openReal(t, dir)))
	again()
}

// A real node serves sets, and an empty set after the delete of a row.
func TestRealMembers(t *testing.T) {
	n := openReal(t, t.TempDir())
	for _, c := range []struct {
		name string
		run  func(*testing.T, *fakeServer)
	}{{"members", testMembers}, {"lists", testMemberLists}, {"beside counts", testMembersBesideCounts}, {"among ops", testMembersAmongOps}} {
		t.Run(c.name, func(t *testing.T) {
			l := startFakeServer(t, before(n))
			for _, ks := range []string{"posts", "users", "unread"} {
				deleteRows(t, n, n.Keyspace(ks))
			}
			l.want(200, `{"results":[false,false,false]}`, "POST", likes+"/check?consistency=linearizable", `{"member":"7","ids":["1","2","3"]}`)
			l.want(200, `{"member":"7","ids":[],"lag_ms":0}`, "GET", likes+"/of/7?consistency=linearizable", "")
			c.run(t, l)
		})
	}
}

// A repeat changes no set, even if the member has left or joined since the first request.
func TestRealMembersOnce(t *testing.T) {
	l := startFakeServer(t, before(openReal(t, t.TempDir())))
	body := opsOf(joined("1", "7", true), joined("2", "7", true))
	result := func(changed bool, first, second int) string {
		return fmt.Sprintf(`{"results":[{"id":"1","member":"7","changed":%v,"count":%d},{"id":"2","member":"7","changed":%v,"count":%d}],"duplicate":%v,"token":"TOKEN"}`,
			changed, first, changed, second, !changed)
	}
	l.want(200, result(true, 1, 1), "POST", likes, body, "Idempotency-Key", "k")
	l.want(200, `{"results":[{"id":"1","member":"7","changed":true,"count":0}],"duplicate":false,"token":"TOKEN"}`, "POST", likes, opsOf(joined("1", "7", false)))
	l.want(200, result(false, 0, 1), "POST", likes, body, "Idempotency-Key", "k")
	l.want(200, `{"results":[false,true]}`, "POST", likes+"/check?consistency=linearizable", `{"member":"7","ids":["1","2"]}`)
	l.refused(409, "idempotency_conflict", "", "POST", likes, opsOf(joined("1", "8", true)), "Idempotency-Key", "k")
	l.refused(409, "idempotency_conflict", "", "POST", "/v1/members/posts/view", body, "Idempotency-Key", "k")
}
