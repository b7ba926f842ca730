package api

import (
	"testing"
	"time"

	"github.com/countd/countd/shard"
)

// step is one request and its whole answer.
type step struct {
	name, method, path, body string
	status                   int
	want                     string
}

func runSteps(t *testing.T, l *fakeServer, steps []step) {
	t.Helper()
	for _, c := range steps {
		t.Run(c.name, func(t *testing.T) {
			got := l.do(c.method, c.path, c.body)
			if got.status != c.status || got.body != c.want {
				t.Errorf("answered %d %s\nwant     %d %s", got.status, got.body, c.status, c.want)
			}
		})
	}
}

func TestCounters(t *testing.T) {
	const posts = "/v1/counters/posts/"
	// The tokens below contain group 1 and the number of the write.
	runSteps(t, startFakeServer(t, nil), []step{
		{"a row never written", "GET", posts + "5", "", 200,
			`{"id":"5","counts":{"repost":0,"comment":0,"like":0,"view":0}}`},
		{"increments in order, ids of both forms", "POST", posts + "incr",
			` {"ops" : [{"id":"5","add":{"like":2,"repost":-1}},{"add":{"like":-7},"id":5},{"id":18446744073709551615,"add":{"v\u0069ew":-9223372036854775808}}]}` + "\n", 200,
			`{"results":[{"id":"5","counts":{"repost":-1,"comment":0,"like":2,"view":0}},` +
				`{"id":"5","counts":{"repost":-1,"comment":0,"like":-5,"view":0}},` +
				`{"id":"18446744073709551615","counts":{"repost":0,"comment":0,"like":0,"view":-9223372036854775808}}],` +
				`"duplicate":false,"token":"AQAAAAABAQ"}`},
		{"a page, doubles kept, columns in the order asked", "POST", posts + "get",
			`{"columns":["view","like"],"ids":["5",0,5]}`, 200,
			`{"results":[{"id":"5","counts":{"view":0,"like":-5}},{"id":"0","counts":{"view":0,"like":0}},{"id":"5","counts":{"view":0,"like":-5}}]}`},
		{"put keeps the other columns", "PUT", posts + "5", `{"set":{"comment":9223372036854775807}}`, 200,
			`{"id":"5","counts":{"repost":-1,"comment":9223372036854775807,"like":-5,"view":0},"duplicate":false,"token":"AQAAAAABAg"}`},
		{"one op overflows", "POST", posts + "incr", `{"ops":[{"id":5,"add":{"like":1,"comment":1}},{"id":6,"add":{"like":1}}]}`, 200,
			`{"results":[{"id":"5","error":{"code":"overflow","message":"ops[0].add.comment: the sum is not a signed 64-bit integer","field":"ops[0].add.comment"}},` +
				`{"id":"6","counts":{"repost":0,"comment":0,"like":1,"view":0}}],"failed":1,"duplicate":false,"token":"AQAAAAABAw"}`},
		{"one op overflows, no results wanted", "POST", posts + "incr", `{"want":"none","ops":[{"id":6,"add":{"like":1}},{"id":5,"add":{"comment":1}}]}`, 200,
			`{"applied":1,"failed":1,"errors":[{"id":"5","error":{"code":"overflow","message":"ops[1].add.comment: the sum is not a signed 64-bit integer","field":"ops[1].add.comment"}}],` +
				`"duplicate":false,"token":"AQAAAAABBA"}`},
		{"floors", "POST", posts + "incr", `{"ops":[{"id":9,"add":{"like":2,"view":-1}},{"floor":0,"id":9,"add":{"like":-3,"view":-1,"repost":-1,"comment":4}},{"id":9,"add":{"repost":-9,"like":3},"floor":-5}]}`, 200,
			`{"results":[{"id":"9","counts":{"repost":0,"comment":0,"like":2,"view":-1}},` +
				`{"id":"9","counts":{"repost":0,"comment":4,"like":0,"view":-1},"added":{"like":-2,"view":0,"repost":0}},` +
				`{"id":"9","counts":{"repost":-5,"comment":4,"like":3,"view":-1},"added":{"repost":-5}}],"duplicate":false,"token":"AQAAAAABBQ"}`},
		{"floors, no results wanted", "POST", posts + "incr", `{"want":"none","ops":[{"id":9,"add":{"like":-5},"floor":0}]}`, 200,
			`{"applied":1,"duplicate":false,"token":"AQAAAAABBg"}`},
		{"the floored row goes", "DELETE", posts + "9", "", 200,
			`{"id":"9","counts":{"repost":0,"comment":0,"like":0,"view":0},"duplicate":false,"token":"AQAAAAABBw"}`},
		{"all ops overflow", "POST", posts + "incr", `{"ops":[{"id":5,"add":{"comment":1}},{"id":5,"add":{"comment":2}}]}`, 409,
			`{"error":{"code":"overflow","message":"ops[0].add.comment: the sum is not a signed 64-bit integer","field":"ops[0].add.comment"}}`},
		{"no results wanted", "POST", posts + "set", `{"ops":[{"id":"7","set":{"like":3}},{"id":"8","set":{"like":-0}}],"want":"none"}`, 200,
			`{"applied":2,"duplicate":false,"token":"AQAAAAABCQ"}`},
		{"set", "POST", posts + "set", `{"ops":[{"id":"7","set":{"view":1}}]}`, 200,
			`{"results":[{"id":"7","counts":{"repost":0,"comment":0,"like":3,"view":1}}],"duplicate":false,"token":"AQAAAAABCg"}`},
		{"scan, first page", "POST", posts + "scan", `{"limit":2,"columns":["like"]}`, 200,
			`{"results":[{"id":"5","counts":{"like":-5}},{"id":"6","counts":{"like":2}}],"next":"6","cursor":"6"}`},
		{"scan, last page by its cursor", "POST", posts + "scan", `{"limit":2,"cursor":"6","columns":["like"]}`, 200,
			`{"results":[{"id":"7","counts":{"like":3}},{"id":"18446744073709551615","counts":{"like":0}}],"next":null}`},
		{"scan, last page", "POST", posts + "scan", `{"limit":2,"after":"6","columns":["like"]}`, 200,
			`{"results":[{"id":"7","counts":{"like":3}},{"id":"18446744073709551615","counts":{"like":0}}],"next":null}`},
		{"scan that skips", "POST", posts + "scan?consistency=stale", `{"after":18446744073709551614,"columns":["like"],"skip_unreadable":true}`, 200,
			`{"results":[{"id":"18446744073709551615","counts":{"like":0}}],"unreadable_shards":[1,3],"next":null}`},
		{"scan that skips, of no stated consistency", "POST", posts + "scan", `{"limit":1000,"skip_unreadable":true,"cursor":"18446744073709551614","columns":["like"]}`, 200,
			`{"results":[{"id":"18446744073709551615","counts":{"like":0}}],"unreadable_shards":[1,3],"next":null}`},
		{"scan behind the end", "POST", posts + "scan", `{"after":18446744073709551615}`, 200, `{"results":[],"next":null}`},
		{"delete", "DELETE", posts + "5", "", 200,
			`{"id":"5","counts":{"repost":0,"comment":0,"like":0,"view":0},"duplicate":false,"token":"AQAAAAABCw"}`},
		{"delete of an absent row", "DELETE", posts + "5", "", 200,
			`{"id":"5","counts":{"repost":0,"comment":0,"like":0,"view":0},"duplicate":false,"token":"AQAAAAABDA"}`},
		{"encoded names", "GET", "/v1/counters/p%6Fsts/%37", "", 200,
			`{"id":"7","counts":{"repost":0,"comment":0,"like":3,"view":1}}`},
	})
}

func TestKeyspaces(t *testing.T) {
	runSteps(t, startFakeServer(t, nil), []step{
		{"create", "POST", "/v1/keyspaces", `{"name":"clips","columns":["play"]}`, 200,
			`{"name":"clips","kind":"counters","columns":["play"],"shards":1}`},
		{"create again", "POST", "/v1/keyspaces", `{"name":"clips","columns":["play"],"shards":1}`, 200,
			`{"name":"clips","kind":"counters","columns":["play"],"shards":1}`},
		{"create one with shards", "POST", "/v1/keyspaces", `{"name":"songs","columns":["play"],"shards":2}`, 200,
			`{"name":"songs","kind":"counters","columns":["play"],"shards":2}`},
		{"create it again without", "POST", "/v1/keyspaces", `{"name":"songs","columns":["play"]}`, 200,
			`{"name":"songs","kind":"counters","columns":["play"],"shards":2}`},
		{"create another of that name", "POST", "/v1/keyspaces", `{"name":"clips","columns":["play"],"shards":2}`, 409,
			`{"error":{"code":"keyspace_exists","message":"the keyspace exists with other columns, floors, shards, sharding or ids"}}`},
		{"create one with floors", "POST", "/v1/keyspaces", `{"name":"badges","columns":["a",{"name":"b","floor":0},{"floor":null,"name":"c"},{"name":"d"}],"shards":2}`, 200,
			`{"name":"badges","kind":"counters","columns":["a","b","c","d"],"shards":2,"floors":{"b":0}}`},
		{"create it again with others", "POST", "/v1/keyspaces", `{"name":"badges","columns":["a","b","c","d"],"shards":2}`, 409,
			`{"error":{"code":"keyspace_exists","message":"the keyspace exists with other columns, floors, shards, sharding or ids"}}`},
		{"change floors", "POST", "/v1/keyspaces/badges/columns", `{"columns":[{"name":"b","floor":null},{"name":"e","floor":-9223372036854775808},"a"]}`, 200,
			`{"name":"badges","kind":"counters","columns":["a","b","c","d","e"],"shards":2,"floors":{"e":-9223372036854775808}}`},
		{"create it again as it is spread", "POST", "/v1/keyspaces", `{"name":"clips","columns":["play"],"sharding":"modulo"}`, 200,
			`{"name":"clips","kind":"counters","columns":["play"],"shards":1}`},
		{"create it spread otherwise", "POST", "/v1/keyspaces", `{"name":"clips","columns":["play"],"sharding":"hash"}`, 409,
			`{"error":{"code":"keyspace_exists","message":"the keyspace exists with other columns, floors, shards, sharding or ids"}}`},
		{"add columns", "POST", "/v1/keyspaces/clips/columns", `{"columns":["play","skip"]}`, 200,
			`{"name":"clips","kind":"counters","columns":["play","skip"],"shards":1}`},
		{"use", "POST", "/v1/counters/clips/incr", `{"ops":[{"id":"1","add":{"skip":1}}],"want":"none"}`, 200,
			`{"applied":1,"duplicate":false,"token":"AQAAAAABAQ"}`},
		{"list", "GET", "/v1/keyspaces", "", 200,
			`{"keyspaces":[{"name":"badges","kind":"counters","columns":["a","b","c","d","e"],"shards":2,"floors":{"e":-9223372036854775808}},` +
				`{"name":"board","kind":"board","columns":[],"shards":1},` +
				`{"name":"clips","kind":"counters","columns":["play","skip"],"shards":1},` +
				`{"name":"feed","kind":"feed","columns":[],"shards":7},` +
				`{"name":"posts","kind":"counters","columns":["repost","comment","like","view"],"shards":7},` +
				`{"name":"songs","kind":"counters","columns":["play"],"shards":2},` +
				`{"name":"unread","kind":"unread","columns":["at","comment","like","dm"],"shards":7,"floors":{"at":0,"comment":0,"dm":0,"like":0}},` +
				`{"name":"users","kind":"counters","columns":["posts","followers","following"],"shards":7}]}`},
	})
}

// TestReadOptions checks that the read options in the headers and the query reach the backend.
func TestReadOptions(t *testing.T) {
	l := startFakeServer(t, nil)
	made := shard.Token{Cluster: 7, At: []shard.GroupIndex{{Group: 3, Index: 77}}}
	token := string(made.AppendText(nil))
	for _, c := range []struct {
		name, query string
		headers     []string
		want        shard.ReadOptions
		timeout     time.Duration
	}{
		{"none", "", nil, shard.ReadOptions{}, 5 * time.Second},
		{"query", "?consistency=bounded&max_staleness=250ms", nil, shard.ReadOptions{MaxStaleness: 250 * time.Millisecond}, 5 * time.Second},
		{"headers", "", []string{"consistency", "bounded", "max_staleness", "2s"}, shard.ReadOptions{MaxStaleness: 2 * time.Second}, 5 * time.Second},
		{"stale", "?consistency=stale", nil, shard.ReadOptions{Consistency: shard.Stale}, 5 * time.Second},
		{"headers that proxies pass", "", []string{"Countd-Consistency", "bounded", "Countd-Max-Staleness", "2s"}, shard.ReadOptions{MaxStaleness: 2 * time.Second}, 5 * time.Second},
		{"query before headers that proxies pass", "?consistency=linearizable", []string{"Countd-Consistency", "stale"}, shard.ReadOptions{Consistency: shard.Linearizable}, 5 * time.Second},
		{"staleness of a stale read", "?consistency=stale&max_staleness=2s", nil, shard.ReadOptions{Consistency: shard.Stale}, 5 * time.Second},
		{"staleness of a linearizable read", "?consistency=linearizable", []string{"max_staleness", "2s"}, shard.ReadOptions{Consistency: shard.Linearizable}, 5 * time.Second},
		{"query before header", "?consistency=linearizable", []string{"consistency", "stale"}, shard.ReadOptions{Consistency: shard.Linearizable}, 5 * time.Second},
		{"token and timeout", "", []string{"Countd-Token", token, "Countd-Timeout", "60s"}, shard.ReadOptions{Token: made}, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := time.Now()
			got := l.do("GET", "/v1/counters/posts/1"+c.query, "", c.headers...)
			after := time.Now()
			if got.status != 200 {
				t.Fatalf("answered %d %s", got.status, got.body)
			}
			opt := l.node.lastReadOptions()
			if opt.Consistency != c.want.Consistency || opt.MaxStaleness != c.want.MaxStaleness ||
				opt.Token.Cluster != c.want.Token.Cluster || opt.Token.Index(3) != c.want.Token.Index(3) {
				t.Errorf("read with %+v, want %+v", opt, c.want)
			}
			if opt.Deadline.Before(before.Add(c.timeout)) || opt.Deadline.After(after.Add(c.timeout)) {
				t.Errorf("deadline in %v, want %v", opt.Deadline.Sub(before), c.timeout)
			}
		})
	}
}
