package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/auth"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/replica"
)

const rootToken = "root-token-of-the-tests-0123456789"

// enforcing is a server that checks its callers.
type enforcing struct {
	*fakeServer
	auth     *auth.Authorizer
	registry *prometheus.Registry
	auditLog string
}

func startEnforcing(t testing.TB) *enforcing { return startAuth(t, auth.Enforce, nil) }

// startAuth starts a server with the root token, and waits until the server trusts its users.
func startAuth(t testing.TB, mode auth.Mode, change func(*Config)) *enforcing {
	t.Helper()
	e := &enforcing{registry: prometheus.NewRegistry(), auditLog: filepath.Join(t.TempDir(), "audit.log")}
	file := filepath.Join(t.TempDir(), "root")
	if err := os.WriteFile(file, []byte(rootToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	log, err := auth.OpenAuditLog(e.auditLog, e.registry, logger)
	if err != nil {
		t.Fatal(err)
	}
	e.auth, err = auth.New(auth.Config{Mode: mode, RootToken: file, Audit: log, Registry: e.registry, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	var cluster auth.Cluster
	e.fakeServer = startFakeServer(t, func(c *Config) {
		c.Auth, c.Audit, c.Registry = e.auth, log, e.registry
		if change != nil {
			change(c)
		}
		cluster = c.Backend
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); e.auth.Follow(ctx, cluster) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	token := e.token(t, "probe", `{"role":"metrics"}`)
	eventually(t, "the server trusts its users", func() bool { return e.as(token, "GET", "/metrics", "").status != 503 })
	return e
}

// token creates a user with grants, and returns a token of that user.
func (e *enforcing) token(t testing.TB, user string, grants ...string) string {
	t.Helper()
	if got := e.as(rootToken, "PUT", "/v1/users/"+user, `{"grants":[`+strings.Join(grants, ",")+`]}`); got.status != 200 {
		t.Fatalf("user %s: %d %s", user, got.status, got.body)
	}
	got := e.as(rootToken, "POST", "/v1/users/"+user+"/tokens", `{"expires_in":"1h"}`)
	var made struct{ Token string }
	if err := json.Unmarshal([]byte(got.body), &made); err != nil || got.status != 200 {
		t.Fatalf("token of %s: %d %s", user, got.status, got.body)
	}
	return made.Token
}

func (e *enforcing) as(token, method, path, body string) reply {
	e.t.Helper()
	return e.do(method, path, body, "Authorization", "Bearer "+token)
}

// TestMatrixOfRoutes compares each route of docs/openapi.yaml with the matrix in docs/SECURITY.md,
// for each role and for a caller without a token:
//
//  1. if the row says yes, a user with the role on the row's keyspaces may make the call;
//  2. a user with the role on all but one of these keyspaces may not;
//  3. a route without a row fails the test.
func TestMatrixOfRoutes(t *testing.T) {
	e := startEnforcing(t)
	rows := apitest.Matrix(t, "../docs/SECURITY.md", "HTTP")
	all := loadContract(t).examples(t)
	all = slices.CompactFunc(slices.DeleteFunc(all, func(x example) bool { return x.status != 200 || x.Setup == "texts" }), func(a, b example) bool {
		return a.method == b.method && a.path == b.path
	})
	tokens := map[string]string{}
	token := func(role string, keyspaces []string) string {
		grant := fmt.Sprintf(`{"role":%q}`, role)
		if role != "metrics" && role != "admin" {
			grant = fmt.Sprintf(`{"role":%q,"keyspaces":["%s"]}`, role, strings.Join(keyspaces, `","`))
		}
		if tokens[grant] == "" {
			tokens[grant] = e.token(t, fmt.Sprintf("u%d", len(tokens)), grant)
		}
		return tokens[grant]
	}
	for _, x := range all {
		name := x.method + " " + x.path
		row, there := rows[name]
		if !there {
			t.Errorf("%s is in no matrix", name)
			continue
		}
		for _, role := range apitest.Roles {
			if role == "nobody" {
				e.wantMay(t, x, role, "", row.May[role])
				continue
			}
			named := keyspacesOf(row)
			e.wantMay(t, x, role, token(role, named), row.May[role])
			for i := range named {
				if len(row.Keyspaces) == 0 {
					break
				}
				but := append(slices.Delete(slices.Clone(named), i, i+1), "songs")
				e.wantMay(t, x, role, token(role, but), row.May[role] && role == "admin")
			}
		}
	}
}

// keyspacesOf returns the keyspaces of a row. The examples of the contract use posts.
func keyspacesOf(row apitest.Row) []string {
	switch {
	case len(row.Keyspaces) == 0 || row.Keyspaces[0] == "of the path":
		return []string{"posts"}
	case row.Keyspaces[0] == "of the body": // of POST /v1/ops
		return []string{"posts", "unread"}
	}
	return slices.Clone(row.Keyspaces)
}

// wantMay sends the request of an example as a caller.
func (e *enforcing) wantMay(t *testing.T, x example, role, token string, may bool) {
	t.Helper()
	e.node.renewRows()
	r, _ := x.request(t, "http://"+e.server.Addr().String())
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	got := x.replay(t, r)
	refused := got.status == http.StatusUnauthorized || got.status == http.StatusForbidden
	if refused == may {
		t.Errorf("%s by %s: answered %d %.200s; may: %v", x, role, got.status, got.body, may)
	}
	if refused && (got.status == http.StatusUnauthorized) != (token == "") {
		t.Errorf("%s by %s: answered %d", x, role, got.status)
	}
}

// renewRows resets the node, but keeps its users.
func (n *fakeNode) renewRows() {
	users := n.Catalog()
	n.reset()
	n.mu.Lock()
	n.mu.catalog = users
	n.mu.Unlock()
}

// TestNeedsOfRoutes checks that each route has a need. A route on rows must name the keyspaces that
// it needs; any other route must name none. Only probes and whoami may be public.
func TestNeedsOfRoutes(t *testing.T) {
	for _, r := range allRoutes() {
		n := r.need
		method, path := r.split()
		onRows := n.Access == auth.Read || n.Access == auth.Ingest || n.Access == auth.Write
		if n.Access == auth.Nobody || onRows == (len(n.Keyspaces) == 0 && n.In == auth.InNeed) || len(n.Keyspaces) > 0 && n.In != auth.InNeed {
			t.Errorf("%s %s: %+v", method, path, n)
		}
		if (n.In == auth.InPath) != strings.Contains(path, "{keyspace}") && n.Access != auth.Admin {
			t.Errorf("%s %s: %+v", method, path, n)
		}
		if n.Access == auth.Public && path != "/healthz" && path != "/readyz" && path != "/v1/whoami" {
			t.Errorf("%s is public", path)
		}
	}
}

// TestWhoami checks that whoami lists the caller's rights on keyspaces and on the cluster, and that a call of
// whoami without a token does not count as a refusal.
func TestWhoami(t *testing.T) {
	e := startEnforcing(t)
	web := e.token(t, "web", `{"role":"writer","keyspaces":["posts"]}`, `{"role":"metrics"}`)
	for token, want := range map[string]string{
		"":        `{"auth":"enforce","user":"","may":[]}`,
		web:       `{"auth":"enforce","user":"web","may":["read","ingest","write","status"]}`,
		rootToken: `{"auth":"enforce","user":"root","may":["read","ingest","write","status","admin"]}`,
	} {
		before := len(e.audited(t))
		if got := e.as(token, "GET", "/v1/whoami", ""); got.status != http.StatusOK || got.body != want {
			t.Errorf("token %q is answered %d %s", token, got.status, got.body)
		}
		if events := e.audited(t)[before:]; len(events) != 0 {
			t.Errorf("token %q is audited: %+v", token, events)
		}
	}
}

// TestRouteWithoutNeed checks that the server refuses all callers of a route without a need.
func TestRouteWithoutNeed(t *testing.T) {
	e := startEnforcing(t)
	get := e.server.routes.resources["/v1/version"].methods["GET"]
	was := get.need
	defer func() { get.need = was }()
	get.need = auth.Need{}
	ctx := newCall("GET", "/v1/version", "")
	ctx.Request.Header.Set("Authorization", "Bearer "+rootToken)
	e.server.serve(ctx)
	if status := ctx.Response.StatusCode(); status != http.StatusForbidden {
		t.Errorf("answered %d %s", status, ctx.Response.Body())
	}
}

func TestRefusedCalls(t *testing.T) {
	e := startEnforcing(t)
	web := e.token(t, "web", `{"role":"writer","keyspaces":["posts","unread"]}`)
	adder := e.token(t, "adder", `{"role":"ingest","keyspaces":["posts"]}`)
	for _, c := range []struct {
		name, token, method, path, body string
		status                          int
		want                            string
	}{
		{"no token", "", "GET", "/v1/keyspaces", "", 401, "a token is needed"},
		{"no token and no path", "", "GET", "/v1/nowhere", "", 401, "a token is needed"},
		{"no token and no method", "", "PATCH", "/healthz", "", 401, "a token is needed"},
		{"no token, and no body read", "", "POST", "/v1/counters/posts/incr", "nonsense", 401, "a token is needed"},
		{"a wrong token", "ctd_k1_" + strings.Repeat("0", 64), "GET", "/v1/version", "", 401, "nobody's"},
		{"no path", web, "GET", "/v1/nowhere", "", 404, "no such path"},
		{"no method", web, "PATCH", "/v1/keyspaces", "", 405, "method_not_allowed"},
		{"a keyspace that is not there", web, "POST", "/v1/counters/songs/incr", "", 403, "user web may not add to keyspace songs"},
		{"a poll, for the feed", web, "GET", "/v1/poll/7", "", 403, "user web may not read keyspace feed"},
		{"ops", web, "POST", "/v1/ops", `{"ops":[{"keyspace":"posts","id":1,"add":{"like":1}},{"add":{"like":1},"user":2}]}`, 200, ""},
		{"ops on another keyspace", web, "POST", "/v1/ops", `{"ops":[{"keyspace":"posts","id":1,"add":{"like":1}},{"keyspace":"users","id":1,"add":{"posts":1}}]}`, 403, "user web may not add to keyspace users"},
		{"ops, the keyspace last", web, "POST", "/v1/ops", `{"ops":[{"id":1,"add":{"posts":1},"keyspace":"users"}]}`, 403, "keyspace users"},
		{"ops of users without unread", adder, "POST", "/v1/ops", `{"ops":[{"user":1,"add":{"like":1}}]}`, 403, "keyspace unread"},
		{"ops that set", adder, "POST", "/v1/ops", `{"ops":[{"keyspace":"posts","id":1,"set":{"like":1}}]}`, 403, "user adder may not write to keyspace posts"},
		{"ops that set, by a writer", web, "POST", "/v1/ops", `{"ops":[{"keyspace":"posts","id":1,"set":{"like":1}}]}`, 200, ""},
		{"a read by one that adds", adder, "GET", "/v1/counters/posts/1", "", 403, "user adder may not read keyspace posts"},
		{"an order of no admin", web, "POST", "/v1/admin/cold/stop", "{}", 403, "user web may not make this call"},
	} {
		headers := []string{"Authorization", "Bearer " + c.token}
		if c.token == "" {
			headers = nil
		}
		got := e.do(c.method, c.path, c.body, headers...)
		if got.status != c.status || !strings.Contains(got.body, c.want) {
			t.Errorf("%s: answered %d %s", c.name, got.status, got.body)
		}
		if challenged := got.header.Get("WWW-Authenticate") == `Bearer realm="countd"`; challenged != (c.status == 401) {
			t.Errorf("%s: WWW-Authenticate %q", c.name, got.header.Get("WWW-Authenticate"))
		}
	}
	if got := e.do("GET", "/healthz", ""); got.status != 200 {
		t.Errorf("/healthz without a token: %d", got.status)
	}
	e.node.setFault("no_leader")
	for name, headers := range map[string][]string{"no": nil, "a wrong": {"Authorization", "Bearer ctd_k1_" + strings.Repeat("0", 64)}} {
		wantFault(t, e.do("GET", "/readyz", "", headers...), 503, "not_ready", "")
		if got := e.do("GET", "/readyz", "", headers...); strings.Contains(got.body, "leader") {
			t.Errorf("a probe with %s token is told %s", name, got.body)
		}
	}
	wantFault(t, e.do("GET", "/readyz", "", "Authorization", "Bearer "+web), 503, "no_leader", "")
	e.node.setFault("")
	if got := e.do("GET", "/readyz", ""); got.status != 200 {
		t.Errorf("/readyz without a token: %d", got.status)
	}
	for _, header := range []string{"Basic " + web, web, "Bearer", "Bearer  "} {
		if got := e.do("GET", "/v1/version", "", "Authorization", header); got.status != 401 {
			t.Errorf("Authorization %q: %d", header, got.status)
		}
	}
	if got := e.do("GET", "/v1/version", "", "Authorization", "bearer "+web); got.status != 200 {
		t.Errorf("the scheme in small letters: %d", got.status)
	}
}

// TestSeveralTokens checks that a request with several tokens is refused, and that such requests
// cannot flood the audit log.
func TestSeveralTokens(t *testing.T) {
	const calls = 300 // more calls than the limit of log lines about refusals
	e := startEnforcing(t)
	send := func(e *enforcing) reply {
		r, err := http.NewRequest("DELETE", "http://"+e.server.Addr().String()+"/v1/users/nobody", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header["Authorization"] = []string{"Bearer x", "Bearer " + rootToken}
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		text, err := io.ReadAll(got.Body)
		if err != nil {
			t.Fatal(err)
		}
		return reply{got.StatusCode, got.Header, string(text)}
	}
	for range calls {
		if got := send(e); got.status != 400 || !strings.Contains(got.body, "Authorization: given twice") {
			t.Fatalf("answered %d %s", got.status, got.body)
		}
	}
	text, err := os.ReadFile(e.auditLog)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(text), "users_delete"); lines > 150 {
		t.Errorf("%d calls of nobody have %d lines in the audit log", calls, lines)
	}
	if got := send(startAuth(t, auth.Permissive, nil)); got.status != 404 {
		t.Errorf("permissive answered %d %s, not as off does", got.status, got.body)
	}
}

// TestRevokedTokens checks that the server refuses a revoked token, and all tokens of a deleted
// user, from the next call on.
func TestRevokedTokens(t *testing.T) {
	e := startEnforcing(t)
	reader := `{"role":"reader","keyspaces":["*"]}`
	first, second := e.token(t, "web", reader), e.token(t, "web", reader)
	var user clientadmin.User
	if err := json.Unmarshal([]byte(e.as(rootToken, "GET", "/v1/users/web", "").body), &user); err != nil || len(user.Tokens) != 2 {
		t.Fatalf("%+v, %v", user, err)
	}
	status := func(token string) int { return e.as(token, "GET", "/v1/counters/posts/1", "").status }
	if got := e.as(rootToken, "DELETE", "/v1/users/web/tokens/"+user.Tokens[0].ID, ""); got.status != 200 || status(first) != 401 || status(second) != 200 {
		t.Errorf("after the first was revoked: %d; %d, %d", got.status, status(first), status(second))
	}
	if got := e.as(rootToken, "DELETE", "/v1/users/web/tokens/"+user.Tokens[0].ID, ""); got.status != 404 {
		t.Errorf("revoked again: %d", got.status)
	}
	if got := e.as(rootToken, "DELETE", "/v1/users/web", ""); got.status != 200 || status(second) != 401 {
		t.Errorf("after the user was deleted: %d; %d", got.status, status(second))
	}
}

// TestRevokedWhileABodyArrives checks that the server refuses a call if its token is revoked before
// its whole body has arrived.
func TestRevokedWhileABodyArrives(t *testing.T) {
	e := startEnforcing(t)
	web := e.token(t, "web", `{"role":"writer","keyspaces":["posts"]}`)
	body := `{"ops":[` + strings.Repeat(`{"id":1,"add":{"like":1}},`, 999) + `{"id":1,"add":{"like":1}}]}`
	for name, framing := range map[string][3]string{
		"a length": {fmt.Sprintf("Content-Length: %d", len(body)), body[:10_000], body[10_000:]},
		"chunks":   {"Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s", len(body), body[:10_000]), body[10_000:] + "\r\n0\r\n\r\n"},
	} {
		c, err := net.Dial("tcp", e.server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "POST /v1/counters/posts/incr HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+web+"\r\n"+framing[0]+"\r\n\r\n"+framing[1])
		eventually(t, "the server waits for the body", func() bool { return e.server.bodies.Used() > 0 })
		if got := e.as(rootToken, "PUT", "/v1/users/web", `{"grants":[{"role":"reader","keyspaces":["posts"]}]}`); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		_, _ = io.WriteString(c, framing[2])
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != 403 {
			t.Errorf("%s: answered %d", name, answer.StatusCode)
		}
		web = e.token(t, "web", `{"role":"writer","keyspaces":["posts"]}`)
	}
	if got := e.as(web, "GET", "/v1/counters/posts/1", ""); !strings.Contains(got.body, `"like":0`) {
		t.Errorf("after refused writes: %s", got.body)
	}
}

// TestRevokedWhileItReads checks that the server makes no write if the caller loses the token or a
// right during the reads before the write.
func TestRevokedWhileItReads(t *testing.T) {
	for name, test := range map[string]struct {
		method, path, body string
		status             int
	}{
		"the token":  {"DELETE", "/v1/users/web", "", 401},
		"its rights": {"PUT", "/v1/users/web", `{"grants":[{"role":"reader","keyspaces":["feed"]}]}`, 403},
	} {
		t.Run(name, func(t *testing.T) {
			e := startEnforcing(t)
			web := e.token(t, "web", `{"role":"writer","keyspaces":["feed"]}`)
			e.node.entered, e.node.leave = make(chan struct{}), make(chan struct{})
			answered := make(chan reply, 1)
			go func() { answered <- e.as(web, "POST", "/v1/feed/1/follow", `{"followees":["2"]}`) }()
			<-e.node.entered // the call reads the posts of user 2
			if got := e.as(rootToken, test.method, test.path, test.body); got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			close(e.node.leave)
			if got := <-answered; got.status != test.status {
				t.Errorf("answered %d %s, want %d", got.status, got.body, test.status)
			}
			if got := e.as(rootToken, "GET", "/v1/feed/1/followees", ""); !strings.Contains(got.body, `"followees":[]`) {
				t.Errorf("it was applied: %s", got.body)
			}
		})
	}
}

// TestRevokedStreams checks that a restore and a download of a snapshot end once the token is
// revoked.
func TestRevokedStreams(t *testing.T) {
	n := &withSnapshots{
		open: func() (*replica.Snapshot, error) {
			return &replica.Snapshot{ReadCloser: io.NopCloser(endless{}), Bytes: 1 << 40}, nil
		},
		restore: func(in io.Reader) (raftfsm.SnapshotFacts, error) {
			_, err := io.Copy(io.Discard, in)
			return raftfsm.SnapshotFacts{}, errors.Join(admin.ErrBadSnapshot, err)
		},
	}
	e := startAuth(t, auth.Enforce, n.config)
	ops := e.token(t, "ops", `{"role":"admin"}`)
	call := func(method, path string, body io.Reader) (*http.Response, error) {
		request, err := http.NewRequest(method, "http://"+e.server.Addr().String()+path, body)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+ops)
		request.Header.Set("Content-Type", contentTypeStream)
		return http.DefaultClient.Do(request)
	}
	download, err := call("GET", "/v1/admin/groups/1/snapshot", nil)
	if err != nil || download.StatusCode != 200 {
		t.Fatalf("%v, %v", download, err)
	}
	defer download.Body.Close()
	in, out := io.Pipe()
	restored := make(chan int, 1)
	go func() {
		if got, err := call("POST", "/v1/admin/groups/1/restore", in); err == nil {
			got.Body.Close()
			restored <- got.StatusCode
			return
		}
		restored <- 0
	}()
	piece := make([]byte, 1<<20)
	if _, err := out.Write(piece); err != nil {
		t.Fatal(err)
	}
	if got := e.as(rootToken, "DELETE", "/v1/users/ops", ""); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	go func() {
		for {
			if _, err := out.Write(piece); err != nil {
				return
			}
		}
	}()
	if status := <-restored; status != 401 {
		t.Errorf("the restore: %d", status)
	}
	in.Close()
	if read, err := io.Copy(io.Discard, io.LimitReader(download.Body, 1<<30)); err == nil {
		t.Errorf("the download goes on after %d bytes", read)
	}
}

// TestPermissive checks that the server serves everybody. It must count once each call that the
// mode enforce would refuse.
func TestPermissive(t *testing.T) {
	e := startAuth(t, auth.Permissive, nil)
	web := e.token(t, "web", `{"role":"reader","keyspaces":["posts"]}`)
	// A write asks for its permission at each try. So let the shard have a leader first.
	if got := e.as(rootToken, "POST", "/v1/ops", `{"ops":[{"keyspace":"users","id":1,"add":{"posts":1}}]}`); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for _, token := range []string{web, "", "nonsense"} {
		got := e.do("POST", "/v1/ops", `{"ops":[{"keyspace":"users","id":1,"add":{"posts":1}},{"keyspace":"users","id":1,"add":{"posts":1}}]}`, "Authorization", "Bearer "+token)
		if got.status != 200 {
			t.Errorf("token %q: %d %s", token, got.status, got.body)
		}
	}
	text := e.do("GET", "/metrics", "", "Authorization", "Bearer "+rootToken).body
	for _, line := range []string{`countd_auth_permitted_total{reason="permission_denied"} 1`, `countd_auth_permitted_total{reason="no_token"} 1`,
		`countd_auth_permitted_total{reason="bad_token"} 1`, `countd_auth_refused_total{reason="bad_token"} 0`} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}

func TestLimitsOfUsers(t *testing.T) {
	e := startEnforcing(t)
	web := e.token(t, "web", `{"role":"writer","keyspaces":["posts"]}`)
	limit := func(text string) {
		t.Helper()
		got := e.as(rootToken, "PUT", "/v1/users/web", `{"grants":[{"role":"writer","keyspaces":["posts"]}],"limits":`+text+`}`)
		if got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	over := func(got reply, least int, what string) {
		t.Helper()
		if wait, err := strconv.Atoi(got.header.Get("Retry-After")); got.status != 429 || err != nil || wait < least || !strings.Contains(got.body, what) {
			t.Errorf("answered %d %s, Retry-After %q", got.status, got.body, got.header.Get("Retry-After"))
		}
	}
	limit(`{"ops_per_second":1}`)
	body := `{"ops":[` + strings.Repeat(`{"id":1,"add":{"like":1}},`, 3599) + `{"id":1,"add":{"like":1}}]}`
	if got := e.as(web, "POST", "/v1/counters/posts/incr", body); got.status != 200 {
		t.Fatalf("a batch larger than the limit: %d %s", got.status, got.body)
	}
	over(e.as(web, "POST", "/v1/counters/posts/incr", `{"ops":[{"id":1,"add":{"like":1}}]}`), 3000, "more ops than its limit")
	if got := e.as(web, "GET", "/v1/counters/posts/1", ""); got.status != 200 || !strings.Contains(got.body, `"like":3600`) {
		t.Errorf("a read: %d %s", got.status, got.body)
	}
	limit(`{"connections_per_second":1}`)
	refused := false
	for range 20 { // each on a connection of its own
		if got := e.as(web, "GET", "/v1/counters/posts/1", ""); got.status == 429 {
			over(got, 1, "more connections than its limit")
			refused = true
			break
		}
	}
	if !refused {
		t.Error("20 connections at once are served")
	}
	if text := e.as(rootToken, "GET", "/metrics", "").body; !strings.Contains(text, `countd_user_overloaded_total{limit="ops",user="web"} 1`) {
		t.Error("the refused call is not counted")
	}
	// Each op of a batch of members counts once.
	limit(`{"ops_per_second":1,"requests_per_second":5000}`)
	batch := `{"ops":[` + strings.Repeat(`{"id":1,"member":1,"set":true},`, 999) + `{"id":1,"member":2,"set":true}]}`
	if got := e.as(web, "POST", "/v1/members/posts/like", batch); got.status != 200 {
		t.Fatalf("a batch of members: %d %s", got.status, got.body)
	}
	got := e.as(web, "POST", "/v1/members/posts/like", batch)
	if over(got, 900, "more ops than its limit"); len(got.header.Get("Retry-After")) > 3 {
		t.Errorf("1000 ops last %s s", got.header.Get("Retry-After"))
	}
	// A connection counts against the user's limit from the first request with the user's token,
	// whatever requests came before.
	for i, first := range []string{"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n"} {
		limit(fmt.Sprintf(`{"connections_per_second":1,"requests_per_second":%d}`, 1000+i)) // a changed limit starts with nothing used
		statuses := []int{}
		for range 20 {
			statuses = append(statuses, e.statuses(t, first+"GET /v1/counters/posts/1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+web+"\r\n\r\n", 2)[1])
		}
		if statuses[0] != 200 || !slices.Contains(statuses, 429) {
			t.Errorf("after %q, connections are answered %v", first, statuses)
		}
	}
	limit(`{"connections_per_second":1}`)
	one := "GET /v1/counters/posts/1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + web + "\r\n\r\n"
	if got := e.statuses(t, strings.Repeat(one, 20), 20); slices.ContainsFunc(got, func(status int) bool { return status != 200 }) {
		t.Errorf("20 requests on one connection are answered %v", got)
	}
}

// statuses sends requests on one new connection, and returns the statuses of n answers.
func (e *enforcing) statuses(t *testing.T, requests string, n int) (all []int) {
	t.Helper()
	c, err := net.Dial("tcp", e.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, requests); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	for range n {
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		all = append(all, answer.StatusCode)
	}
	return all
}

// TestEveryAdminCallIsAudited checks that each call that only an admin may make has a line in the
// audit log, whether it changes anything or not.
func TestEveryAdminCallIsAudited(t *testing.T) {
	e := startEnforcing(t)
	for _, r := range allRoutes() {
		if r.need.Access != auth.Admin {
			continue
		}
		method, template := r.split()
		path := namesInBraces.ReplaceAllString(template, "1")
		before := len(e.audited(t))
		e.as(rootToken, method, path, "")
		events := e.audited(t)[before:]
		if len(events) != 1 || events[0].Who != auth.RootName || events[0].Target != path || events[0].Status == 0 {
			t.Errorf("%s %s: %+v", method, template, events)
		}
	}
}

// namesInBraces matches the variables of a route's path, such as {user}.
var namesInBraces = regexp.MustCompile(`\{[^}]*\}`)

// audited returns the lines of the audit log.
func (e *enforcing) audited(t *testing.T) (events []clientadmin.AuditEvent) {
	t.Helper()
	text, err := os.ReadFile(e.auditLog)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var event clientadmin.AuditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatal(err)
		}
		events = append(events, event)
	}
	return events
}

// TestTokensAreNotLogged checks that the server logs no token, whatever happens to calls with
// one.
func TestTokensAreNotLogged(t *testing.T) {
	e := startEnforcing(t)
	web := e.token(t, "web", `{"role":"writer","keyspaces":["posts"]}`)
	wrong := "ctd_k1_" + strings.Repeat("5", 64)
	for _, token := range []string{rootToken, web, wrong} {
		e.as(token, "POST", "/v1/keyspaces", `{"name":"shop","columns":["buy"]}`)
		e.as(token, "POST", "/v1/admin/nodes/n9/drain", "{}")
		for _, fault := range []string{"failure", "panic", "outcome_unknown"} {
			e.node.setFault(fault)
			e.as(token, "POST", "/v1/users/web/tokens", "{}")
			e.as(token, "GET", "/v1/counters/posts/1", "")
		}
		e.node.setFault("")
	}
	for _, token := range []string{rootToken, web, wrong} { // send the token in parts of a request where no token belongs
		for _, of := range []string{web, rootToken} {
			e.as(of, "DELETE", "/v1/users/web/tokens/"+token, "")
			e.as(of, "DELETE", "/v1/users/"+strings.Replace(token, "_", "%5f", 1)+"?token="+token, "")
			e.as(of, "POST", "/v1/keyspaces", `{"name":"`+token+`","columns":["buy"]}`)
			e.as(of, "POST", "/v1/admin/cold/migrate?token="+token, `{"token":"`+token+`"}`)
			e.as(of, "GET", "/v1/counters/"+token+"/1", "")
		}
	}
	log, err := os.ReadFile(e.auditLog)
	if err != nil || !strings.Contains(string(log), `"who":"web"`) {
		t.Fatalf("%s, %v", log, err)
	}
	for _, token := range []string{rootToken, web[len("ctd_k1_"):], wrong[len("ctd_k1_"):]} {
		if strings.Contains(string(log), token) || strings.Contains(e.log.String(), token) {
			t.Errorf("token %s is in %s\n%s", token, log, e.log.String())
		}
	}
}
