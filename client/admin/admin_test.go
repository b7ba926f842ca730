package admin_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/must"
)

// TestCallsOfClient checks that the calls use the token, retries and keys of the client. In the
// test, every first try fails.
func TestCallsOfClient(t *testing.T) {
	var seen, keys []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer secret" {
			t.Errorf("%s has the token %q", r.URL, got)
		}
		seen = append(seen, r.Method+" "+r.URL.Path)
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if len(seen) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, `{"nodes":[{"id":"n1"}],"applied":1}`)
	}))
	defer server.Close()
	c, err := client.New(client.Config{Addrs: []string{server.URL}, Token: "secret", Retry: client.Retry{For: must.BecomeMax}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a := admin.New(c)
	nodes, err := a.ClusterNodes(t.Context())
	if want := []string{"GET /v1/admin/nodes", "GET /v1/admin/nodes"}; err != nil || len(nodes.Nodes) != 1 || !slices.Equal(seen, want) {
		t.Errorf("nodes: %+v, %v after %q", nodes, err, seen)
	}
	seen, keys = nil, nil
	written, err := a.CorrectMany(t.Context(), "posts", []client.Op{{ID: client.Number(1)}}, client.WriteOptions{Quiet: true})
	if err != nil || written.Applied != 1 || len(keys) != 2 || keys[0] == "" || keys[0] != keys[1] {
		t.Errorf("corrections: %+v, %v after the keys %q", written, err, keys)
	}
	seen = nil
	if _, err := a.DropKeyspace(t.Context(), "posts"); !errors.Is(err, client.ErrUnknown) || len(seen) != 1 {
		t.Errorf("drop: %v after %q", err, seen)
	}
	seen = []string{"an earlier call"}
	if text, err := a.Raw(t.Context(), "/metrics"); err != nil || string(text) != `{"nodes":[{"id":"n1"}],"applied":1}` {
		t.Errorf("raw: %q, %v", text, err)
	}
}

// TestStreamsOfClient checks that Snapshot reads the index, rows and length of a snapshot, and the
// error of a refusal.
func TestStreamsOfClient(t *testing.T) {
	head := map[string]string{"Countd-Index": "7", "Countd-Rows": "3", "Countd-Digest": "0123456789abcdef", "Content-Length": "4"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/admin/groups/1/snapshot" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":{"code":"unknown_group","message":"m"}}`)
			return
		}
		for name, value := range head {
			w.Header().Set(name, value)
		}
		_, _ = io.WriteString(w, "rows")
	}))
	defer server.Close()
	c, err := client.New(client.Config{Addrs: []string{server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := admin.New(c).Snapshot(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if rows, err := io.ReadAll(s); err != nil || string(rows) != "rows" || s.Index != 7 || s.Rows != 3 || s.Bytes != 4 {
		t.Errorf("the snapshot is %q, %v, %+v", rows, err, s)
	}
	var refused *client.Error
	if _, err := admin.New(c).Snapshot(t.Context(), 2); !errors.As(err, &refused) || refused.Code != "unknown_group" {
		t.Errorf("the error is %v", err)
	}
}
