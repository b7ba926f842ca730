package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// TestUsersByCountctl makes, changes and deletes users and tokens as an operator does: each command
// prints its effect, refuses a meaningless change with a reason, and takes effect at once.
func TestUsersByCountctl(t *testing.T) {
	long(t)
	t.Parallel()
	c := startClosed(t)
	for _, step := range []struct {
		line string // arguments after countctl --token-file FILE
		code int
		want []string // texts that the output contains
	}{
		{"user list", 0, []string{"USER", "GRANTS"}},
		{"user create web --grant writer:posts,unread", 0, []string{"web", "writer:posts,unread"}},
		{"user create web --grant admin", 1, []string{"there is a user web"}},
		{"user create bob", 2, []string{"needs --grant"}},
		{"user create bob --grant writer:", 2, []string{"--grant is ROLE:KEYSPACE"}},
		{"user create bob --grant owner:posts", 2, []string{"grants[0].role", "not one of admin, ingest, metrics, reader, writer"}},
		{"user create a/b --grant admin", 2, []string{"name"}},
		{"user create root --grant admin", 2, []string{"name"}},
		{"user grant web --grant reader:users --ops-per-second 5", 0, []string{"writer:posts,unread reader:users", "5 ops"}},
		{"user grant web --grant reader:feed", 0, []string{"reader:users reader:feed", "5 ops"}},
		{"user grant web --only --grant reader:posts --ops-per-second 0", 0, []string{"web   reader:posts  -"}},
		{"user grant bob --grant admin", 1, []string{"no such user"}},
		{"token create bob", 1, []string{"no such user"}},
		{"token create web --expires-in -1s", 2, []string{"--expires-in"}},
		{"token create web --expires-in 100000h", 1, []string{"expires_in", "87600h"}},
		{"token create web --expires-in 1h", 0, []string{"ctd_k1_"}},
		{"token create web", 0, []string{"ctd_k2_"}},
		{"token list web", 0, []string{"k1", "k2     ", "never"}},
		{"token list bob", 1, []string{"no such user"}},
		{"user show web", 0, []string{"reader:posts", "EXPIRES"}},
		{"token revoke web k1", 0, []string{"revoked token  k1"}},
		{"token revoke web k1", 1, []string{"no such token"}},
		{"token list web", 0, []string{"k2"}},
		{"user delete web", 0, []string{"deleted user  web"}},
		{"user delete web", 1, []string{"no such user"}},
		{"user", 2, []string{"user needs"}}, {"token", 2, []string{"token needs"}}, {"audit", 2, []string{"audit needs tail"}},
		{"audit tail -n 0", 2, []string{"--lines is 1 to 1000"}},
		{"audit tail -n 3", 0, []string{"OUTCOME", "users_delete", "not_found", "root"}},
	} {
		got := c.Ctl(append([]string{"--token-file", c.file}, strings.Fields(step.line)...)...)
		for _, want := range step.want {
			if text := got.Stdout + got.Stderr; got.Code != step.code || !strings.Contains(text, want) {
				t.Errorf("%s: exit %d, want %d with %q:\n%s", step.line, got.Code, step.code, want, text)
			}
		}
	}
	c.countctlShowsItsToken(t)
	open := proctest.NewNode(t, bin, t.TempDir())
	open.StartReady()
	if got := open.Ctl("audit", "tail"); got.Code != 1 || !strings.Contains(got.Stderr, "--audit-log") {
		t.Errorf("audit tail of a node without a log: exit %d, %s", got.Code, got.Stderr)
	}
}

// countctlShowsItsToken checks where countctl reads its token from, and what it prints without a
// valid token.
func (c *closedNode) countctlShowsItsToken(t *testing.T) {
	t.Helper()
	token := c.tokenOf("ann", "admin")
	if got := c.Ctl("user", "list"); got.Code != 1 || !strings.Contains(got.Stderr, "COUNTCTL_TOKEN or --token-file") {
		t.Errorf("without a token: exit %d, %s", got.Code, got.Stderr)
	}
	file := filepath.Join(t.TempDir(), "token")
	for text, code := range map[string]int{token: 0, "  " + token + "\n\n": 0, token[:len(token)-1] + "x": 1, "": 2} {
		must.Do(t, os.WriteFile(file, []byte(text), 0o600))
		if got := c.Ctl("--token-file", file, "user", "list"); got.Code != code {
			t.Errorf("token file %q: exit %d, want %d: %s", text, got.Code, code, got.Stderr)
		}
	}
	var made struct{ ID, Token string }
	must.Do(t, json.Unmarshal([]byte(c.asRoot("token", "create", "ann", "-o", "json")), &made))
	bears := http.Header{"Authorization": {"Bearer " + made.Token}}
	if status, err := c.Send(t.Context(), "GET", "/v1/users", bears, nil, nil); err != nil || status != http.StatusOK || !strings.HasPrefix(made.Token, "ctd_"+made.ID+"_") {
		t.Errorf("token %+v: %d, %v", made, status, err)
	}
	c.asRoot("token", "revoke", "ann", made.ID)
	if status, err := c.Send(t.Context(), "GET", "/v1/users", bears, nil, nil); err != nil || status != http.StatusUnauthorized {
		t.Errorf("the revoked token: %d, %v", status, err)
	}
}

// TestUsersChangedAtOnce: countctl reads a user and then changes it, and another operator changes
// the user in between. Neither change undoes the other.
func TestUsersChangedAtOnce(t *testing.T) {
	t.Parallel()
	node := proctest.NewNode(t, bin, t.TempDir())
	node.StartReady()
	target, err := url.Parse(node.URL)
	must.Do(t, err)
	var between []string // arguments of a command that runs right before the next change
	proxy := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if args := between; args != nil && r.Method == http.MethodPut {
			between = nil
			if got := node.Ctl(args...); got.Code != 0 {
				t.Errorf("%v: exit %d, %s", args, got.Code, got.Stderr)
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	defer server.Close()
	node.URL = server.URL
	for _, step := range []struct {
		line, between string
		code          int
		want          string // the user after the command
	}{
		{"create web --grant reader:posts", "create web --grant writer:unread", 1, "web   writer:unread  -"},
		{"grant web --grant reader:posts", "grant web --grant reader:users", 0, "writer:unread reader:users reader:posts  -"},
		{"grant web --grant reader:feed", "grant web --grant reader:users --ops-per-second 5", 0, "reader:posts reader:feed  0 requests, 5 ops"},
		{"grant web --only --grant admin", "grant web --requests-per-second 7 --ops-per-second 5", 0, "web   admin:*  7 requests, 5 ops"},
		{"grant web --grant admin", "grant web --grant admin", 0, "web   admin:*  7"}, // the grant is stored only once
		{"grant web --grant reader:posts", "delete web", 1, "no such user"},
	} {
		between = strings.Fields("user " + step.between)
		got := node.Ctl(append([]string{"user"}, strings.Fields(step.line)...)...)
		after := node.Ctl("user", "show", "web")
		if text := after.Stdout + after.Stderr; got.Code != step.code || between != nil || !strings.Contains(text, step.want) {
			t.Errorf("%s beside %s: exit %d, %s%s; want %d; the user is\n%s", step.line, step.between, got.Code, got.Stdout, got.Stderr, step.code, text)
		}
	}
}
