package api

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

const likes = "/v1/members/posts/like"

// joined returns an op in JSON, by which a member joins a row's set or, if the parameter set is
// false, leaves it.
func joined(id, member string, set bool) string {
	return fmt.Sprintf(`{"id":%q,"member":%q,"set":%v}`, id, member, set)
}

func opsOf(ops ...string) string { return `{"ops":[` + strings.Join(ops, ",") + `]}` }

// A member counts once, even if several ops of a request are on the same member.
func TestMembers(t *testing.T) { testMembers(t, startFakeServer(t, nil)) }

func testMembers(t *testing.T, l *fakeServer) {
	result := func(id, member string, changed bool, count int) string {
		return fmt.Sprintf(`{"id":%q,"member":%q,"changed":%v,"count":%d}`, id, member, changed, count)
	}
	l.want(200, `{"results":[`+strings.Join([]string{result("1", "7", true, 1), result("1", "7", false, 1), result("1", "8", true, 2),
		result("2", "7", true, 1), result("1", "7", false, 2), result("1", "8", false, 2)}, ",")+`],"duplicate":false,"token":"TOKEN"}`,
		"POST", likes, opsOf(joined("1", "7", true), joined("1", "7", true), joined("1", "8", true), joined("2", "7", true),
			`{"set":true,"member":7,"id":1}`, `{"member":"8","set":true,"id":1}`))
	l.want(200, `{"results":[`+result("1", "8", true, 1)+`,`+result("1", "8", false, 1)+`,`+result("3", "18446744073709551615", true, 1)+`],"duplicate":false,"token":"TOKEN"}`,
		"POST", likes, opsOf(joined("1", "8", false), joined("1", "8", false), joined("3", "18446744073709551615", true)))
	l.want(200, `{"applied":1,"duplicate":false,"token":"TOKEN"}`, "POST", likes, `{"want":"none","ops":[`+joined("1", "9", true)+`]}`)

	l.want(200, `{"results":[true,true,false,true]}`, "POST", likes+"/check?consistency=linearizable", `{"member":"7","ids":["1",2,"3","1"]}`)
	l.want(200, `{"results":[false]}`, "POST", "/v1/members/posts/view/check", `{"ids":[1],"member":7}`)
	l.want(200, `{"results":[{"id":"1","counts":{"like":2},"member":{"like":true}},{"id":"9","counts":{"like":0},"member":{"like":false}}]}`,
		"POST", "/v1/counters/posts/get?consistency=linearizable", `{"ids":["1","9"],"columns":["like"],"member":"7"}`)
	l.want(200, `{"results":[{"id":"2","counts":{"repost":0,"comment":0,"like":1,"view":0},"member":{"repost":false,"comment":false,"like":true,"view":false}}]}`,
		"POST", "/v1/counters/posts/get?consistency=linearizable", `{"member":7,"ids":["2"]}`)
	l.want(200, `{"results":[{"id":"2","counts":{"like":1}}]}`, "POST", "/v1/counters/posts/get", `{"ids":["2"],"columns":["like"]}`)
}

// memberPage is an answer of listMembers or listSets.
type memberPage struct {
	ID      string
	Member  string
	Count   *int64
	Members []struct{ Member, At string }
	IDs     []struct{ ID, At string }
	Cursor  *string
	Lag     *int `json:"lag_ms"`
}

func (l *fakeServer) page(path string) (p memberPage) {
	l.t.Helper()
	got := l.do("GET", path, "")
	if err := json.Unmarshal([]byte(got.body), &p); err != nil || got.status != 200 {
		l.t.Fatalf("GET %s is answered %d %s", path, got.status, got.body)
	}
	return p
}

// Lists are newest first. A cursor is stable: the next page begins after the cursor's entry, even
// if members have joined or left in between.
func TestMemberLists(t *testing.T) { testMemberLists(t, startFakeServer(t, nil)) }

func testMemberLists(t *testing.T, l *fakeServer) {
	for member := range 7 { // all rows are on one shard, so the joins have an order
		l.do("POST", likes, opsOf(joined("1", strconv.Itoa(member), true), joined(strconv.Itoa(8+7*member), "3", true)))
	}
	p := l.page(likes + "/1?limit=3&consistency=linearizable")
	got := []string{}
	for _, m := range p.Members {
		got = append(got, m.Member)
		if at, err := time.Parse(time.RFC3339, m.At); err != nil || !strings.HasSuffix(m.At, "Z") || at.Before(time.Unix(1e9, 0)) {
			t.Errorf("at is %s: %v", m.At, err)
		}
	}
	if fmt.Sprint(got) != "[6 5 4]" || p.ID != "1" || *p.Count != 7 || p.Cursor == nil {
		t.Fatalf("the first page is %+v", p)
	}
	l.do("POST", likes, opsOf(joined("1", "99", true), joined("1", "4", false), joined("1", "6", false), joined("1", "2", false)))
	p = l.page(likes + "/1?limit=3&cursor=" + *p.Cursor)
	if len(p.Members) != 3 || p.Members[0].Member != "3" || p.Members[2].Member != "0" || p.Cursor != nil || *p.Count != 5 {
		t.Fatalf("the second page is %+v", p)
	}

	p = l.page(likes + "/of/3?limit=5&consistency=linearizable")
	if p.Member != "3" || *p.Lag != 0 || len(p.IDs) != 5 || p.IDs[0].ID != "50" || p.IDs[4].ID != "1" || p.Cursor == nil {
		t.Fatalf("what 3 likes is %+v", p)
	}
	p = l.page(likes + "/of/3?cursor=" + *p.Cursor)
	if len(p.IDs) != 3 || p.IDs[0].ID != "22" || p.IDs[2].ID != "8" || p.Cursor != nil {
		t.Fatalf("the rest of what 3 likes is %+v", p)
	}
	l.want(200, `{"id":"77","count":0,"members":[]}`, "GET", likes+"/77", "")
	l.want(200, `{"member":"77","ids":[],"lag_ms":0}`, "GET", likes+"/of/77", "")
}

// The count is an ordinary counter: it keeps deltas that were added without members.
func TestMembersBesideCounts(t *testing.T) { testMembersBesideCounts(t, startFakeServer(t, nil)) }

func testMembersBesideCounts(t *testing.T, l *fakeServer) {
	const posts = "/v1/counters/posts"
	l.do("PUT", posts+"/1", `{"set":{"like":1000}}`)
	l.want(200, `{"results":[{"id":"1","member":"7","changed":true,"count":1001}],"duplicate":false,"token":"TOKEN"}`, "POST", likes, opsOf(joined("1", "7", true)))
	l.want(200, `{"results":[{"id":"1","member":"8","changed":false,"count":1001}],"duplicate":false,"token":"TOKEN"}`, "POST", likes, opsOf(joined("1", "8", false)))

	l.want(200, `{"results":[{"id":"1","member":"9","changed":true,"count":1001},{"id":"1","member":"7","changed":false,"count":1001}],"duplicate":false,"token":"TOKEN"}`,
		"POST", likes, `{"counted":false,"ops":[`+joined("1", "9", true)+`,`+joined("1", "7", true)+`]}`)
	l.want(200, `{"results":[{"id":"1","member":"9","changed":true,"count":1000}],"duplicate":false,"token":"TOKEN"}`, "POST", likes, opsOf(joined("1", "9", false)))

	most := strconv.FormatInt(math.MaxInt64, 10)
	l.do("PUT", posts+"/2", `{"set":{"like":`+most+`}}`)
	l.want(200, `{"results":[{"id":"2","member":"7","error":{"code":"overflow","message":"ops[0].set: the sum is not a signed 64-bit integer","field":"ops[0].set"}},`+
		`{"id":"3","member":"7","changed":true,"count":1}],"failed":1,"duplicate":false,"token":"TOKEN"}`,
		"POST", likes, opsOf(joined("2", "7", true), joined("3", "7", true)))
	wantFault(t, l.do("POST", likes, opsOf(joined("2", "7", true))), 409, "overflow", "ops[0].set")
	l.want(200, `{"results":[false,true]}`, "POST", likes+"/check?consistency=linearizable", `{"member":"7","ids":["2","3"]}`)
}

// A request applies its ops in order, with and without members.
func TestMembersAmongOps(t *testing.T) { testMembersAmongOps(t, startFakeServer(t, nil)) }

func testMembersAmongOps(t *testing.T, l *fakeServer) {
	const row = `"counts":{"repost":0,"comment":0,"like":`
	l.want(200, `{"results":[{"id":"1","member":"7","changed":true,"count":1},{"id":"1",`+row+`3,"view":0}},{"id":"1","member":"7","changed":false,"count":3},`+
		`{"user":"9","counts":{"at":0,"comment":0,"like":1,"dm":0}},{"id":"1","member":"7","changed":true,"count":2}],"duplicate":false,"token":"TOKEN"}`,
		"POST", "/v1/ops", `{"ops":[{"keyspace":"posts","column":"like","id":"1","member":"7","set":true},{"keyspace":"posts","id":"1","add":{"like":2}},`+
			`{"set":true,"member":7,"id":1,"column":"li\u006be","keyspace":"posts"},{"user":"9","add":{"like":1}},{"column":"like","keyspace":"posts","id":"1","member":"7","set":false}]}`)
	l.want(200, `{"results":[{"id":"5","member":"7","changed":true,"count":1},{"id":"5","member":"7","changed":true,"count":1}],"duplicate":false,"token":"TOKEN"}`,
		"POST", "/v1/ops", `{"ops":[{"keyspace":"users","column":"followers","id":"5","member":"7","set":true},{"keyspace":"posts","column":"view","id":"5","member":"7","set":true}]}`)
}

func TestBadMembers(t *testing.T) {
	l := startFakeServer(t, nil)
	const check, ops = likes + "/check", "/v1/ops"
	many := func(n int) string {
		return opsOf(strings.Repeat(joined("1", "7", true)+",", n-1) + joined("1", "7", true))
	}
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code, field              string
	}{
		{"empty", "POST", likes, ``, 400, "invalid_argument", "body"},
		{"no ops", "POST", likes, `{"ops":[]}`, 400, "invalid_argument", "ops"},
		{"10,001 ops", "POST", likes, many(10_001), 400, "invalid_argument", "ops"},
		{"unknown field", "POST", likes, `{"ops":[{"id":1,"member":7,"set":true,"at":1}]}`, 400, "invalid_argument", "ops[0].at"},
		{"unknown field of the body", "POST", likes, `{"ops":[{"id":1,"member":7,"set":true}],"member":7}`, 400, "invalid_argument", "member"},
		{"column in the body too", "POST", likes, `{"ops":[{"id":1,"member":7,"set":true,"column":"like"}]}`, 400, "invalid_argument", "ops[0].column"},
		{"no id", "POST", likes, `{"ops":[{"member":7,"set":true}]}`, 400, "invalid_argument", "ops[0].id"},
		{"no member", "POST", likes, `{"ops":[{"id":1,"set":true}]}`, 400, "invalid_argument", "ops[0].member"},
		{"no set", "POST", likes, `{"ops":[{"id":1,"member":7}]}`, 400, "invalid_argument", "ops[0].set"},
		{"bad id", "POST", likes, `{"ops":[{"id":"x","member":7,"set":true}]}`, 400, "invalid_argument", "ops[0].id"},
		{"bad member", "POST", likes, `{"ops":[{"id":1,"member":7,"set":true},{"id":1,"member":"-7","set":true}]}`, 400, "invalid_argument", "ops[1].member"},
		{"member 2^64", "POST", likes, `{"ops":[{"id":1,"member":18446744073709551616,"set":true}]}`, 400, "invalid_argument", "ops[0].member"},
		{"set an object", "POST", likes, `{"ops":[{"id":1,"member":7,"set":{"like":1}}]}`, 400, "invalid_argument", "ops[0].set"},
		{"set null", "POST", likes, `{"ops":[{"id":1,"member":7,"set":null}]}`, 400, "invalid_argument", "ops[0].set"},
		{"id twice", "POST", likes, `{"ops":[{"id":1,"id":1,"member":7,"set":true}]}`, 400, "invalid_argument", "ops[0].id"},
		{"set twice", "POST", likes, `{"ops":[{"id":1,"set":true,"member":7,"set":true}]}`, 400, "invalid_argument", "ops[0].set"},
		{"add", "POST", likes, `{"ops":[{"id":1,"add":{"like":1}}]}`, 400, "invalid_argument", "ops[0].add"},
		{"want other", "POST", likes, `{"ops":[` + joined("1", "7", true) + `],"want":"all"}`, 400, "invalid_argument", "want"},
		{"unknown column", "POST", "/v1/members/posts/likes", opsOf(joined("1", "7", true)), 400, "invalid_argument", "column"},
		{"unknown column of a check", "POST", "/v1/members/posts/likes/check", `{"member":7,"ids":[1]}`, 400, "invalid_argument", "column"},
		{"unknown column of a list", "GET", "/v1/members/posts/likes/1", ``, 400, "invalid_argument", "column"},
		{"unknown keyspace", "POST", "/v1/members/nope/like", opsOf(joined("1", "7", true)), 404, "unknown_keyspace", ""},
		{"unread numbers", "POST", "/v1/members/unread/like", opsOf(joined("1", "7", true)), 404, "unknown_keyspace", ""},
		{"notices", "GET", "/v1/members/board/like/1", ``, 404, "unknown_keyspace", ""},
		{"feeds", "GET", "/v1/members/feed/like/of/1", ``, 404, "unknown_keyspace", ""},

		{"counted no boolean", "POST", likes, `{"counted":0,"ops":[{"id":1,"member":7,"set":true}]}`, 400, "invalid_argument", "counted"},
		{"a leave that does not count", "POST", likes, `{"ops":[{"id":1,"member":7,"set":true},{"id":1,"member":7,"set":false}],"counted":false}`, 400, "invalid_argument", "ops[1].set"},
		{"counted of an incr", "POST", "/v1/counters/posts/incr", `{"ops":[{"id":1,"add":{"like":1}}],"counted":true}`, 400, "invalid_argument", "counted"},
		{"no ids", "POST", check, `{"member":7}`, 400, "invalid_argument", "ids"},
		{"ids empty", "POST", check, `{"member":7,"ids":[]}`, 400, "invalid_argument", "ids"},
		{"1,001 ids", "POST", check, `{"member":7,"ids":[` + strings.Repeat("1,", 1000) + `1]}`, 400, "invalid_argument", "ids"},
		{"bad id of a check", "POST", check, `{"member":7,"ids":[1,-1]}`, 400, "invalid_argument", "ids[1]"},
		{"no member to check", "POST", check, `{"ids":[1]}`, 400, "invalid_argument", "member"},
		{"member null", "POST", check, `{"ids":[1],"member":null}`, 400, "invalid_argument", "member"},
		{"members to check", "POST", check, `{"ids":[1],"members":[7]}`, 400, "invalid_argument", "members"},
		{"bad member of counts", "POST", "/v1/counters/posts/get", `{"ids":[1],"member":"x"}`, 400, "invalid_argument", "member"},
		{"member of a scan", "POST", "/v1/counters/posts/scan", `{"member":7}`, 400, "invalid_argument", "member"},

		{"id of a list", "GET", likes + "/x", ``, 400, "invalid_argument", "id"},
		{"no member of a list", "GET", likes + "/of", ``, 400, "invalid_argument", "id"},
		{"member of a list", "GET", likes + "/of/-7", ``, 400, "invalid_argument", "member"},
		{"limit 0", "GET", likes + "/1?limit=0", ``, 400, "invalid_argument", "limit"},
		{"limit 1,001", "GET", likes + "/of/1?limit=1001", ``, 400, "invalid_argument", "limit"},
		{"limit twice", "GET", likes + "/1?limit=1&limit=1", ``, 400, "invalid_argument", "limit"},
		{"limit of a word", "GET", likes + "/1?limit=ten", ``, 400, "invalid_argument", "limit"},
		{"cursor", "GET", likes + "/1?cursor=7", ``, 400, "invalid_argument", "cursor"},
		{"cursor empty", "GET", likes + "/of/1?cursor=", ``, 400, "invalid_argument", "cursor"},
		{"cursor twice", "GET", likes + "/of/1?cursor=AAAAAAAAAAAAAAAAAAA&cursor=AAAAAAAAAAAAAAAAAAA", ``, 400, "invalid_argument", "cursor"},
		{"cursor of a check", "POST", check + "?cursor=AAAAAAAAAAAAAAAAAAA", `{"member":7,"ids":[1]}`, 400, "invalid_argument", "cursor"},
		{"since", "GET", likes + "/1?since=1", ``, 400, "invalid_argument", "since"},
		{"body of a list", "GET", likes + "/1", `{}`, 400, "invalid_argument", "body"},
		{"GET of the ops", "GET", likes, ``, 405, "method_not_allowed", ""},
		{"GET of a check", "GET", check, ``, 405, "method_not_allowed", ""},
		{"DELETE of a member", "DELETE", likes + "/1", ``, 405, "method_not_allowed", ""},
		{"deeper", "GET", likes + "/1/7", ``, 404, "not_found", ""},
		{"no column", "POST", "/v1/members/posts", `{}`, 404, "not_found", ""},
		{"an empty column", "POST", "/v1/members/posts/", `{}`, 404, "not_found", ""},
		{"trailing slash", "GET", likes + "/of/1/", ``, 404, "not_found", ""},

		{"op without a column", "POST", ops, `{"ops":[{"keyspace":"posts","id":1,"member":7,"set":true}]}`, 400, "invalid_argument", "ops[0].column"},
		{"op without a member", "POST", ops, `{"ops":[{"keyspace":"posts","id":1,"column":"like","set":true}]}`, 400, "invalid_argument", "ops[0].member"},
		{"op without set", "POST", ops, `{"ops":[{"keyspace":"posts","id":1,"column":"like","member":1}]}`, 400, "invalid_argument", "ops[0].set"},
		{"op of an unknown column", "POST", ops, `{"ops":[{"column":"likes","keyspace":"posts","id":1,"member":1,"set":true}]}`, 400, "invalid_argument", "ops[0].column"},
		{"op of unread numbers", "POST", ops, `{"ops":[{"user":1,"column":"like","member":1,"set":true}]}`, 400, "invalid_argument", "ops[0].member"},
		{"op of a user of a keyspace", "POST", ops, `{"ops":[{"keyspace":"posts","user":1,"column":"like","member":1,"set":true}]}`, 400, "invalid_argument", "ops[0].user"},
		{"op without a keyspace", "POST", ops, `{"ops":[{"id":1,"column":"like","member":1,"set":true}]}`, 400, "invalid_argument", "ops[0].keyspace"},
		{"op with both", "POST", ops, `{"ops":[{"keyspace":"posts","id":1,"column":"like","member":1,"set":true,"add":{"like":1}}]}`, 400, "invalid_argument", "ops[0].add"},
		{"op with both sets", "POST", ops, `{"ops":[{"keyspace":"posts","id":1,"column":"like","member":1,"set":true,"set":{"like":1}}]}`, 400, "invalid_argument", "ops[0].set"},
		{"op with a floor", "POST", ops, `{"ops":[{"keyspace":"posts","id":1,"column":"like","member":1,"set":false,"floor":0}]}`, 400, "invalid_argument", "ops[0].floor"},
		{"column of a row", "POST", ops, `{"ops":[{"keyspace":"posts","id":1,"column":"like","add":{"like":1}}]}`, 400, "invalid_argument", "ops[0].add"},
		{"op of feeds", "POST", ops, `{"ops":[{"keyspace":"feed","id":1,"column":"like","member":1,"set":true}]}`, 400, "invalid_argument", "ops[0].keyspace"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantFault(t, l.do(c.method, c.path, c.body), c.status, c.code, c.field)
		})
	}
	if l.node.mu.writes != 0 {
		t.Errorf("%d writes reached the backend", l.node.mu.writes)
	}
	l.want(200, `{"results":[false]}`, "POST", check, `{"member":"7","ids":["1"]}`)
}

// A request for counts that also asks for a member reads a bounded number of sets.
func TestLookupsAreBounded(t *testing.T) {
	l := startFakeServer(t, nil)
	columns, ids := []string{}, strings.Repeat("1,", 999)+"1"
	for i := range 11 {
		columns = append(columns, fmt.Sprintf("c%d", i))
	}
	l.do("POST", "/v1/keyspaces", `{"name":"wide","columns":["`+strings.Join(columns, `","`)+`"]}`)
	wantFault(t, l.do("POST", "/v1/counters/wide/get", `{"member":7,"ids":[`+ids+`]}`), 400, "invalid_argument", "member")
	for _, body := range []string{`{"ids":[` + ids + `]}`, `{"member":7,"columns":["c0","c9"],"ids":[` + ids + `]}`} {
		if got := l.do("POST", "/v1/counters/wide/get", body); got.status != 200 {
			t.Errorf("answered %d %.200s", got.status, got.body)
		}
	}
}

// An idempotency key applies to one column only.
func TestMemberKeysAreOfTheirColumn(t *testing.T) {
	l := startFakeServer(t, nil)
	ids := map[string]string{}
	for _, path := range []string{likes, "/v1/members/posts/view", "/v1/members/users/posts"} {
		l.do("POST", path, opsOf(joined("1", "7", true)), "Idempotency-Key", "k")
		id := fmt.Sprintf("%+v", l.node.mu.lastKey)
		if before, is := ids[id]; is {
			t.Errorf("%s has the identity of %s", path, before)
		}
		ids[id] = path
	}
}

func TestUnavailableMembers(t *testing.T) {
	l := startFakeServer(t, nil)
	for _, c := range []struct {
		fault, suffix string
		status        int
	}{
		{"no_leader", `,"applied":[],"unknown":[],"applied_ops":[],"unknown_ops":[]}`, 503},
		{"outcome_unknown", `,"applied":[],"unknown":["1","1"],"applied_ops":[],"unknown_ops":[0,1]}`, 504},
		{"overloaded", `"}}`, 429},
	} {
		l.node.setFault(c.fault)
		got := l.do("POST", likes, opsOf(joined("1", "7", true), joined("1", "8", true)))
		if got.status != c.status || !strings.HasSuffix(got.body, c.suffix) {
			t.Errorf("%s: answered %d %s, want %d …%s", c.fault, got.status, got.body, c.status, c.suffix)
		}
		for _, path := range []string{likes + "/1", likes + "/of/1"} {
			if got := l.do("GET", path, ""); (got.status != c.status) || strings.Contains(got.body, "applied") {
				t.Errorf("%s: %s is answered %d %s", c.fault, path, got.status, got.body)
			}
		}
		if got := l.do("POST", likes+"/check", `{"member":"7","ids":["1"]}`); got.status != c.status {
			t.Errorf("%s: a check is answered %d %s", c.fault, got.status, got.body)
		}
	}
	l.node.setFault("memory_full_op_1")
	wantFault(t, l.do("POST", likes, opsOf(joined("1", "7", true), joined("2", "8", true))), 503, "memory_full", "ops[1].id")
	l.node.setFault("repeated_in_part")
	l.want(200, `{"results":[{"id":"1","member":"7","changed":false,"count":0}],"unknown":["1"],"duplicate":true,"token":"TOKEN"}`, "POST", likes, opsOf(joined("1", "7", true)))
}
