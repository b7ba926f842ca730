package redis

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/catalog"
)

// authLines has one line of each command, on posts and the unread numbers.
var authLines = map[string]string{
	"AUTH": "AUTH x", "CLIENT": "CLIENT ID", "COMMAND": "COMMAND COUNT", "CONFIG": "CONFIG GET save", "SELECT": "SELECT 0", "HELLO": "HELLO 2",
	"PING": "PING", "ECHO": "ECHO a", "READONLY": "READONLY", "READWRITE": "READWRITE", "INFO": "INFO server", "WAIT": "WAIT 0 0", "QUIT": "QUIT",
	"MULTI": "MULTI", "EXEC": "EXEC", "DISCARD": "DISCARD", "COUNTD.SESSION": "COUNTD.SESSION end",
	"GET": "GET posts:1:like", "MGET": "MGET posts:1:like posts:2:like", "EXISTS": "EXISTS posts:1", "TYPE": "TYPE posts:1", "TTL": "TTL posts:1",
	"HGET": "HGET posts:1 like", "HMGET": "HMGET posts:1 like", "HGETALL": "HGETALL posts:1", "HLEN": "HLEN posts:1", "HEXISTS": "HEXISTS posts:1 like",
	"HSCAN": "HSCAN posts:1 0", "SCAN": "SCAN 0", "DBSIZE": "DBSIZE",
	"INCR": "INCR posts:1:like", "DECR": "DECR posts:1:like", "INCRBY": "INCRBY posts:1:like 2", "DECRBY": "DECRBY posts:1:like 2",
	"HINCRBY": "HINCRBY posts:1 like 2", "COUNTD.INCR": "COUNTD.INCR posts:1:like 1 KEY k",
	"SADD": "SADD posts:1:like:members 7", "SREM": "SREM posts:1:like:members 7", "SCARD": "SCARD posts:1:like:members", "SSCAN": "SSCAN posts:1:like:members 0",
	"SISMEMBER": "SISMEMBER posts:1:like:members 7", "SMISMEMBER": "SMISMEMBER posts:1:like:members 7 8",
	"SET": "SET posts:1:like 2", "MSET": "MSET posts:1:like 2", "GETSET": "GETSET posts:1:like 2", "GETDEL": "GETDEL posts:1:like", "DEL": "DEL posts:1",
	"HSET": "HSET posts:1 like 2", "HDEL": "HDEL posts:1 like",
	"COUNTD.UNREAD.GET": "COUNTD.UNREAD.GET 1", "COUNTD.UNREAD.INCR": "COUNTD.UNREAD.INCR 1 at 1", "COUNTD.UNREAD.RESET": "COUNTD.UNREAD.RESET 1 COLUMNS 1 at",
	"COUNTD.NOTICE.PUBLISH": "COUNTD.NOTICE.PUBLISH news", "COUNTD.NOTICE.RETRACT": "COUNTD.NOTICE.RETRACT news 1", "COUNTD.NOTICE.GET": "COUNTD.NOTICE.GET news 1",
	"COUNTD.NOTICE.READ": "COUNTD.NOTICE.READ news 1", "COUNTD.NOTICE.LIST": "COUNTD.NOTICE.LIST",
	"COUNTD.DOT.FIRE": "COUNTD.DOT.FIRE shop", "COUNTD.DOT.SET": "COUNTD.DOT.SET shop NEWUSERS 1", "COUNTD.DOT.GET": "COUNTD.DOT.GET shop 1",
	"COUNTD.DOT.CLEAR": "COUNTD.DOT.CLEAR shop 1", "COUNTD.DOT.LIST": "COUNTD.DOT.LIST",
	"COUNTD.FEED.RESET": "COUNTD.FEED.RESET 1", "COUNTD.FEED.FOLLOW": "COUNTD.FEED.FOLLOW 1 2", "COUNTD.FEED.UNFOLLOW": "COUNTD.FEED.UNFOLLOW 1 2",
	"COUNTD.FEED.READ": "COUNTD.FEED.READ 1 2", "COUNTD.FEED.UNREAD": "COUNTD.FEED.UNREAD 1",
	"COUNTD.OUTBOX.ADD": "COUNTD.OUTBOX.ADD 1 2", "COUNTD.OUTBOX.REM": "COUNTD.OUTBOX.REM 1 2", "COUNTD.OUTBOX.LIST": "COUNTD.OUTBOX.LIST 1",
	"COUNTD.TIMELINE": "COUNTD.TIMELINE 1",
	"COUNTD.HOT":      "COUNTD.HOT posts:like",
	"COUNTD.TOP":      "COUNTD.TOP posts:like",
	"COUNTD.POLL":     "COUNTD.POLL 1", "COUNTD.MPOLL": "COUNTD.MPOLL 1",
}

func serveEnforcing(t *testing.T, mode auth.Mode) (*Server, *apitest.Cluster) {
	a, cluster := apitest.OpenAuth(t, mode)
	return serve(t, newFakeNode(), func(c *Config) { c.Auth = a }), cluster
}

func grant(role string, keyspaces ...string) catalog.Grant {
	if role == "metrics" || role == "admin" {
		keyspaces = nil
	}
	return catalog.Grant{Role: role, Keyspaces: keyspaces}
}

// loggedIn returns a connection that has logged in with a token.
func loggedIn(t *testing.T, s *Server, token string) *client {
	t.Helper()
	c := dial(t, s)
	if token != "" {
		if got := c.do("AUTH " + token)[0]; got != "+OK" {
			t.Fatalf("AUTH: %s", got)
		}
	}
	return c
}

// TestMatrixOfCommands compares each command with the matrix in docs/SECURITY.md. It tries each
// role with rights on all keyspaces that the command needs, and then on all but one of these. It
// also tries a client without a login. A command without a row fails the test.
func TestMatrixOfCommands(t *testing.T) {
	s, cluster := serveEnforcing(t, auth.Enforce)
	rows := apitest.Matrix(t, "../../docs/SECURITY.md", "Redis")
	users := 0
	for _, cmd := range s.commands {
		name := strings.ToUpper(cmd.name)
		row, there := rows[name]
		line := authLines[name]
		if !there || line == "" {
			t.Errorf("%s is in the matrix: %v, has a line: %v", name, there, line != "")
			continue
		}
		checkNeed(t, cmd)
		named := row.Keyspaces
		if len(named) == 0 || named[0] == "of the keys" {
			named = []string{"posts"}
		}
		check := func(role, token string, may bool) {
			got := loggedIn(t, s, token).do(line)[0]
			refused := strings.Contains(got, "NOAUTH") || strings.Contains(got, "NOPERM")
			if name == "HELLO" && token == "" {
				refused = !refused // HELLO itself may be called, but needs AUTH among its options
			}
			if refused == may || refused && strings.Contains(got, "NOAUTH") != (token == "") && name != "HELLO" {
				t.Errorf("%s by %s: %s; may: %v", line, role, got, may)
			}
		}
		for _, role := range apitest.Roles {
			if role == "nobody" {
				check(role, "", row.May[role])
				continue
			}
			users++
			check(role, cluster.Token(t, fmt.Sprintf("u%d", users), grant(role, named...)), row.May[role])
			for i := range row.Keyspaces {
				if name == "SCAN" || name == "DBSIZE" {
					break // these commands succeed, and omit the keyspaces that the user may not read
				}
				users++
				but := append(slices.Delete(slices.Clone(named), i, i+1), "songs")
				check(role+" elsewhere", cluster.Token(t, fmt.Sprintf("u%d", users), grant(role, but...)), row.May[role] && role == "admin")
			}
		}
		if users > 900 { // stay below the bound of users of a cluster
			s, cluster = serveEnforcing(t, auth.Enforce)
			users = 0
		}
	}
	for name := range rows {
		if s.commands[strings.ToLower(name)] == nil {
			t.Errorf("the matrix has %s, which is no command", name)
		}
	}
}

// checkNeed checks that a command on rows declares the keyspaces that it needs, and that any other
// command declares none.
func checkNeed(t *testing.T, cmd *command) {
	t.Helper()
	n := cmd.need
	onRows := n.Access == auth.Read || n.Access == auth.Ingest || n.Access == auth.Write
	if onRows == (len(n.Keyspaces) == 0 && n.In == auth.InNeed) || len(n.Keyspaces) > 0 && n.In != auth.InNeed {
		t.Errorf("%s: %+v", cmd.name, n)
	}
}

// TestCommandWithoutNeed checks that the server refuses all callers of a command without a need.
func TestCommandWithoutNeed(t *testing.T) {
	a, cluster := apitest.OpenAuth(t, auth.Enforce)
	s := serve(t, newFakeNode(), func(c *Config) { c.Auth = a })
	s.commands["ping"].need = auth.Need{}
	if got := loggedIn(t, s, cluster.Token(t, "ann", grant("admin"))).do("PING")[0]; !strings.HasPrefix(got, "-NOPERM") {
		t.Error(got)
	}
}

func TestLogin(t *testing.T) {
	s, cluster := serveEnforcing(t, auth.Enforce)
	web := cluster.Token(t, "web", grant("writer", "posts"))
	wrong := "ctd_k1_" + strings.Repeat("0", 64)
	const wrongPass = "-" + errWrongPass
	for _, tc := range []struct{ line, want string }{
		{"AUTH " + web, "+OK"}, {"AUTH web " + web, "+OK"}, {"AUTH default " + web, "+OK"},
		{"AUTH ann " + web, wrongPass}, {"AUTH " + wrong, wrongPass}, {"AUTH web " + wrong, wrongPass}, {"AUTH ''", wrongPass},
		{"AUTH a b c", "-ERR syntax error"}, {"PING", "-" + errNoAuth}, {"GET posts:1:like", "-" + errNoAuth}, {"HELLO 3", "-" + errNoAuthHello},
		{"HELLO 3 AUTH web " + wrong, wrongPass}, {"HELLO 3 AUTH ann " + web, wrongPass}, {"QUIT", "+OK"},
	} {
		if got := dial(t, s).do(tc.line)[0]; got != tc.want {
			t.Errorf("%s: %s, want %s", tc.line, got, tc.want)
		}
	}
	c := dial(t, s)
	if got := c.do("HELLO 3 AUTH web " + web + " SETNAME x")[0]; !strings.Contains(got, "proto") {
		t.Errorf("HELLO: %s", got)
	}
	if got := c.do("AUTH " + wrong)[0]; got != wrongPass {
		t.Error(got)
	}
	if got := c.do("INCR posts:1:like")[0]; got != "1" {
		t.Errorf("after a failed AUTH: %s", got)
	}
	if got := c.do("INCR users:1:posts")[0]; got != "-NOPERM User web has no permissions to run the 'incr' command" {
		t.Error(got)
	}
	if got := c.do("MGET posts:1:like users:1:posts")[0]; !strings.HasPrefix(got, "-NOPERM") {
		t.Error(got)
	}
}

// TestRevokedLogin checks that a connection loses its rights when its token is revoked, also in a
// transaction. New grants take effect at once.
func TestRevokedLogin(t *testing.T) {
	s, cluster := serveEnforcing(t, auth.Enforce)
	c := loggedIn(t, s, cluster.Token(t, "web", grant("writer", "posts")))
	queued := loggedIn(t, s, cluster.Token(t, "web", grant("writer", "posts")))
	for _, step := range [][2]string{{"MULTI", "+OK"}, {"INCR posts:1:like", "+QUEUED"}} {
		if got := queued.do(step[0])[0]; got != step[1] {
			t.Fatal(got)
		}
	}
	if _, _, err := auth.PutUser(t.Context(), cluster, "web", catalog.UserRights{Grants: []catalog.Grant{grant("reader", "posts")}}, nil); err != nil {
		t.Fatal(err)
	}
	if got := queued.do("EXEC")[0]; !strings.HasPrefix(got, "-EXECABORT Transaction discarded because of: NOPERM") {
		t.Errorf("EXEC of a reader: %s", got)
	}
	if got := c.do("GET posts:1:like")[0]; got != "null" {
		t.Errorf("a read after the transaction was refused: %s", got)
	}
	if got := c.do("INCR posts:1:like")[0]; !strings.HasPrefix(got, "-NOPERM") {
		t.Errorf("a write of a reader: %s", got)
	}
	if _, _, err := auth.DeleteUser(t.Context(), cluster, "web"); err != nil {
		t.Fatal(err)
	}
	if got := c.do("GET posts:1:like")[0]; got != "-"+errNoAuth {
		t.Errorf("after the user was deleted: %s", got)
	}
}

// TestRevokedInAPipeline revokes a token while the server executes a pipeline. The server must
// refuse the rest of the pipeline, even though the rest has already arrived.
func TestRevokedInAPipeline(t *testing.T) {
	a, cluster := apitest.OpenAuth(t, auth.Enforce)
	node := newFakeNode()
	s := serve(t, node, func(c *Config) { c.Auth = a })
	c := loggedIn(t, s, cluster.Token(t, "web", grant("writer", "posts")))
	var revoke sync.Once
	node.mu.Lock()
	node.mu.readErr = func([]uint64) error {
		revoke.Do(func() {
			if _, _, err := auth.DeleteUser(t.Context(), cluster, "web"); err != nil {
				t.Error(err)
			}
		})
		return nil
	}
	node.mu.Unlock()
	got := c.do("GET posts:1:like", "SELECT 0", "INCR posts:1:like", "SCAN 0") // SELECT executes the commands before it
	if want := []string{"null", "+OK", "-" + errNoAuth, "-" + errNoAuth}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if n := node.writes.Load(); n > 0 {
		t.Errorf("%d writes", n)
	}
}

// TestHelloIsServedWhole checks that a HELLO with a bad option does not log the client in.
func TestHelloIsServedWhole(t *testing.T) {
	s, cluster := serveEnforcing(t, auth.Enforce)
	web := cluster.Token(t, "web", grant("writer", "posts"))
	for _, options := range []string{"FOO", "SETNAME", "SETNAME 'a b'", "AUTH web"} {
		c := dial(t, s)
		if got := c.do("HELLO 3 AUTH web " + web + " " + options)[0]; !strings.HasPrefix(got, "-ERR") {
			t.Errorf("%s: %s", options, got)
		}
		if got := c.do("GET posts:1:like")[0]; got != "-"+errNoAuth {
			t.Errorf("after HELLO with the bad option %s: %s", options, got)
		}
	}
}

// TestNobodyLearnsNothing checks that a client without a login does not learn which commands exist.
// A logged-in user does learn which commands exist.
func TestNobodyLearnsNothing(t *testing.T) {
	s, cluster := serveEnforcing(t, auth.Enforce)
	for _, line := range []string{"NONSENSE a", "GET", "EXEC a"} {
		if got := dial(t, s).do(line)[0]; !strings.HasSuffix(got, errNoAuth) {
			t.Errorf("%s of nobody: %s", line, got)
		}
	}
	web := loggedIn(t, s, cluster.Token(t, "web", grant("reader", "posts")))
	for line, want := range map[string]string{"NONSENSE a": "-ERR unknown command", "GET": "-ERR wrong number of arguments", "EXEC a": "-EXECABORT"} {
		if got := web.do(line)[0]; !strings.HasPrefix(got, want) {
			t.Errorf("%s of a user: %s", line, got)
		}
	}
}

// TestTransactionsAreCountedOnce checks that a transaction counts once against the limits of its
// caller, even if its rights are checked again because a user has changed.
func TestTransactionsAreCountedOnce(t *testing.T) {
	s, cluster := serveEnforcing(t, auth.Enforce)
	web := cluster.Token(t, "web", grant("writer", "posts"))
	if _, _, err := auth.PutUser(t.Context(), cluster, "web", catalog.UserRights{Grants: []catalog.Grant{grant("writer", "posts")}, Limits: catalog.UserLimits{Ops: 1}}, nil); err != nil {
		t.Fatal(err)
	}
	c := loggedIn(t, s, web)
	c.do("MULTI", "MSET"+strings.Repeat(" posts:1:like 5", 3600)) // as many ops as the limit allows in an hour
	cluster.Token(t, "other", grant("reader", "posts"))
	if got := c.do("EXEC")[0]; got != "[+OK]" {
		t.Error(got)
	}
}

// TestNobodyTakesNoSharedMemory checks that large commands of clients that have not authenticated
// use none of the memory that connections share.
func TestNobodyTakesNoSharedMemory(t *testing.T) {
	s, cluster := serveEnforcing(t, auth.Enforce)
	line := "*20\r\n$4\r\nMGET\r\n" + strings.Repeat("$1000\r\n"+strings.Repeat("a", 1000)+"\r\n", 18)
	nobody := dial(t, s)
	go func() { _, _ = io.WriteString(nobody.conn, line) }() // the write fails when the server refuses the command
	if got := nobody.reply(); !strings.Contains(got, "not authenticated is larger than 16 KiB") {
		t.Errorf("a large command of nobody: %.100s", got)
	}
	if used := s.shared.Memory.Used(); used != 0 {
		t.Errorf("it took %d bytes", used)
	}
	deaf := dial(t, s)
	go func() {
		for line := strings.Repeat("PING\r\n", 10_000); ; {
			if _, err := io.WriteString(deaf.conn, line); err != nil {
				return
			}
		}
	}()
	until(t, "it is closed", func() bool { return counted(s.metrics.OutputFull) == 1 })
	if used := s.shared.Memory.Used(); used != 0 {
		t.Errorf("replies to nobody took %d bytes", used)
	}
	web := cluster.Token(t, "web", grant("writer", "posts"))
	c := dial(t, s)
	large := "AUTH " + web + "\r\nECHO " + strings.Repeat("a", 30_000) + "\r\n" // both commands in one pipeline
	if _, err := io.WriteString(c.conn, large); err != nil {
		t.Fatal(err)
	}
	if got := c.reply(); got != "+OK" {
		t.Fatal(got)
	}
	if got := c.reply(); len(got) != 30_002 {
		t.Errorf("a large command after AUTH: %.100s", got)
	}
}

// TestNobodyDoesNotStay checks that a client that does not authenticate is disconnected soon.
func TestNobodyDoesNotStay(t *testing.T) {
	a, cluster := apitest.OpenAuth(t, auth.Enforce)
	s := serve(t, newFakeNode(), func(c *Config) { c.Auth, c.ArriveTimeout = a, 2*time.Second })
	c := loggedIn(t, s, cluster.Token(t, "web", grant("writer", "posts")))
	nobody := dial(t, s)
	if err := nobody.conn.SetReadDeadline(time.Now().Add(must.BecomeMax)); err != nil {
		t.Fatal(err)
	}
	if _, err := nobody.conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("nobody's connection stays: %v", err)
	}
	if got := c.do("PING")[0]; got != "+PONG" {
		t.Errorf("a user's connection: %s", got)
	}
}

// TestScanShowsWhatMayBeRead checks that SCAN and DBSIZE omit keyspaces that the client may not
// read.
func TestScanShowsWhatMayBeRead(t *testing.T) {
	s, cluster := serveEnforcing(t, auth.Enforce)
	ann := loggedIn(t, s, cluster.Token(t, "ann", grant("admin")))
	ann.do("INCR posts:1:like")
	ann.do("INCR users:2:posts")
	if got := ann.do("SCAN 0")[0]; !strings.Contains(got, "users:2") || !strings.Contains(got, "posts:1") {
		t.Errorf("an admin sees %s", got)
	}
	web := loggedIn(t, s, cluster.Token(t, "web", grant("reader", "posts")))
	if got := web.do("SCAN 0")[0]; strings.Contains(got, "users:2") || !strings.Contains(got, "posts:1") {
		t.Errorf("a reader of posts sees %s", got)
	}
}

// TestPermissiveServesAll checks that the mode permissive refuses nothing, not even a wrong token.
func TestPermissiveServesAll(t *testing.T) {
	s, _ := serveEnforcing(t, auth.Permissive)
	c := dial(t, s)
	for _, step := range [][2]string{{"INCR posts:1:like", "1"}, {"AUTH nonsense", "+OK"}, {"INCR users:1:posts", "1"}, {"SCAN 0 MATCH users:*", "[0 [users:1]]"}} {
		if got := c.do(step[0])[0]; got != step[1] && !strings.HasPrefix(step[0], "SCAN") {
			t.Errorf("%s: %s", step[0], got)
		} else if strings.HasPrefix(step[0], "SCAN") && !strings.Contains(got, "users:1") {
			t.Errorf("%s: %s", step[0], got)
		}
	}
}

// TestLimitsOfRedisUsers checks that commands beyond a limit are refused and change nothing.
func TestLimitsOfRedisUsers(t *testing.T) {
	s, cluster := serveEnforcing(t, auth.Enforce)
	web := cluster.Token(t, "web", grant("writer", "posts"))
	if _, _, err := auth.PutUser(t.Context(), cluster, "web", catalog.UserRights{Grants: []catalog.Grant{grant("writer", "posts")}, Limits: catalog.UserLimits{Ops: 1}}, nil); err != nil {
		t.Fatal(err)
	}
	c := loggedIn(t, s, web)
	many := "MSET" + strings.Repeat(" posts:1:like 5", 3600)
	if got := c.do(many)[0]; got != "+OK" {
		t.Fatal(got)
	}
	if got := c.do("INCR posts:1:like")[0]; got != "-OVERLOADED user web makes more ops than its limit allows" {
		t.Error(got)
	}
	if got := c.do("GET posts:1:like")[0]; got != `"5"` {
		t.Error(got)
	}
	adds := cluster.Token(t, "adds", grant("ingest", "posts"))
	if _, _, err := auth.PutUser(t.Context(), cluster, "adds", catalog.UserRights{Grants: []catalog.Grant{grant("ingest", "posts")}, Limits: catalog.UserLimits{Ops: 1}}, nil); err != nil {
		t.Fatal(err)
	}
	c = loggedIn(t, s, adds)
	if got := c.do("SADD posts:2:like:members" + strings.Repeat(" 7", 3600))[0]; got != "1" { // each member counts as an op
		t.Fatal(got)
	}
	if got := c.do("INCR posts:1:like")[0]; got != "-OVERLOADED user adds makes more ops than its limit allows" {
		t.Error(got)
	}
}

// TestRefusedWritesKeepTheirNumber checks that the numbers of a session's writes do not
// depend on which of them are refused.
func TestRefusedWritesKeepTheirNumber(t *testing.T) {
	node := newFakeNode()
	a, cluster := apitest.OpenAuth(t, auth.Enforce)
	s := serve(t, node, func(c *Config) { c.Auth = a })
	numbers := func(keyspaces ...string) []string {
		user := "web" + strings.Join(keyspaces, "")
		c := loggedIn(t, s, cluster.Token(t, user, grant("writer", keyspaces...)))
		node.mu.Lock()
		node.mu.written = nil
		node.mu.Unlock()
		for _, line := range []string{"COUNTD.SESSION me 1", "INCR posts:1:like", "INCR users:1:posts", "INCR posts:1:like"} {
			c.do(line)
		}
		node.mu.Lock()
		defer node.mu.Unlock()
		var all []string
		for _, id := range node.mu.written {
			all = append(all, fmt.Sprint(id))
		}
		return all
	}
	all, some := numbers("posts", "users"), numbers("posts")
	if len(all) != 3 || len(some) != 2 || some[0] != all[0] || some[1] != all[2] {
		t.Errorf("numbers %v, and with the second refused %v", all, some)
	}
}

// TestRevokedInABatch checks that no write happens once the token is revoked, or a right is
// removed, during reads of the same batch: neither a plain write, nor one with a key, nor a
// transaction, nor a write of package unread.
func TestRevokedInABatch(t *testing.T) {
	keyspaces := []string{"posts", "unread", "feed", "users"}
	revoke := func(t *testing.T, cluster *apitest.Cluster) {
		if _, _, err := auth.DeleteUser(t.Context(), cluster, "web"); err != nil {
			t.Error(err)
		}
	}
	restrict := func(t *testing.T, cluster *apitest.Cluster) {
		rights := catalog.UserRights{Grants: []catalog.Grant{grant("reader", keyspaces...)}}
		if _, _, err := auth.PutUser(t.Context(), cluster, "web", rights, nil); err != nil {
			t.Error(err)
		}
	}
	for name, test := range map[string]struct {
		change func(*testing.T, *apitest.Cluster)
		lines  []string
		want   string // the last reply
	}{
		"plain":       {revoke, []string{"GET posts:1:like", "INCR posts:2:like"}, "-" + errNoAuth},
		"with a key":  {revoke, []string{"GET posts:1:like", "COUNTD.INCR posts:2:like 1 KEY k"}, "-" + errNoAuth},
		"transaction": {revoke, []string{"GET posts:1:like", "MULTI", "INCR posts:2:like", "EXEC"}, "[-" + errNoAuth + "]"},
		"two tables":  {revoke, []string{"GET posts:1:like", "INCR posts:2:like", "INCR users:2:posts"}, "-" + errNoAuth},
		"a call":      {revoke, []string{"GET posts:1:like", "COUNTD.NOTICE.PUBLISH news"}, "-" + errNoAuth},
		"fewer rights": {restrict, []string{"GET posts:1:like", "INCR posts:2:like"},
			"-NOPERM User web lost permissions while the command waited"},
	} {
		t.Run(name, func(t *testing.T) {
			a, cluster := apitest.OpenAuth(t, auth.Enforce)
			node := newFakeNode()
			s := serve(t, node, func(c *Config) { c.Auth = a })
			c := loggedIn(t, s, cluster.Token(t, "web", grant("writer", keyspaces...)))
			var once sync.Once
			node.mu.Lock()
			node.mu.readErr = func([]uint64) error {
				once.Do(func() { test.change(t, cluster) })
				return nil
			}
			node.mu.Unlock()
			got := c.do(test.lines...)
			if n := node.writes.Load(); n > 0 || got[len(got)-1] != test.want {
				t.Errorf("%d writes, %q, want %q last", n, got, test.want)
			}
		})
	}
}

// TestMoreRightsInABatch checks that the server still makes a client's write if users change
// without a loss of rights for the client.
func TestMoreRightsInABatch(t *testing.T) {
	a, cluster := apitest.OpenAuth(t, auth.Enforce)
	node := newFakeNode()
	s := serve(t, node, func(c *Config) { c.Auth = a })
	c := loggedIn(t, s, cluster.Token(t, "web", grant("writer", "posts")))
	var once sync.Once
	node.mu.Lock()
	node.mu.readErr = func([]uint64) error {
		once.Do(func() { cluster.Token(t, "web", grant("writer", "posts"), grant("reader", "users")) })
		return nil
	}
	node.mu.Unlock()
	if got := c.do("GET posts:1:like", "INCR posts:2:like"); got[1] != "1" {
		t.Errorf("%q", got)
	}
}
