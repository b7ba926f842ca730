package api

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

// wantFault checks an answer's status, code and field.
func wantFault(t *testing.T, got reply, status int, code, field string) {
	t.Helper()
	var body struct {
		Error struct{ Code, Message, Field string }
	}
	if err := json.Unmarshal([]byte(got.body), &body); err != nil {
		t.Fatalf("answer %d %q is not JSON: %v", got.status, got.body, err)
	}
	if got.status != status || body.Error.Code != code || body.Error.Field != field {
		t.Errorf("answered %d %s\nwant %d, code %s, field %q", got.status, got.body, status, code, field)
	}
	if body.Error.Message == "" || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("no message or not JSON: %v %s", got.header, got.body)
	}
}

func manyOps(n int) string {
	return `{"ops":[` + strings.Repeat(`{"id":1,"add":{"like":1}},`, n-1) + `{"id":1,"add":{"like":1}}]}`
}

func TestBadBodies(t *testing.T) {
	l := startFakeServer(t, nil)
	const incr, get = "/v1/counters/posts/incr", "/v1/counters/posts/get"
	for _, c := range []struct{ name, path, body, field string }{
		{"empty", incr, ``, "body"},
		{"broken", incr, `{"ops":[{"id":1,"add":{"like":1}`, "body"},
		{"not JSON", incr, `like=1`, "body"},
		{"an array", incr, `[]`, "body"},
		{"null", incr, `null`, "body"},
		{"trailing garbage", incr, manyOps(1) + `x`, "body"},
		{"two bodies", incr, manyOps(1) + manyOps(1), "body"},
		{"trailing comma", incr, `{"ops":[{"id":1,"add":{"like":1}},]}`, "body"},
		{"NUL byte", incr, "{\x00}", "body"},
		{"control character", incr, "{\"o\nps\":[]}", "body"},
		{"bad escape", incr, `{"o\qps":[]}`, "body"},
		{"lone surrogate", incr, `{"\ud800":[]}`, "body"},
		{"bad UTF-8", incr, "{\"\xff\":[]}", "body"},
		{"byte order mark", incr, "\xef\xbb\xbf" + manyOps(1), "body"},
		{"unknown field", incr, `{"ops":[{"id":1,"add":{"like":1}}],"dry":true}`, "dry"},
		{"unknown field of an op", incr, `{"ops":[{"id":1,"sub":{"like":1}}]}`, "ops[0].sub"},
		{"empty name", incr, `{"":1}`, `""`},
		{"empty name in an op", incr, `{"ops":[{"id":1,"":1}]}`, `ops[0].""`},
		{"empty column", incr, `{"ops":[{"id":1,"add":{"":1}}]}`, `ops[0].add.""`},
		{"field of another case", incr, `{"Ops":[]}`, "Ops"},
		{"no ops", incr, `{}`, "ops"},
		{"ops null", incr, `{"ops":null}`, "ops"},
		{"ops empty", incr, `{"ops":[]}`, "ops"},
		{"ops twice", incr, `{"ops":[{"id":1,"add":{"like":1}}],"ops":[]}`, "ops"},
		{"op null", incr, `{"ops":[null]}`, "ops[0]"},
		{"op empty", incr, `{"ops":[{}]}`, "ops[0].id"},
		{"no add", incr, `{"ops":[{"id":1}]}`, "ops[0].add"},
		{"add empty", incr, `{"ops":[{"id":1,"add":{}}]}`, "ops[0].add"},
		{"add null", incr, `{"ops":[{"id":1,"add":null}]}`, "ops[0].add"},
		{"id twice", incr, `{"ops":[{"id":1,"id":1,"add":{"like":1}}]}`, "ops[0].id"},
		{"id twice, once escaped", incr, `{"ops":[{"id":1,"\u0069d":1,"add":{"like":1}}]}`, "ops[0].id"},
		{"add twice", incr, `{"ops":[{"id":1,"add":{"like":1},"add":{"like":1}}]}`, "ops[0].add"},
		{"column twice", incr, `{"ops":[{"id":1,"add":{"like":1,"like":1}}]}`, "ops[0].add.like"},
		{"want twice", incr, `{"want":"none","want":"none","ops":[{"id":1,"add":{"like":1}}]}`, "want"},
		{"want other", incr, `{"want":"all","ops":[{"id":1,"add":{"like":1}}]}`, "want"},
		{"want null", incr, `{"want":null,"ops":[{"id":1,"add":{"like":1}}]}`, "want"},
		{"unknown column", incr, `{"ops":[{"id":1,"add":{"likes":1}}]}`, "ops[0].add.likes"},
		{"delta 2^63", incr, `{"ops":[{"id":1,"add":{"like":9223372036854775808}}]}`, "ops[0].add.like"},
		{"delta below -2^63", incr, `{"ops":[{"id":1,"add":{"like":-9223372036854775809}}]}`, "ops[0].add.like"},
		{"delta a string", incr, `{"ops":[{"id":1,"add":{"like":"1"}}]}`, "ops[0].add.like"},
		{"delta null", incr, `{"ops":[{"id":1,"add":{"like":null}}]}`, "ops[0].add.like"},
		{"delta 1.0", incr, `{"ops":[{"id":1,"add":{"like":1.0}}]}`, "ops[0].add.like"},
		{"delta 1e3", incr, `{"ops":[{"id":1,"add":{"like":1e3}}]}`, "ops[0].add.like"},
		{"delta 01", incr, `{"ops":[{"id":1,"add":{"like":01}}]}`, "ops[0].add.like"},
		{"delta +1", incr, `{"ops":[{"id":1,"add":{"like":+1}}]}`, "ops[0].add.like"},
		{"delta of a minus", incr, `{"ops":[{"id":1,"add":{"like":-}}]}`, "ops[0].add.like"},
		{"delta NaN", incr, `{"ops":[{"id":1,"add":{"like":NaN}}]}`, "ops[0].add.like"},
		{"third op bad", incr, `{"ops":[{"id":1,"add":{"like":1}},{"id":2,"add":{"like":1}},{"id":"x","add":{"like":1}}]}`, "ops[2].id"},
		{"floor twice", incr, `{"ops":[{"id":1,"floor":0,"add":{"like":-1},"floor":0}]}`, "ops[0].floor"},
		{"floor null", incr, `{"ops":[{"id":1,"floor":null,"add":{"like":-1}}]}`, "ops[0].floor"},
		{"floor 2^63", incr, `{"ops":[{"id":1,"add":{"like":-1},"floor":9223372036854775808}]}`, "ops[0].floor"},
		{"floor of a set", "/v1/counters/posts/set", `{"ops":[{"id":1,"set":{"like":-1},"floor":0}]}`, "ops[0].floor"},
		{"10,001 ops", incr, manyOps(10_001), "ops"},
		{"a set in incr", incr, `{"ops":[{"id":1,"set":{"like":1}}]}`, "ops[0].set"},
		{"100,000 levels of arrays", incr, strings.Repeat("[", 100_000), "body"},
		{"100,000 levels under ops", incr, `{"ops":` + strings.Repeat("[", 100_000), "ops[0]"},
		{"100,000 levels of objects", incr, `{"ops":[{"id":` + strings.Repeat(`{"a":`, 100_000), "ops[0].id"},
		{"100,000 levels balanced", get, `{"ids":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`, "ids[0]"},
		{"8 MiB of white space", incr, strings.Repeat(" ", 8<<20), "body"},

		{"add before its keyspace, no such column", "/v1/ops", `{"ops":[{"add":{"like":1},"id":1,"keyspace":"users"}]}`, "ops[0].add.like"},
		{"add before its keyspace, no number", "/v1/ops", `{"ops":[{"add":{"like":"1"},"id":1,"keyspace":"posts"}]}`, "ops[0].add.like"},
		{"add and set", "/v1/ops", `{"ops":[{"keyspace":"posts","id":1,"add":{"like":1},"set":{"like":1}}]}`, "ops[0].set"},
		{"id and user", "/v1/ops", `{"ops":[{"keyspace":"posts","id":1,"user":1,"add":{"like":1}}]}`, "ops[0].user"},
		{"neither id nor user", "/v1/ops", `{"ops":[{"keyspace":"posts","add":{"like":1}}]}`, "ops[0].id"},
		{"neither add nor set", "/v1/ops", `{"ops":[{"user":1}]}`, "ops[0].add"},
		{"set of a user", "/v1/ops", `{"ops":[{"user":1,"set":{"like":1}}]}`, "ops[0].set"},
		{"floor of a set among ops", "/v1/ops", `{"ops":[{"keyspace":"posts","id":1,"set":{"like":1},"floor":0}]}`, "ops[0].floor"},
		{"id of unread numbers", "/v1/ops", `{"ops":[{"keyspace":"unread","id":1,"add":{"like":1}}]}`, "ops[0].id"},
		{"keyspace twice", "/v1/ops", `{"ops":[{"keyspace":"posts","keyspace":"posts","id":1,"add":{"like":1}}]}`, "ops[0].keyspace"},
		{"no ops on anything", "/v1/ops", `{}`, "ops"},
		{"no ids", get, `{}`, "ids"},
		{"ids empty", get, `{"ids":[]}`, "ids"},
		{"ids null", get, `{"ids":null}`, "ids"},
		{"1,001 ids", get, `{"ids":[` + strings.Repeat("1,", 1000) + `1]}`, "ids"},
		{"columns empty", get, `{"ids":[1],"columns":[]}`, "columns"},
		{"columns unknown", get, `{"ids":[1],"columns":["like","x"]}`, "columns[1]"},
		{"columns twice", get, `{"ids":[1],"columns":["like","like"]}`, "columns[1]"},
		{"columns of a number", get, `{"ids":[1],"columns":[1]}`, "columns[0]"},

		{"limit 0", "/v1/counters/posts/scan", `{"limit":0}`, "limit"},
		{"limit 10,001", "/v1/counters/posts/scan", `{"limit":10001}`, "limit"},
		{"skip of a bounded scan", "/v1/counters/posts/scan?consistency=bounded", `{"skip_unreadable":true}`, "skip_unreadable"},
		{"skip no boolean", "/v1/counters/posts/scan?consistency=stale", `{"skip_unreadable":1}`, "skip_unreadable"},
		{"after null", "/v1/counters/posts/scan", `{"after":null}`, "after"},
		{"cursor null", "/v1/counters/posts/scan", `{"cursor":null}`, "cursor"},
		{"cursor empty", "/v1/counters/posts/scan", `{"cursor":""}`, "cursor"},
		{"cursor and after", "/v1/counters/posts/scan", `{"after":"1","cursor":"1"}`, "cursor"},
		{"no name", "/v1/keyspaces", `{"columns":["a"]}`, "name"},
		{"bad name", "/v1/keyspaces", `{"name":"1x","columns":["a"]}`, "name"},
		{"no columns", "/v1/keyspaces", `{"name":"x"}`, "columns"},
		{"column of a number", "/v1/keyspaces", `{"name":"x","columns":["a",7]}`, "columns[1]"},
		{"column without a name", "/v1/keyspaces", `{"name":"x","columns":["a",{"floor":0}]}`, "columns[1].name"},
		{"floor of a column that is no number", "/v1/keyspaces", `{"name":"x","columns":[{"name":"a","floor":"0"}]}`, "columns[0].floor"},
		{"floor of a column twice", "/v1/keyspaces", `{"name":"x","columns":[{"name":"a","floor":0,"floor":0}]}`, "columns[0].floor"},
		{"unknown field of a column", "/v1/keyspaces/posts/columns", `{"columns":[{"name":"a","ceiling":0}]}`, "columns[0].ceiling"},
		{"65 columns", "/v1/keyspaces", `{"name":"x","columns":[` + strings.Repeat(`"a",`, 64) + `"a"]}`, "columns"},
		{"65 shards", "/v1/keyspaces", `{"name":"x","columns":["a"],"shards":65}`, "shards"},
		{"everywhere or not is not said", "/v1/keyspaces/posts/everywhere", `{}`, "everywhere"},
		{"everywhere is no boolean", "/v1/keyspaces/posts/everywhere", `{"everywhere":1}`, "everywhere"},
		{"add no columns", "/v1/keyspaces/posts/columns", `{"columns":[]}`, "columns"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantFault(t, l.do("POST", c.path, c.body), 400, "invalid_argument", c.field)
			l.wantGood()
		})
	}
	if l.node.mu.writes != 0 {
		t.Errorf("%d writes reached the backend", l.node.mu.writes)
	}
}

// TestOneOfTwo checks the error for an op with two fields that exclude each other. The error names
// both fields, and does not claim that one field was given twice.
func TestOneOfTwo(t *testing.T) {
	l := startFakeServer(t, nil)
	for op, want := range map[string]string{
		`{"keyspace":"posts","id":1,"user":1,"add":{"like":1}}`:         "ops[0].user: an op has an id or a user, not both",
		`{"user":1,"id":1,"add":{"like":1}}`:                            "ops[0].id: an op has an id or a user, not both",
		`{"keyspace":"posts","id":1,"add":{"like":1},"set":{"like":1}}`: "ops[0].set: an op has add or set, not both",
		`{"keyspace":"posts","id":1,"set":{"like":1},"add":{"like":1}}`: "ops[0].add: an op has add or set, not both",
		`{"keyspace":"posts","id":1,"add":{"like":1},"add":{"like":1}}`: "ops[0].add: given twice",
		`{"keyspace":"posts","id":1,"id":1,"add":{"like":1}}`:           "ops[0].id: given twice",
	} {
		if got := l.do("POST", "/v1/ops", `{"ops":[`+op+`]}`); got.status != 400 || !strings.Contains(got.body, `"message":"`+want+`"`) {
			t.Errorf("%s: %d %s, want %s", op, got.status, got.body, want)
		}
	}
}

func TestBadIDs(t *testing.T) {
	l := startFakeServer(t, nil)
	for _, id := range []string{
		"-1", "-0", "18446744073709551616", "99999999999999999999", "1e3", "1.0", "01", "+1", "1-2",
		"null", "true", "[]", "{}", `"abc"`, `""`, `"-1"`, `"1e3"`, `" 1"`, `"01"`, `"18446744073709551616"`,
		`"` + strings.Repeat("1", 1000) + `"`,
	} {
		t.Run(id[:min(len(id), 24)], func(t *testing.T) {
			wantFault(t, l.do("POST", "/v1/counters/posts/incr", `{"ops":[{"id":`+id+`,"add":{"like":1}}]}`),
				400, "invalid_argument", "ops[0].id")
			wantFault(t, l.do("POST", "/v1/counters/posts/set", `{"ops":[{"id":`+id+`,"set":{"like":1}}]}`),
				400, "invalid_argument", "ops[0].id")
			wantFault(t, l.do("POST", "/v1/counters/posts/get", `{"ids":[7,`+id+`]}`), 400, "invalid_argument", "ids[1]")
			wantFault(t, l.do("POST", "/v1/counters/posts/scan", `{"after":`+id+`}`), 400, "invalid_argument", "after")
		})
	}
	for _, id := range []string{"-1", "+1", "abc", "1e3", "1.0", "01", "18446744073709551616", "%31x", "1%2F2"} {
		t.Run("path "+id, func(t *testing.T) {
			for _, method := range []string{"GET", "PUT", "DELETE"} {
				body := map[string]string{"PUT": `{"set":{"like":1}}`}[method]
				wantFault(t, l.do(method, "/v1/counters/posts/"+id, body), 400, "invalid_argument", "id")
			}
		})
	}
	l.wantGood()
}

func TestBadHeads(t *testing.T) {
	l := startFakeServer(t, nil)
	const row, get = "/v1/counters/posts/1", "/v1/counters/posts/get"
	const one = `{"ids":[1]}`
	for _, c := range []struct {
		name, method, path, body string
		header, value            string
		status                   int
		code, field              string
	}{
		{"unknown path", "GET", "/v2", "", "", "", 404, "not_found", ""},
		{"beside the root", "GET", "/index.html", "", "", "", 404, "not_found", ""},
		{"trailing slash", "GET", row + "/", "", "", "", 404, "not_found", ""},
		{"double slash", "GET", "/v1//counters/posts/1", "", "", "", 404, "not_found", ""},
		{"no keyspace", "GET", "/v1/counters//1", "", "", "", 404, "not_found", ""},
		{"dots", "GET", "/v1/x/../counters/posts/1", "", "", "", 404, "not_found", ""},
		{"dots in the end", "GET", "/v1/counters/posts/..", "", "", "", 400, "invalid_argument", "id"},
		{"encoded slash", "GET", "/v1/counters%2Fposts/1", "", "", "", 404, "not_found", ""},
		{"unknown keyspace", "GET", "/v1/counters/likes/1", "", "", "", 404, "unknown_keyspace", ""},
		{"unknown keyspace, other case", "POST", "/v1/counters/Posts/get", one, "", "", 404, "unknown_keyspace", ""},
		{"an unknown keyspace everywhere", "POST", "/v1/keyspaces/nope/everywhere", `{"everywhere":true}`, "", "", 404, "unknown_keyspace", ""},
		{"columns of an unknown keyspace", "POST", "/v1/keyspaces/nope/columns", `{"columns":["a"]}`, "", "", 404, "unknown_keyspace", ""},
		{"wrong method", "PATCH", row, "", "", "", 405, "method_not_allowed", ""},
		{"GET of an action", "GET", get, "", "", "", 405, "method_not_allowed", ""},
		{"DELETE of keyspaces", "DELETE", "/v1/keyspaces", "", "", "", 405, "method_not_allowed", ""},
		{"POST of metrics", "POST", "/metrics", "", "", "", 405, "method_not_allowed", ""},
		{"body of a GET", "GET", row, "{}", "", "", 400, "invalid_argument", "body"},
		{"body of a DELETE", "DELETE", row, "{}", "", "", 400, "invalid_argument", "body"},
		{"compressed body", "POST", get, one, "Content-Encoding", "gzip", 400, "invalid_argument", "Content-Encoding"},
		{"timeout of no unit", "GET", row, "", "Countd-Timeout", "5", 400, "invalid_argument", "Countd-Timeout"},
		{"timeout 0", "GET", row, "", "Countd-Timeout", "0s", 400, "invalid_argument", "Countd-Timeout"},
		{"timeout negative", "GET", row, "", "Countd-Timeout", "-1s", 400, "invalid_argument", "Countd-Timeout"},
		{"timeout 61s", "POST", "/v1/counters/posts/incr", manyOps(1), "Countd-Timeout", "61s", 400, "invalid_argument", "Countd-Timeout"},
		{"timeout of a list", "GET", "/v1/keyspaces", "", "Countd-Timeout", "soon", 400, "invalid_argument", "Countd-Timeout"},
		{"bad token", "GET", row, "", "Countd-Token", "!!", 400, "invalid_argument", "Countd-Token"},
		{"bad consistency header", "POST", get, one, "consistency", "eventual", 400, "invalid_argument", "consistency"},
		{"bad Countd-Consistency", "POST", get, one, "Countd-Consistency", "eventual", 400, "invalid_argument", "consistency"},
		{"bad Countd-Max-Staleness", "GET", row, "", "Countd-Max-Staleness", "bogus", 400, "invalid_argument", "max_staleness"},
		{"bad consistency", "GET", row + "?consistency=eventual", "", "", "", 400, "invalid_argument", "consistency"},
		{"consistency twice", "GET", row + "?consistency=stale&consistency=stale", "", "", "", 400, "invalid_argument", "consistency"},
		{"empty consistency", "GET", row + "?consistency=", "", "", "", 400, "invalid_argument", "consistency"},
		{"bad staleness", "GET", row + "?max_staleness=1", "", "", "", 400, "invalid_argument", "max_staleness"},
		{"bad staleness of a stale read", "GET", row + "?consistency=stale&max_staleness=1", "", "", "", 400, "invalid_argument", "max_staleness"},
		{"bad staleness of a linearizable read", "GET", row + "?consistency=linearizable", "", "max_staleness", "-1s", 400, "invalid_argument", "max_staleness"},
		{"unknown parameter", "GET", row + "?pretty=1", "", "", "", 400, "invalid_argument", "pretty"},
		{"parameter of a write", "DELETE", row + "?consistency=stale", "", "", "", 400, "invalid_argument", "consistency"},
		{"empty idempotency key", "POST", "/v1/counters/posts/incr", manyOps(1), "Idempotency-Key", "", 400, "invalid_argument", "Idempotency-Key"},
		{"empty sequence", "DELETE", row, "", "Countd-Seq", "", 400, "invalid_argument", "Countd-Producer"},
		{"idempotency key", "POST", "/v1/counters/posts/incr", manyOps(1), "Idempotency-Key", strings.Repeat("k", 129), 400, "invalid_argument", "Idempotency-Key"},
		{"producer", "DELETE", row, "", "Countd-Producer", "p", 400, "invalid_argument", "Countd-Seq"},
		{"sequence", "PUT", row, `{"set":{"like":1}}`, "Countd-Seq", "1", 400, "invalid_argument", "Countd-Producer"},
		{"huge header", "GET", row, "", "X-Big", strings.Repeat("x", 20_000), 431, "too_large", ""},
		{"huge path", "GET", "/" + strings.Repeat("x", 20_000), "", "", "", 431, "too_large", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var headers []string
			if c.header != "" {
				headers = []string{c.header, c.value}
			}
			got := l.do(c.method, c.path, c.body, headers...)
			wantFault(t, got, c.status, c.code, c.field)
			if allow := got.header.Get("Allow"); (allow != "") != (c.status == 405) {
				t.Errorf("Allow is %q", allow)
			}
			l.wantGood()
		})
	}
}

// TestBadHTTP sends requests that no HTTP client would send.
func TestBadHTTP(t *testing.T) {
	l := startFakeServer(t, nil)
	for _, c := range []struct{ name, text, field string }{
		{"no HTTP", "hello\r\n\r\n", "request"},
		{"a TLS hello", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "request"},
		{"bad length", "POST /v1/keyspaces HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", "request"},
		{"two lengths", "POST /v1/keyspaces HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "request"},
		{"bad chunks", "POST /v1/keyspaces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "request"},
		{"length and chunks", "POST /v1/keyspaces HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "request"},
		{"chunks and length", "POST /v1/keyspaces HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n0\r\n\r\n", "request"},
		{"length and identity", "POST /v1/keyspaces HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: identity\r\n\r\n{}", "request"},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "request"},
		{"HTTP/1.2", "GET /v1/counters/posts/1 HTTP/1.2\r\nHost: x\r\n\r\n", "request"},
		{"HTTP/0.9", "GET /v1/counters/posts/1 HTTP/0.9\r\nHost: x\r\n\r\n", "request"},
		{"bad percent-encoding", "GET /v1/counters/posts/%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "path"},
		{"cut percent-encoding", "GET /v1/counters/posts/%3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "path"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantFault(t, l.raw(c.text), 400, "invalid_argument", c.field)
			l.wantGood()
		})
	}
}

// raw sends text as it is and reads one answer.
func (l *fakeServer) raw(text string) reply {
	l.t.Helper()
	c, err := net.Dial("tcp", l.server.Addr().String())
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		l.t.Fatal(err)
	}
	return readReply(l.t, c)
}

func readReply(t testing.TB, c net.Conn) reply {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(must.BecomeMax))
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("cannot read the answer: %v", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("cannot read the answer's body: %v", err)
	}
	return reply{response.StatusCode, response.Header, string(body)}
}

func TestHugeBodies(t *testing.T) {
	l := startFakeServer(t, nil)
	const hundredMB = 100 << 20
	for _, c := range []struct {
		name, expect string
		chunked      bool
	}{
		{name: "with a length"},
		{name: "in chunks", chunked: true},
		{name: "that waits for 100-continue", expect: "100-continue"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var body io.Reader = io.LimitReader(zeros{}, hundredMB)
			request, err := http.NewRequest("POST", "http://"+l.server.Addr().String()+"/v1/counters/posts/incr", body)
			if err != nil {
				t.Fatal(err)
			}
			if !c.chunked {
				request.ContentLength = hundredMB
			}
			if c.expect != "" {
				request.Header.Set("Expect", c.expect)
			}
			transport := &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Minute}
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			text, _ := io.ReadAll(response.Body)
			wantFault(t, reply{response.StatusCode, response.Header, string(text)}, 413, "too_large", "")
			l.wantGood()
		})
	}
}

// If a client sends Expect: 100-continue and its body would be too large, the server sends a
// complete error answer instead of 100 Continue.
func TestExpectedBodies(t *testing.T) {
	l := startFakeServer(t, nil)
	for _, c := range []struct {
		name, path string
		bytes      int
		first      int // status
	}{
		{"too large", "/v1/counters/posts/incr", 99_999_999, 413},
		{"one byte too large", "/v1/counters/posts/incr", l.server.cfg.BodyBytesMax + 1, 413},
		{"as large as may be", "/v1/counters/posts/incr", l.server.cfg.BodyBytesMax, 100},
		{"small", "/v1/counters/posts/incr", 10, 100},
		{"for a probe", "/healthz", 99_999_999, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := l.dial(t)
			method := map[bool]string{true: "GET", false: "POST"}[c.path == "/healthz"]
			fmt.Fprintf(d.conn, "%s %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", method, c.path, c.bytes)
			status, err := d.reader.Peek(len("HTTP/1.1 100"))
			if err != nil || string(status) != fmt.Sprintf("HTTP/1.1 %d", c.first) {
				t.Fatalf("answered %s, %v", status, err)
			}
			if c.first == 413 {
				got := d.answer()
				wantFault(t, got, 413, "too_large", "")
				if got.header.Get("Connection") != "close" {
					t.Error("the connection stays open")
				}
			}
		})
	}
	if text := l.do("GET", "/metrics", "").body; !strings.Contains(text, `countd_http_request_duration_seconds_count{code="4xx",endpoint="counters_incr"} 2`) {
		t.Error("2 refusals are not counted")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestSlowRequests(t *testing.T) {
	t.Parallel()
	l := startFakeServer(t, func(c *Config) { c.ReadTimeout = time.Second })
	const head = "POST /v1/counters/posts/incr HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
	for name, text := range map[string]string{
		"body":   head + `{"ops":[`,
		"header": head[:40],
		"all":    "",
	} {
		t.Run(name, func(t *testing.T) {
			wantFault(t, l.raw(text), 408, "request_timeout", "")
			l.wantGood()
		})
	}
	t.Run("trickle", func(t *testing.T) {
		c, err := net.Dial("tcp", l.server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, head)
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() { // ended below
			defer close(done)
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					fmt.Fprint(c, " ")
				case <-stop:
					return
				}
			}
		}()
		wantFault(t, readReply(t, c), 408, "request_timeout", "")
		close(stop)
		<-done
		l.wantGood()
	})
}
