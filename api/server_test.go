package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/internal/must"
)

var eventually = must.Become

func TestPanicIsAnswered(t *testing.T) {
	l := startFakeServer(t, nil)
	l.node.setFault("panic")
	for range 3 {
		wantFault(t, l.do("GET", "/v1/counters/posts/1", ""), 500, "internal", "")
	}
	wantFault(t, l.do("GET", "/readyz", ""), 500, "internal", "")
	l.wantGood()
	if text := l.log.String(); !strings.Contains(text, "a fault that nobody foresaw") || !strings.Contains(text, "fake_test.go") {
		t.Errorf("the log has no panic with its stack: %s", text)
	}
	if text := l.do("GET", "/metrics", "").body; !strings.Contains(text, "countd_http_panics_total 4") {
		t.Error("countd_http_panics_total is not 4")
	}
}

func TestInternalErrorIsLoggedNotTold(t *testing.T) {
	l := startFakeServer(t, nil)
	l.node.setFault("failure")
	got := l.do("GET", "/v1/counters/posts/1", "")
	wantFault(t, got, 500, "internal", "")
	if strings.Contains(got.body, "secret") || !strings.Contains(l.log.String(), "secret") {
		t.Errorf("told %s, logged %s", got.body, l.log)
	}
}

// TestBackendFaults checks the answer for each error of a node, on a write and on a read.
func TestBackendFaults(t *testing.T) {
	l := startFakeServer(t, nil)
	const body = `{"ops":[{"id":"1","add":{"like":1}},{"id":"2","add":{"like":1}}]}`
	for _, c := range []struct {
		fault  string
		status int
		code   string
		retry  string
		suffix string // of the body
	}{
		{"overloaded", 429, "overloaded", "1", `"}}`},
		{"no_leader", 503, "no_leader", "1", `,"applied":[],"unknown":[]}`},
		{"no_quorum", 503, "no_quorum", "1", `,"applied":[],"unknown":[]}`},
		{"unreadable", 503, "unreadable", "1", `,"applied":[],"unknown":[]}`},
		{"draining", 503, "draining", "1", `,"applied":[],"unknown":[]}`},
		{"outcome_unknown", 504, "outcome_unknown", "", `,"applied":[],"unknown":["1","2"]}`},
		{"partial_unknown", 504, "outcome_unknown", "", `,"applied":["1"],"unknown":["2"]}`},
		{"partial_no_leader", 503, "no_leader", "1", `,"applied":["1"],"unknown":[]}`},
		{"partial_overloaded", 503, "overloaded", "1", `,"applied":["1"],"unknown":[]}`},
	} {
		t.Run(c.fault, func(t *testing.T) {
			l.node.setFault(c.fault)
			got := l.do("POST", "/v1/counters/posts/incr", body)
			wantFault(t, got, c.status, c.code, "")
			if retry := got.header.Get("Retry-After"); retry != c.retry {
				t.Errorf("Retry-After is %q, want %q", retry, c.retry)
			}
			if !strings.HasSuffix(got.body, c.suffix) {
				t.Errorf("answered %s, want its end to be %s", got.body, c.suffix)
			}
			l.wantGood()
		})
	}
}

// TestUnavailableWritesTellOutcomes checks that every 503 and 504 of a write of rows has the lists
// applied and unknown. Answers of other calls have no such lists.
func TestUnavailableWritesTellOutcomes(t *testing.T) {
	const ops, row = `{"ops":[{"id":"1","set":{"like":1}}]}`, "/v1/counters/posts/1"
	for _, c := range []struct {
		name, fault, method, path, body string
		status                          int
		lists                           string
	}{
		{"incr", "no_leader", "POST", "/v1/counters/posts/incr", `{"ops":[{"id":"1","add":{"like":1}}]}`, 503, `[],[]`},
		{"set", "disk_full", "POST", "/v1/counters/posts/set", ops, 503, `[],[]`},
		{"memory", "memory_full", "POST", "/v1/counters/posts/set", ops, 503, `[],[]`},
		{"put", "draining", "PUT", row, `{"set":{"like":1}}`, 503, `[],[]`},
		{"put unknown", "outcome_unknown", "PUT", row, `{"set":{"like":1}}`, 504, `[],["1"]`},
		{"delete", "no_quorum", "DELETE", row, "", 503, `[],[]`},
		{"delete unknown", "outcome_unknown", "DELETE", row, "", 504, `[],["1"]`},
		{"a keyspace that cannot be known", "no_quorum", "POST", "/v1/counters/likes/set", ops, 503, `[],[]`},
		{"refused early", "overloaded", "POST", "/v1/counters/posts/set", ops, 429, ""},
		{"incr of users", "no_leader", "POST", "/v1/unread/incr", `{"ops":[{"user":"1","add":{"like":1}}]}`, 503, `[],[]`},
		{"incr of users unknown", "outcome_unknown", "POST", "/v1/unread/incr", `{"ops":[{"user":"1","add":{"like":1}}]}`, 504, `[],["1"]`},
		{"incr of users refused early", "overloaded", "POST", "/v1/unread/incr", `{"ops":[{"user":"1","add":{"like":1}}]}`, 429, ""},
		{"reset of a user", "no_leader", "POST", "/v1/unread/1/reset", `{"columns":["like"]}`, 503, ""},
		{"read", "no_leader", "GET", row, "", 503, ""},
		{"keyspace", "no_quorum", "POST", "/v1/keyspaces", `{"name":"n","columns":["a"]}`, 503, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := startFakeServer(t, nil)
			l.node.setFault(c.fault)
			var got struct {
				Error            struct{ Code string }
				Applied, Unknown json.RawMessage
			}
			answer := l.do(c.method, c.path, c.body)
			if err := json.Unmarshal([]byte(answer.body), &got); err != nil {
				t.Fatal(err)
			}
			lists := string(got.Applied) + "," + string(got.Unknown)
			if answer.status != c.status || got.Error.Code == "" || strings.TrimPrefix(lists, ",") != c.lists {
				t.Errorf("answered %d %s, want %d with %s", answer.status, answer.body, c.status, c.lists)
			}
		})
	}
}

// TestTooManyInFlight bounds the requests in flight to one. While one is in flight, the next
// request is refused, but operators are served. After it, requests are served again.
func TestTooManyInFlight(t *testing.T) {
	l := startFakeServer(t, func(c *Config) { c.InFlightMax = 1 })
	l.node.entered, l.node.leave = make(chan struct{}), make(chan struct{})
	held := make(chan reply)
	go func() { // ends once the server answers; the test receives the answer below
		got, _ := l.try("GET", "/v1/counters/posts/1", nil)
		held <- got
	}()
	<-l.node.entered
	got := l.do("GET", "/v1/counters/posts/2", "")
	wantFault(t, got, 429, "overloaded", "")
	if got.header.Get("Retry-After") != "1" {
		t.Error("no Retry-After")
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/v1/cluster"} {
		if got := l.do("GET", path, ""); got.status != 200 {
			t.Errorf("%s is answered %d", path, got.status)
		}
	}
	l.node.leave <- struct{}{}
	if got := <-held; got.status != 200 {
		t.Errorf("the request that was served is answered %d", got.status)
	}
	l.node.entered = nil
	l.wantGood()
}

// TestTooManyConnections opens as many connections as are allowed. The next connection gets an
// error. After a connection is closed, another one is served.
func TestTooManyConnections(t *testing.T) {
	l := startFakeServer(t, func(c *Config) { c.ConnsMax = 2 })
	var open [2]net.Conn
	for i := range open {
		c, err := net.Dial("tcp", l.server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		if got := readReply(t, c); got.status != 200 {
			t.Fatalf("connection %d is answered %d", i, got.status)
		}
		open[i] = c
	}
	for range 5 {
		got := l.raw("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		wantFault(t, got, 503, "overloaded", "")
		if got.header.Get("Retry-After") != "1" {
			t.Error("no Retry-After")
		}
	}
	open[0].Close()
	eventually(t, "a connection is free", func() bool {
		got, err := l.try("GET", "/healthz", nil)
		return err == nil && got.status == 200
	})
}

// TestErrorAfterWriteTimeout checks that the server answers a fault on a kept connection even if
// the write timeout of the previous answer has passed.
func TestErrorAfterWriteTimeout(t *testing.T) {
	t.Parallel()
	l := startFakeServer(t, func(c *Config) { c.WriteTimeout = time.Second })
	c, err := net.Dial("tcp", l.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	if got := readReply(t, c); got.status != 200 {
		t.Fatalf("answered %d", got.status)
	}
	time.Sleep(1100 * time.Millisecond) // the test needs an expired write timeout
	fmt.Fprint(c, "nonsense\r\n\r\n")
	wantFault(t, readReply(t, c), 400, "invalid_argument", "request")
}

// TestShutdown checks that the server answers a request in flight, accepts no new connection, and
// closes idle connections.
func TestShutdown(t *testing.T) {
	l := startFakeServer(t, nil)
	l.node.entered, l.node.leave = make(chan struct{}), make(chan struct{})
	held := make(chan reply)
	go func() { // ends once the server answers; the test receives the answer below
		got, _ := l.try("GET", "/v1/counters/posts/1", nil)
		held <- got
	}()
	<-l.node.entered
	idle, err := net.Dial("tcp", l.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	fmt.Fprint(idle, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	readReply(t, idle)

	down := make(chan error)
	go func() { down <- l.server.Shutdown(context.Background()) }() // ends when Shutdown returns; the test receives the result below
	eventually(t, "the listener is closed", func() bool {
		c, err := net.Dial("tcp", l.server.Addr().String())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("an idle connection is not closed: %v", err)
	}
	select {
	case err := <-down:
		t.Fatalf("Shutdown has not waited: %v", err)
	default:
	}
	l.node.leave <- struct{}{}
	if got := <-held; got.status != 200 {
		t.Errorf("the request in flight is answered %d", got.status)
	}
	if err := <-down; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// TestRetire checks that a retiring server answers requests, closes each connection after its
// answer, and accepts new connections.
func TestRetire(t *testing.T) {
	l := startFakeServer(t, nil)
	c, err := net.Dial("tcp", l.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l.server.Retire()
	fmt.Fprint(c, "GET /v1/counters/posts/1 HTTP/1.1\r\nHost: x\r\n\r\n")
	if got := readReply(t, c); got.status != 200 {
		t.Errorf("answered %d", got.status)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection is not closed: %v", err)
	}
	l.wantGood()
}

// TestShutdownIsBounded checks that Shutdown closes the connection of a request that does not end.
func TestShutdownIsBounded(t *testing.T) {
	l := startFakeServer(t, nil)
	l.node.entered, l.node.leave = make(chan struct{}), make(chan struct{})
	failed := make(chan error)
	go func() { // ends once its connection is cut; the test receives the error below
		_, err := l.try("GET", "/v1/counters/posts/1", nil)
		failed <- err
	}()
	<-l.node.entered
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := l.server.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v, want the deadline exceeded", err)
	}
	if err := <-failed; err == nil {
		t.Error("the request that hangs was answered")
	}
	l.node.leave <- struct{}{}
}

// TestPipelining checks that the answers on one connection come in order, including answers to
// faulty requests.
func TestPipelining(t *testing.T) {
	l := startFakeServer(t, nil)
	c, err := net.Dial("tcp", l.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var want []int
	for i := range 50 {
		path, status := "/v1/counters/posts/1", 200
		if i%3 == 0 {
			path, status = "/nothing", 404
		}
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		want = append(want, status)
	}
	reader := bufio.NewReader(c)
	for i, status := range want {
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, response.Body)
		if response.StatusCode != status {
			t.Errorf("answer %d is %d, want %d", i, response.StatusCode, status)
		}
	}
}

func TestHeadAnswersNoBody(t *testing.T) {
	l := startFakeServer(t, nil)
	get, head := l.do("GET", "/v1/counters/posts/1", ""), l.do("HEAD", "/v1/counters/posts/1", "")
	if head.status != 200 || head.body != "" || head.header.Get("Content-Length") != fmt.Sprint(len(get.body)) {
		t.Errorf("HEAD is answered %d %v %q", head.status, head.header, head.body)
	}
	if server := get.header.Get("Server"); server != "countd" {
		t.Errorf("Server is %q", server)
	}
}

func TestMetrics(t *testing.T) {
	l := startFakeServer(t, nil)
	l.do("POST", "/v1/counters/posts/incr", manyOps(1))
	l.do("POST", "/v1/counters/posts/incr", `{`)
	l.do("GET", "/nothing", "")
	got := l.do("GET", "/metrics", "")
	if typ := got.header.Get("Content-Type"); !strings.HasPrefix(typ, "text/plain; version=0.0.4") {
		t.Errorf("Content-Type is %q", typ)
	}
	for _, line := range []string{
		`countd_http_request_duration_seconds_count{code="2xx",endpoint="counters_incr"} 1`,
		`countd_http_request_duration_seconds_count{code="4xx",endpoint="counters_incr"} 1`,
		`countd_http_request_duration_seconds_count{code="4xx",endpoint="none"} 1`,
		`countd_http_request_bytes_total{endpoint="counters_incr"} 36`,
		`countd_http_requests_total{code="2xx"} 1`,
		`countd_http_requests_total{code="4xx"} 2`,
		`countd_http_requests_total{code="5xx"} 0`,
		`countd_build_info{version="`,
		`countd_http_requests_in_flight 1`,
		`countd_http_panics_total 0`,
		`go_goroutines `,
		`process_open_fds `,
	} {
		if !strings.Contains(got.body, "\n"+line) {
			t.Errorf("/metrics has no line %s", line)
		}
	}
	for _, unused := range []string{`endpoint="counters_get"`, `code="5xx",endpoint=`, `code="2xx",endpoint="none"`} {
		if strings.Contains(got.body, unused) {
			t.Errorf("/metrics has series of %s, which nobody has asked for", unused)
		}
	}
}

// failingListener fails an accept as a process without file descriptors does.
type failingListener struct {
	net.Listener
	failures atomic.Int32
}

func (f *failingListener) Accept() (net.Conn, error) {
	if f.failures.Add(-1) >= 0 {
		return nil, errors.New("accept: too many open files")
	}
	return f.Listener.Accept()
}

func TestAcceptFaultsAreSurvived(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	failing := &failingListener{Listener: ln}
	failing.failures.Store(3)
	l := startFakeServer(t, func(c *Config) { c.Listener = failing })
	l.wantGood()
	if n := strings.Count(l.log.String(), "cannot accept a connection"); n != 1 {
		t.Errorf("%d lines of faults, want 1", n)
	}
}

func TestConfigIsValidated(t *testing.T) {
	good := Config{
		Backend: newFakeNode(), Admin: newFakeNode(), Sources: fakeSources{newFakeNode()}, Addr: "127.0.0.1:0",
		Registry: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
	}
	for name, spoil := range map[string]func(*Config){
		"no backend":       func(c *Config) { c.Backend = nil },
		"no address":       func(c *Config) { c.Addr = "" },
		"no registry":      func(c *Config) { c.Registry = nil },
		"no logger":        func(c *Config) { c.Logger = nil },
		"negative timeout": func(c *Config) { c.ReadTimeout = -1 },
		"negative bound":   func(c *Config) { c.ConnsMax = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			spoil(&cfg)
			if _, err := New(cfg); err == nil {
				t.Error("New took it")
			}
		})
	}
}
