package data

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// The error for a bad id names the kind of argument, such as "the author".
func TestBadIDsAreNamed(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"keyspaces":[{"name":"posts"},{"name":"users"}]}`))
	}))
	defer server.Close()
	i := invoke(t, server.URL, Commands)
	for line, want := range map[string]string{
		"outbox add x 1":         `the author "x"`,
		"outbox add 1 x":         `the post "x"`,
		"outbox remove 1 1.5":    `the post "1.5"`,
		"outbox list x":          `the author "x"`,
		"feed reset 1 --up-to x": `the post "x"`,
		"feed follow x 1":        `the user "x"`,
	} {
		if got := i.Run(strings.Fields(line)...); got.Code != cli.ExitUsage || !strings.Contains(got.Err, want) {
			t.Errorf("%s: exit %d, want %d with %s: %s", line, got.Code, cli.ExitUsage, want, got.Err)
		}
	}
}

// --limit 0 is an error and does not mean the default, as in the API.
func TestLimitsAreChecked(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("{}")) }))
	defer server.Close()
	i := invoke(t, server.URL, Commands)
	for _, line := range []string{"timeline 1", "outbox list 1", "members list 1", "members of 1"} {
		for limit, good := range map[string]bool{"0": false, "-1": false, "1001": false, "x": false, "1": true, "1000": true} {
			got := i.Run(append(strings.Fields(line), "--limit", limit)...)
			if good && got.Code != cli.ExitOK || !good && (got.Code != cli.ExitUsage || !strings.Contains(got.Err, "--limit") || !strings.Contains(got.Err, "1 to 1000")) {
				t.Errorf("%s --limit %s: exit %d: %s", line, limit, got.Code, got.Err)
			}
		}
	}
}
