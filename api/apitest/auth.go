// Package apitest has helpers for tests of servers: a catalog of users in memory, the matrix of
// docs/SECURITY.md, and sets of members in memory. It never starts a server.
package apitest

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/catalog"
)

// Cluster is an auth.Cluster with a catalog in memory.
type Cluster struct {
	mu   sync.Mutex
	view *catalog.View
}

// Catalog returns the catalog.
func (c *Cluster) Catalog() *catalog.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view
}

// CatchUp does nothing, because there is only one copy of the catalog.
func (c *Cluster) CatchUp(context.Context) error { return nil }

// ChangeOnAll applies a command.
func (c *Cluster) ChangeOnAll(_ context.Context, command *catalog.Command) (*catalog.Result, []string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	view, result := c.view.After(command)
	c.view = view
	return result, nil, nil
}

// OpenAuth returns an Authorizer for the users of a new Cluster, and that Cluster.
func OpenAuth(t testing.TB, mode auth.Mode) (*auth.Authorizer, *Cluster) {
	t.Helper()
	c := &Cluster{view: catalog.New().View()}
	c.view.ClusterVersion = catalog.ClusterVersionMax
	a, err := auth.New(auth.Config{Mode: mode, Registry: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); a.Follow(ctx, c) }()
	t.Cleanup(func() { cancel(); <-ended })
	token := []byte(c.Token(t, "probe", catalog.Grant{Role: "reader", Keyspaces: []string{"x"}}))
	must.Become(t, "it trusts its users", func() bool {
		_, why := a.Identify(token, time.Now())
		return why == auth.Granted
	})
	return a, c
}

// Token creates a user with grants, and returns a token of that user.
func (c *Cluster) Token(t testing.TB, user string, grants ...catalog.Grant) string {
	t.Helper()
	if _, _, err := auth.PutUser(t.Context(), c, user, catalog.UserRights{Grants: grants}, nil); err != nil {
		t.Fatal(err)
	}
	_, text, _, err := auth.AddToken(t.Context(), c, user, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Roles has the columns of the matrix; "nobody" is a caller without a token.
var Roles = []string{"nobody", "reader", "writer", "ingest", "metrics", "admin"}

// Row is a row of the documented matrix.
type Row struct {
	Keyspaces []string
	May       map[string]bool // by role
}

// Matrix returns the rows of the matrix under a heading of docs/SECURITY.md. The keys are the names
// of the calls.
func Matrix(t testing.TB, file, heading string) map[string]Row {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n### "+heading+"\n")
	if !found {
		t.Fatalf("no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n#")
	rows := map[string]Row{}
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 2+len(Roles) {
			t.Fatalf("bad row: %s", line)
		}
		row := Row{May: map[string]bool{}}
		if cells[1] != "" {
			row.Keyspaces = strings.Split(cells[1], ", ")
		}
		for i, role := range Roles {
			if cells[2+i] != "" && cells[2+i] != "yes" {
				t.Fatalf("neither yes nor empty: %s", line)
			}
			row.May[role] = cells[2+i] == "yes"
		}
		rows[strings.Trim(cells[0], "`")] = row
	}
	return rows
}
