package data

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/proctest"
)

// sourceServer answers requests about the source likes. The lag of the source falls by 10 with each
// read.
type sourceServer struct {
	mu    sync.Mutex
	calls []string
	lag   int
	state string
}

func (s *sourceServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	s.calls = append(s.calls, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+string(body)))
	if r.URL.Path != "/v1/sources" && !strings.HasPrefix(r.URL.Path, "/v1/sources/likes") {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"code":"not_found","message":"no such source"}}`)
		return
	}
	of := fmt.Sprintf(`{"name":"likes","type":"redis-stream","state":%q,"reason":"","node":"n1","applied":5,"rejected":1,"lag":%d,`+
		`"partitions":[{"partition":0,"state":%q,"reason":"","node":"n1","position":"5-%d","end":"5-100","end_age_ms":0,"lag":%d,"lag_seconds":1.5,"rate":10,"applied":5,"rejected":1}],"config":{}}`,
		s.state, s.lag, s.state, 100-s.lag, s.lag)
	if r.Method == http.MethodGet {
		s.lag = max(0, s.lag-10)
	}
	if r.URL.Path == "/v1/sources" {
		of = `{"sources":[` + of + `]}`
	}
	fmt.Fprint(w, of)
}

// called returns the last request as text.
func (s *sourceServer) called() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[len(s.calls)-1]
}

func TestSource(t *testing.T) {
	t.Parallel()
	s := &sourceServer{lag: 30, state: "running"}
	server := httptest.NewServer(s)
	defer server.Close()
	i := invoke(t, server.URL, Commands)

	file := filepath.Join(t.TempDir(), "likes.yaml")
	const config = "name: likes\ntype: redis-stream\naddr: 127.0.0.1:1\nkey: likes"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, call string }{
		{"create " + file, "PUT /v1/sources/likes " + config},
		{"pause likes", "POST /v1/sources/likes/pause {}"},
		{"resume likes", "POST /v1/sources/likes/resume {}"},
		{"seek likes 0=700 3=1-2", `POST /v1/sources/likes/seek {"positions":{"0":"700","3":"1-2"}}`},
		{"delete likes", "DELETE /v1/sources/likes"},
		{"list", "GET /v1/sources"},
	} {
		i.OK(append([]string{"source"}, strings.Fields(test.args)...)...)
		if got := s.called(); got != test.call {
			t.Errorf("source %s calls %q, want %q", test.args, got, test.call)
		}
	}
	if all := proctest.Decode[sourcesOutput](t, i.OK("source", "list", "-o", "json")).Sources; len(all) != 1 || all[0].Partitions[0].End != "5-100" {
		t.Errorf("list %+v", all)
	}
	if of := proctest.Decode[admin.Source](t, i.OK("source", "show", "likes", "--wait", "-o", "json")); *of.Lag != 0 || of.Partitions[0].Position != "5-100" {
		t.Errorf("waited for %+v", of)
	}
	if table := i.OK("source", "show", "likes"); !strings.Contains(table, "5-100") || !strings.Contains(table, "n1") {
		t.Errorf("the table:\n%s", table)
	}
	s.state = "paused"
	for args, want := range map[string]string{
		"show likes --wait": "it is paused",
		"show nope":         "no such source",
		"create nope.yaml":  "no such file",
		"seek likes 0":      "PARTITION=POSITION",
		"seek likes":        "takes NAME",
		"":                  "source needs create",
	} {
		if got := i.Run(append([]string{"source"}, strings.Fields(args)...)...); got.Code == cli.ExitOK || !strings.Contains(got.Err, want) {
			t.Errorf("source %s: exit %d, %s", args, got.Code, got.Err)
		}
	}
}

// sourcesOutput is the JSON output of "source list".
type sourcesOutput struct {
	Sources []admin.Source `json:"sources"`
}
