package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

// TestDoubledHeaders checks that the server refuses a header with two values instead of choosing
// one.
func TestDoubledHeaders(t *testing.T) {
	l := startFakeServer(t, nil)
	for _, c := range []struct{ method, header, first, second, others string }{
		{"DELETE", "Idempotency-Key", "a", "b", ""},
		{"DELETE", "Idempotency-Key", "a", "a", ""},
		{"DELETE", "Countd-Producer", "a", "b", "Countd-Seq: 1\r\n"},
		{"DELETE", "Countd-Seq", "1", "2", "Countd-Producer: p\r\n"},
		{"DELETE", "Countd-Timeout", "1s", "2s", ""},
		{"GET", "Countd-Timeout", "1s", "2s", ""},
		{"GET", "Countd-Token", "AQAAAAABAQ", "AQAAAAABAg", ""},
		{"GET", "consistency", "stale", "linearizable", ""},
		{"GET", "max_staleness", "1s", "2s", ""},
		{"GET", "Countd-Consistency", "stale", "linearizable", ""},
		{"GET", "Countd-Max-Staleness", "1s", "2s", ""},
	} {
		t.Run(c.method+" "+c.header+" "+c.second, func(t *testing.T) {
			got := l.raw(fmt.Sprintf("%s /v1/counters/posts/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s%s: %s\r\n%s: %s\r\n\r\n",
				c.method, c.others, c.header, c.first, strings.ToLower(c.header), c.second))
			wantFault(t, got, 400, "invalid_argument", c.header)
			if !strings.Contains(got.body, c.header+": given twice") {
				t.Errorf("answered %s", got.body)
			}
		})
	}
	got := l.do("GET", "/v1/counters/posts/1", "", "Countd-Max-Staleness", "1s", "max_staleness", "2s")
	wantFault(t, got, 400, "invalid_argument", "Countd-Max-Staleness")
	l.wantGood()
}

// TestProbesBringWhatTheyLike checks that the server ignores the headers and bodies of probes, and
// keeps their connections open.
func TestProbesBringWhatTheyLike(t *testing.T) {
	l := startFakeServer(t, nil)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		for name, rest := range map[string]string{
			"a query":          "?name[]=up&name[]=go_info&%zz HTTP/1.1\r\nHost: x\r\n\r\n",
			"a bad timeout":    " HTTP/1.1\r\nHost: x\r\nCountd-Timeout: soon\r\nCountd-Timeout: 1\r\n\r\n",
			"headers of reads": " HTTP/1.1\r\nHost: x\r\nconsistency: eventual\r\nCountd-Token: !\r\nIdempotency-Key:\r\n\r\n",
			"a body":           " HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello",
			"a long body":      " HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100_000),
			"a body in chunks": " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		} {
			t.Run(path+" with "+name, func(t *testing.T) {
				c, err := net.Dial("tcp", l.server.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				in := bufio.NewReader(c)
				for range 2 {
					wantProbed(t, c, in, "GET "+path+rest)
				}
			})
		}
	}
}

// wantProbed sends a request and checks that it is answered 200.
func wantProbed(t *testing.T, c net.Conn, in *bufio.Reader, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(must.BecomeMax))
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != 200 {
		t.Fatalf("answered %d %.200s, %v", response.StatusCode, body, err)
	}
}

// TestPagesOfOtherSites checks that a write may have any Content-Type, unless it has an Origin. A
// browser sends an Origin if a page makes the request.
func TestPagesOfOtherSites(t *testing.T) {
	l := startFakeServer(t, nil)
	for _, c := range []struct {
		typ  string
		json bool
	}{
		{"application/json", true}, {"Application/JSON; charset=utf-8", true}, {"application/vnd.x+json", true}, {"application/json ;x=y", true},
		{"", false}, {"application/x-www-form-urlencoded", false}, {"multipart/form-data; boundary=x", false},
		{"text/plain;charset=UTF-8", false}, {"text/plain; application/json", false}, {"text/x+json", false},
	} {
		t.Run(c.typ, func(t *testing.T) {
			var headers []string
			if c.typ != "" {
				headers = []string{"Content-Type", c.typ}
			}
			if got := l.do("POST", "/v1/counters/posts/incr", manyOps(1), headers...); got.status != 200 {
				t.Errorf("without an origin: %d %s", got.status, got.body)
			}
			headers = append(headers, "Origin", "https://example.com")
			if got := l.do("POST", "/v1/counters/posts/incr", manyOps(1), headers...); (got.status == 200) != c.json || !c.json && got.status != 400 {
				t.Errorf("with one: %d %s", got.status, got.body)
			}
			if got := l.do("POST", "/v1/counters/posts/get", `{"ids":[1]}`, headers...); got.status != 200 {
				t.Errorf("a read: %d %s", got.status, got.body)
			}
		})
	}
}

// TestKeyIsOfTheCallNotItsSpelling checks that an idempotency key covers the requested call, and no
// other part of the request. The spelling of the path makes no difference.
func TestKeyIsOfTheCallNotItsSpelling(t *testing.T) {
	l := startFakeServer(t, before(openReal(t, t.TempDir())))
	write := func(method, path, body string) reply {
		return l.do(method, path, body, "Idempotency-Key", "k")
	}
	body := manyOps(1)
	for n, path := range []string{"/v1/counters/posts/incr", "/v1/counters/p%6Fsts/incr", "/v1/counters/posts/%69ncr"} {
		got := write("POST", path, body)
		if again := strings.Contains(got.body, `"duplicate":true`); got.status != 200 || again != (n > 0) {
			t.Errorf("%s is answered %d %s", path, got.status, got.body)
		}
	}
	for name, got := range map[string]reply{
		"another body": write("POST", "/v1/counters/posts/incr", manyOps(2)),
		"another call": write("POST", "/v1/counters/posts/set", `{"ops":[{"id":1,"set":{"like":1}}]}`),
		"a row":        write("DELETE", "/v1/counters/posts/1", ""),
	} {
		t.Run(name, func(t *testing.T) { wantFault(t, got, 409, "idempotency_conflict", "") })
	}
	l.do("DELETE", "/v1/counters/posts/1", "", "Idempotency-Key", "row")
	wantFault(t, l.do("DELETE", "/v1/counters/posts/2", "", "Idempotency-Key", "row"), 409, "idempotency_conflict", "")
}

// TestNumberZero checks that a producer may number its writes from 0.
func TestNumberZero(t *testing.T) {
	l := startFakeServer(t, before(openReal(t, t.TempDir())))
	for n, want := range []string{`"like":1}`, `"like":1}`, `"like":2}`} {
		seq := []string{"0", "0", "1"}[n]
		got := l.do("POST", "/v1/counters/posts/incr", manyOps(1), "Countd-Producer", "p", "Countd-Seq", seq)
		if again := strings.Contains(got.body, `"duplicate":true`); got.status != 200 || again != (n == 1) ||
			!strings.Contains(strings.ReplaceAll(got.body, `,"view":0`, ""), want) {
			t.Errorf("number %s is answered %d %s", seq, got.status, got.body)
		}
	}
}

// TestKeyIsOfTheMeaning checks that an idempotency key covers the meaning of a body. The spelling
// of the body makes no difference.
func TestKeyIsOfTheMeaning(t *testing.T) {
	l := startFakeServer(t, before(openReal(t, t.TempDir())))
	path, first := "/v1/counters/posts/incr", `{"ops":[{"id":"1","add":{"like":1,"view":2}},{"id":"2","add":{"like":1}}]}`
	for n, body := range []string{
		first, first,
		`{"ops": [{"add": {"view": 2, "like": 1}, "id": 1}, {"id": 2, "add": {"like": 1}}]}`,
	} {
		got := l.do("POST", path, body, "Idempotency-Key", "k")
		if again := strings.Contains(got.body, `"duplicate":true`); got.status != 200 || again != (n > 0) {
			t.Errorf("%s is answered %d %s", body, got.status, got.body)
		}
	}
	turned := `{"ops":[{"id":"2","add":{"like":1}},{"id":"1","add":{"like":1,"view":2}}]}`
	wantFault(t, l.do("POST", path, turned, "Idempotency-Key", "k"), 409, "idempotency_conflict", "")
	for n, body := range []string{``, `{}`, ` {} `} {
		got := l.do("POST", "/v1/notices/news", body, "Idempotency-Key", "notice")
		if again := strings.Contains(got.body, `"duplicate":true`); got.status != 200 || again != (n > 0) {
			t.Errorf("%q is answered %d %s", body, got.status, got.body)
		}
	}
}
