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

// slowCaller is a connection that sends one request after another.
type slowCaller struct {
	t      *testing.T
	conn   net.Conn
	reader *bufio.Reader
}

func (l *fakeServer) dial(t *testing.T) *slowCaller {
	t.Helper()
	c, err := net.Dial("tcp", l.server.Addr().String())
	if err == nil {
		err = c.SetDeadline(time.Now().Add(must.BecomeMax)) // so that a test fails instead of hanging
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &slowCaller{t, c, bufio.NewReader(c)}
}

// post sends a body whole, or in chunks of at most chunk bytes.
func (d *slowCaller) post(path, body string, chunk int, headers ...string) {
	d.t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "POST %s HTTP/1.1\r\nHost: x\r\n", path)
	for _, h := range headers {
		text.WriteString(h + "\r\n")
	}
	if chunk == 0 {
		fmt.Fprintf(&text, "Content-Length: %d\r\n\r\n%s", len(body), body)
	} else {
		text.WriteString("Transfer-Encoding: chunked\r\n\r\n")
		for len(body) > 0 {
			n := min(chunk, len(body))
			fmt.Fprintf(&text, "%x\r\n%s\r\n", n, body[:n])
			body = body[n:]
		}
		text.WriteString("0\r\n\r\n")
	}
	if _, err := io.WriteString(d.conn, text.String()); err != nil {
		d.t.Fatal(err)
	}
}

func (d *slowCaller) answer() reply {
	d.t.Helper()
	response, err := http.ReadResponse(d.reader, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	if response.Close {
		response.Header.Set("Connection", "close") // ReadResponse has removed this header
	}
	return reply{response.StatusCode, response.Header, string(body)}
}

// Bodies of all sizes, whole and in chunks, good and refused, follow each other on one
// connection. Each answer belongs to its request.
func TestBodiesFollowEachOther(t *testing.T) {
	l := startFakeServer(t, nil)
	d := l.dial(t)
	const incr = "/v1/counters/posts/incr"
	for _, ops := range []int{1, 200, 230, 1000, 10_000, 1} { // about 227 ops fill 8 KiB
		for _, chunk := range []int{0, 100, 1 << 20} {
			body := manyOps(ops)
			d.post(incr, body, chunk)
			d.post("/nothing", body, chunk)
			d.post(incr, body+"!", chunk)
			d.post("/v1/counters/posts/get", `{"ids":["1"],"columns":["like"]}`, 0)
			if got := d.answer(); got.status != 200 || strings.Count(got.body, `"id"`) != ops {
				t.Fatalf("%d ops in chunks of %d are answered %d with %d rows", ops, chunk, got.status, strings.Count(got.body, `"id"`))
			}
			wantFault(t, d.answer(), 404, "not_found", "")
			wantFault(t, d.answer(), 400, "invalid_argument", "body")
			if got := d.answer(); !strings.HasPrefix(got.body, `{"results":[{"id":"1","counts":{"like":`) {
				t.Fatalf("a read is answered %s", got.body)
			}
		}
	}
}

// While bodies use all their memory:
//
//  1. the server refuses a larger body and keeps the connection;
//  2. it refuses a body that is too large to drop, and closes the connection;
//  3. it serves a request with a small body;
//  4. the memory becomes free again.
func TestBodiesAreBoundedTogether(t *testing.T) {
	const room = 1 << 20
	l := startFakeServer(t, func(c *Config) { c.BodiesBytesMax = room })
	const incr = "/v1/counters/posts/incr"
	if !l.server.bodies.Acquire(room - 1<<10) {
		t.Fatal("the room is taken")
	}
	d := l.dial(t)
	for _, chunk := range []int{0, 1000} {
		d.post(incr, manyOps(1000), chunk)
		wantFault(t, d.answer(), 429, "overloaded", "")
		d.post(incr, manyOps(1), 0)
		if got := d.answer(); got.status != 200 {
			t.Fatalf("a small body is answered %d %s", got.status, got.body)
		}
	}
	d.post(incr, strings.Repeat(" ", discardBytesMax+1), 0)
	got := d.answer()
	wantFault(t, got, 429, "overloaded", "")
	if _, err := d.reader.ReadByte(); got.header.Get("Connection") != "close" || err != io.EOF {
		t.Errorf("the connection is left open: %v, %v", got.header, err)
	}
	if text := l.do("GET", "/metrics", "").body; !strings.Contains(text, `countd_http_overloaded_total{reason="bodies"} 3`) {
		t.Error("3 refusals are not counted")
	}
	l.server.bodies.Release(room - 1<<10)
	if got := l.do("POST", incr, manyOps(10_000)); got.status != 200 {
		t.Errorf("a large body is answered %d %s", got.status, got.body)
	}
	if held := l.server.bodies.Used(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
}

// If a client closes its connection in the middle of a body, the server releases the memory that it
// had reserved.
func TestBrokenBodies(t *testing.T) {
	l := startFakeServer(t, nil)
	const head = "POST /v1/counters/posts/incr HTTP/1.1\r\nHost: x\r\n"
	for name, text := range map[string]string{
		"a large one cut off": head + "Content-Length: 100000\r\n\r\n{",
		"chunks cut off":      head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{",
		"no chunk size":       head + "Transfer-Encoding: chunked\r\n\r\nx\r\n{}\r\n0\r\n\r\n",
		"no end of a chunk":   head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n",
		"a chunk of 2^63":     head + "Transfer-Encoding: chunked\r\n\r\n8000000000000000\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			d := l.dial(t)
			if _, err := io.WriteString(d.conn, text); err != nil {
				t.Fatal(err)
			}
			if err := d.conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			got := d.answer()
			wantFault(t, got, 400, "invalid_argument", "request")
			if got.header.Get("Connection") != "close" {
				t.Error("the connection is left open")
			}
			eventually(t, "its memory is free", func() bool { return l.server.bodies.Used() == 0 })
			l.wantGood()
		})
	}
}

// The server refuses a body beyond the limit as soon as it knows the length. It does not wait for
// the body. Each case ends long before the read timeout.
func TestTooLargeIsToldAtOnce(t *testing.T) {
	l := startFakeServer(t, func(c *Config) { c.BodyBytesMax, c.ReadTimeout = 1000, time.Hour })
	for _, c := range []struct{ name, target, body string }{
		{"nothing of it comes", "/v1/counters/posts/incr", ""},
		{"a part of it comes", "/v1/counters/posts/incr", "{}"},
		{"to an absolute address", "http://x/v1/counters/posts/incr?a=b", ""},
		{"to a list", "/v1/keyspaces", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := l.dial(t)
			fmt.Fprintf(d.conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n%s", c.target, c.body)
			got := d.answer()
			wantFault(t, got, 413, "too_large", "")
			if got.header.Get("Connection") != "close" {
				t.Error("the connection stays open")
			}
		})
	}
	t.Run("a probe brings what it likes", func(t *testing.T) {
		d := l.dial(t)
		fmt.Fprintf(d.conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n%s", strings.Repeat(" ", 1001))
		if got := d.answer(); got.status != 200 {
			t.Errorf("answered %+v", got)
		}
	})
	l.wantGood()
}

// The server gives up an incomplete body at the request's timeout, or at the read timeout if that
// is shorter. In each case, the timeout that does not apply is a minute or an hour.
func TestBodiesComeWithinTheTimeout(t *testing.T) {
	t.Parallel()
	const short, long = 500 * time.Millisecond, time.Hour
	for _, c := range []struct {
		name, head string
		read       time.Duration
	}{
		{"a small body", "Countd-Timeout: 100ms\r\nContent-Length: 100", long},
		{"none of a small body", "Content-Length: 100\r\nCountd-Timeout: 0.1s", long},
		{"a large body", "Countd-Timeout: 100ms\r\nContent-Length: 100000", long},
		{"a body in chunks", "Countd-Timeout: 100ms\r\nTransfer-Encoding: chunked", long},
		{"by the read timeout", "Countd-Timeout: 60s\r\nContent-Length: 100000", short},
		{"by the timeout unless told", "Content-Length: 100", long},
		{"with a bad timeout", "Countd-Timeout: 5\r\nContent-Length: 100", long},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := startFakeServer(t, func(cfg *Config) { cfg.ReadTimeout = c.read })
			d := l.dial(t)
			body := map[bool]string{false: `{"ops":[`, true: "8\r\n{\"ops\":[\r\n"}[strings.Contains(c.head, "chunked")]
			if strings.HasPrefix(c.name, "none") {
				body = ""
			}
			fmt.Fprintf(d.conn, "POST /v1/counters/posts/incr HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", c.head, body)
			got := d.answer()
			wantFault(t, got, 408, "request_timeout", "")
			if got.header.Get("Connection") != "close" {
				t.Error("the connection stays open")
			}
			l.wantGood()
		})
	}
}

// A request's timeout bounds only that request: the next request on the same connection has its own
// timeout.
func TestTimeoutIsOfOneRequest(t *testing.T) {
	t.Parallel()
	l := startFakeServer(t, nil)
	d := l.dial(t)
	const call = "/v1/counters/posts/incr"
	const timeout = 400 * time.Millisecond
	began := time.Now()
	d.post(call, manyOps(1), 0, "Countd-Timeout: "+timeout.String())
	if got := d.answer(); got.status != 200 && time.Since(began) < timeout { // a busy machine may answer too late
		t.Fatalf("answered %d %s", got.status, got.body)
	}
	time.Sleep(timeout + 50*time.Millisecond) // wait until the timeout of that request has passed
	for _, ops := range []int{1, 1000} {
		d.post(call, manyOps(ops), 0)
		if got := d.answer(); got.status != 200 {
			t.Fatalf("%d ops are answered %d %s", ops, got.status, got.body)
		}
	}
}
