package api

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/shard/tiering"
)

// fakeServer is a server on loopback over a fakeNode, or over the Backend that the test's change of
// the Config has set.
type fakeServer struct {
	t      testing.TB
	node   *fakeNode
	server *Server
	log    *proctest.Buffer
	served chan error
}

// startFakeServer starts a server, which the test's cleanup shuts down.
func startFakeServer(t testing.TB, change func(*Config)) *fakeServer {
	t.Helper()
	l := &fakeServer{t: t, node: newFakeNode(), log: &proctest.Buffer{}, served: make(chan error, 1)}
	cfg := Config{
		Outboxes: inbox.OutboxKeep{Layout: tiering.LayoutWeibo, For: inbox.OutboxKeepDefault},
		Backend:  l.node,
		Admin:    l.node,
		Sources:  fakeSources{l.node},
		Addr:     "127.0.0.1:0",
		Version:  "1.2.3",
		Registry: prometheus.NewRegistry(),
		Logger:   slog.New(slog.NewTextHandler(l.log, nil)),

		AllowedHosts: []string{"a", "x"},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if l.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	go func() { l.served <- l.server.Serve() }()
	t.Cleanup(func() {
		if err := l.server.Shutdown(must.Context(t)); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-l.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l
}

// reply is an answer as the client receives it.
type reply struct {
	status int
	header http.Header
	body   string
}

// do sends one request on a connection of its own. Headers are name, value, ….
func (l *fakeServer) do(method, path, body string, headers ...string) reply {
	l.t.Helper()
	got, err := l.try(method, path, strings.NewReader(body), headers...)
	if err != nil {
		l.t.Fatalf("%s %s: %v", method, path, err)
	}
	return got
}

func (l *fakeServer) try(method, path string, body io.Reader, headers ...string) (reply, error) {
	request, err := http.NewRequest(method, "http://"+l.server.Addr().String()+path, body)
	if err != nil {
		return reply{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" { // net/http does not treat it as a header
			request.Host = headers[i+1]
		}
	}
	transport := &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Second}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, string(text)}, err
}

// newCall returns a request as its handler receives it.
func newCall(method, path, body string) *fasthttp.RequestCtx {
	var r fasthttp.Request
	r.Header.SetMethod(method)
	r.SetRequestURI(path)
	r.SetBodyString(body)
	ctx := new(fasthttp.RequestCtx)
	ctx.Init(&r, &net.TCPAddr{}, nil)
	return ctx
}

// wantGood checks that the server still answers a good request.
func (l *fakeServer) wantGood() {
	l.t.Helper()
	l.node.setFault("")
	got := l.do("POST", "/v1/counters/posts/get", `{"ids":["987654321"],"columns":["like"]}`)
	if want := `{"results":[{"id":"987654321","counts":{"like":0}}]}`; got.status != 200 || got.body != want {
		l.t.Fatalf("a good request is answered %d %s, want 200 %s", got.status, got.body, want)
	}
}
