package redis

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

func TestCommands(t *testing.T) {
	const notInt = "-ERR value is not an integer or out of range"
	const wrongType = "-WRONGTYPE Operation against a key holding the wrong kind of value"
	for _, test := range []struct {
		name  string
		pairs []string
	}{
		{"counts", []string{
			"GET posts:1:like", "null", "INCR posts:1:like", "1", "incrby posts:1:like 41", "42", "GET posts:1:like", `"42"`,
			"DECR posts:1:like", "41", "DECRBY posts:1:like 41", "0", "GET posts:1:like", "null",
			"DECRBY posts:1:like -9223372036854775808", "-ERR decrement would overflow",
			"INCRBY posts:1:like 9223372036854775807", "9223372036854775807", "INCR posts:1:like", "-ERR increment or decrement would overflow",
			"GET posts:1:like", `"9223372036854775807"`, "SET posts:1:like -5", "+OK", "GET posts:1:like", `"-5"`,
		}},
		{"numbers", []string{
			"SET posts:1:like abc", notInt, "SET posts:1:like 01", notInt, "SET posts:1:like +1", notInt, "SET posts:1:like ' 1'", notInt,
			"SET posts:1:like -0", notInt, "SET posts:1:like 9223372036854775808", notInt, "INCRBY posts:1:like 1.0", notInt,
			"SET posts:1:like -9223372036854775808", "+OK", "GET posts:1:like", `"-9223372036854775808"`,
		}},
		{"replacing", []string{
			"GETSET posts:1:like 5", "null", "GETSET posts:1:like 6", `"5"`, "SET posts:1:like 7 GET", `"6"`,
			"GETDEL posts:1:like", `"7"`, "GETDEL posts:1:like", "null", "SET posts:1:like 1 EX 10", "-" + errNoExpiry, "SET posts:1:like 1 GET keepttl", "-" + errNoExpiry, "SET posts:1:like 1 NX", "-ERR syntax error",
		}},
		{"several", []string{
			"MSET posts:1:like 1 users:2:posts 2 posts:3:view 3", "+OK", "MGET posts:1:like users:2:posts posts:3:view posts:4:view", `["1" "2" "3" null]`,
			"MSET posts:1:like", "-ERR wrong number of arguments for 'mset' command", "MSET posts:1:like 1 posts:2:like", "-ERR wrong number of arguments for 'mset' command",
			"MSET posts:1:like 9 posts:2:like x", notInt, "GET posts:1:like", `"1"`,
			"EXISTS posts:1:like posts:1 users:2 posts:9 posts:1:view", "3", "DEL posts:1:like posts:1 posts:3 posts:3", "2", "EXISTS posts:1 posts:3", "0",
		}},
		{"hashes", []string{
			"HSET posts:1 like 1 view 2", "2", "HSET posts:1 like 5 comment 0 repost 3 repost 4", "2", "HGETALL posts:1", `["repost" "4" "like" "5" "view" "2"]`,
			"HGET posts:1 like", `"5"`, "HGET posts:1 comment", "null", "HMGET posts:1 view comment view", `["2" null "2"]`,
			"HLEN posts:1", "3", "HEXISTS posts:1 like", "1", "HEXISTS posts:1 comment", "0", "HINCRBY posts:1 like -6", "-1",
			"HDEL posts:1 like like comment", "1", "HLEN posts:1", "2", "HSCAN posts:1 0", `["0" ["repost" "4" "view" "2"]]`, "HSCAN posts:1 0 COUNT 5", `["0" ["repost" "4" "view" "2"]]`,
			"HSCAN posts:1 0 MATCH x", "-ERR syntax error", "HSCAN posts:1 x", "-ERR invalid cursor", "HSET posts:1 like", "-ERR wrong number of arguments for 'hset' command",
			"HSET posts:1 like 1 view", "-ERR wrong number of arguments for 'hset' command", "HINCRBY posts:1 like x", notInt, "HGETALL posts:9", "[]",
			"HINCRBY posts:1 view 9223372036854775807", "-ERR increment or decrement would overflow",
		}},
		{"what a key is", []string{
			"INCR posts:1:like", "1", "TYPE posts:1", "+hash", "TYPE posts:1:like", "+string", "TYPE posts:1:view", "+none", "TYPE posts:2", "+none",
			"TTL posts:1", "-1", "TTL posts:2", "-2", "GET posts:1", wrongType, "HGET posts:1:like like", wrongType, "INCR posts:1", wrongType, "DBSIZE", "1",
		}},
		{"bad keys", []string{
			"GET nothing", "-ERR 'nothing' is not {keyspace}:{id}:{column}, {keyspace}:{id} or {keyspace}:{id}:{column}:members, id being 0 to 18446744073709551615",
			"GET posts:x:like", "-ERR 'posts:x:like' is not {keyspace}:{id}:{column}, {keyspace}:{id} or {keyspace}:{id}:{column}:members, id being 0 to 18446744073709551615" + names.Hint,
			"GET posts:18446744073709551616:like", "-ERR 'posts:18446744073709551616:like' is not {keyspace}:{id}:{column}, {keyspace}:{id} or {keyspace}:{id}:{column}:members, id being 0 to 18446744073709551615" + names.Hint,
			"INCR posts:18446744073709551615:like", "1", "GET posts:000018446744073709551615:like", `"1"`,
			"GET other:1:like", "-ERR no counter keyspace 'other'", "GET unread:1:at", "-ERR no counter keyspace 'unread'",
			"GET posts:1:love", "-ERR keyspace 'posts' has no column 'love'", "HSET posts:1 love 1", "-ERR keyspace 'posts' has no column 'love'",
			"MGET posts:1:like posts:1:like:", "-ERR keyspace 'posts' has no column 'like:'", "MGET posts:1:like posts:1", wrongType, "SET nothing x", "-ERR 'nothing' is not {keyspace}:{id}:{column}, {keyspace}:{id} or {keyspace}:{id}:{column}:members, id being 0 to 18446744073709551615",
		}},
		{"connection", []string{
			"PING", "+PONG", "PING 'a b'", `"a b"`, "PING a b", "-ERR wrong number of arguments for 'ping' command", "ECHO ''", `""`,
			"SELECT 0", "+OK", "SELECT 1", "-ERR DB index is out of range", "SELECT x", notInt,
			"AUTH x", "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
			"AUTH default x", "+OK", "AUTH me x", "-WRONGPASS invalid username-password pair or user is disabled.", "AUTH a b c", "-ERR syntax error",
			"CLIENT GETNAME", "null", "CLIENT SETNAME me", "+OK", "CLIENT GETNAME", `"me"`, "CLIENT SETNAME 'a b'", "-ERR Client names cannot contain spaces, newlines or special characters.",
			"CLIENT SETINFO LIB-NAME x", "+OK", "CLIENT KILL x", "-ERR unknown subcommand 'KILL'. Try CLIENT HELP.", "CLIENT ID 3", "-ERR wrong number of arguments for 'client|id' command",
			"READONLY", "+OK", "READWRITE", "+OK", "WAIT 2 0", "1", "WAIT x 0", notInt, "WAIT 1 -1", "-ERR timeout is not an integer or out of range",
			"HELLO 4", "-NOPROTO unsupported protocol version", "HELLO x", "-ERR Protocol version is not an integer or out of range",
			"HELLO 3 FOO", "-ERR Syntax error in HELLO option 'FOO'", "HELLO 3 AUTH me x", "-WRONGPASS invalid username-password pair or user is disabled.",
			"HELLO 3 AUTH default x SETNAME you", `{"server" "redis" "version" "7.0.15" "proto" 3 "id" 1 "mode" "standalone" "role" "master" "modules" []}`,
			"CLIENT GETNAME", `"you"`, "GET posts:1:like", "null", "HGETALL posts:1", "{}", "HINCRBY posts:1 like 2", "2", "HGETALL posts:1", `{"like" "2"}`,
			"HELLO 2", `["server" "redis" "version" "7.0.15" "proto" 2 "id" 1 "mode" "standalone" "role" "master" "modules" []]`, "QUIT", "+OK",
		}},
		{"tools", []string{
			"CONFIG GET save appendonly", `["appendonly" "yes" "save" ""]`, "CONFIG GET max*", `["maxclients" "8192" "maxmemory" "0"]`, "CONFIG SET save x", "-ERR unknown subcommand 'SET'. Try CONFIG HELP.",
			"CONFIG GET", "-ERR wrong number of arguments for 'config|get' command", "COMMAND COUNT", "75", "COMMAND INFO get nothing", `[["get" 2 [+readonly] 1 1 1 [] [] [] []] null]`,
			"COMMAND INFO countd.poll countd.dot.fire", `[["countd.poll" -2 [+readonly] 0 0 0 [] [] [] []] ["countd.dot.fire" -2 [+write] 0 0 0 [] [] [] []]]`,
			"COMMAND DOCS nothing incr", `["incr" ["summary" "adds 1" "group" "string"]]`, "COMMAND LIST", "-ERR unknown subcommand 'LIST'. Try COMMAND HELP.",
			"FLUSHALL a 'b c'", "-ERR unknown command 'FLUSHALL', with args beginning with: 'a' 'b c' ", "GET", "-ERR wrong number of arguments for 'get' command", "GET a b", "-ERR wrong number of arguments for 'get' command",
		}},
		{"transactions", []string{
			"EXEC", "-ERR EXEC without MULTI", "DISCARD", "-ERR DISCARD without MULTI", "MULTI", "+OK", "MULTI", "-ERR MULTI calls can not be nested",
			"INCR posts:1:like", "+QUEUED", "GET posts:1:like", "+QUEUED", "INCRBY posts:5:like x", "+QUEUED", "PING", "+QUEUED", "HGETALL posts:5", "+QUEUED",
			"EXEC", "[1 \"1\" " + notInt + " +PONG []]", "GET posts:1:like", `"1"`, "MULTI", "+OK", "INCR posts:1:like", "+QUEUED", "DISCARD", "+OK", "MULTI", "+OK", "EXEC", "[]",
			"MULTI", "+OK", "INCR posts:1:like", "+QUEUED", "INCR posts:2:like", "+QUEUED", "EXEC", "-CROSSSLOT Keys in request don't hash to the same slot", "GET posts:1:like", `"1"`,
			"MULTI", "+OK", "INCR posts:2:like", "+QUEUED", "GET users:2:posts", "+QUEUED", "EXEC", "-CROSSSLOT Keys in request don't hash to the same slot",
			"MULTI", "+OK", "NOTHING", "-ERR unknown command 'NOTHING', with args beginning with: ", "INCR posts:1:like", "+QUEUED", "EXEC", "-EXECABORT Transaction discarded because of previous errors.",
			"MULTI", "+OK", "GET", "-ERR wrong number of arguments for 'get' command", "EXEC", "-EXECABORT Transaction discarded because of previous errors.",
			"MULTI", "+OK", "DBSIZE", "-ERR Command not allowed inside a transaction", "EXEC", "-EXECABORT Transaction discarded because of previous errors.",
			"MULTI", "+OK", "COUNTD.INCR posts:1:like 1 KEY k", "+QUEUED", "EXEC", "[-ERR a transaction counts once by COUNTD.SESSION, not by KEY]", "GET posts:1:like", `"1"`,
		}},
		{"adding several", []string{
			"COUNTD.INCR posts:1:like 2 posts:2:view 3 posts:1:like 4", "[2 3 6]", "COUNTD.INCR posts:1:like 2 KEY", "-ERR wrong number of arguments for 'countd.incr' command",
			"COUNTD.INCR posts:1:like", "-ERR wrong number of arguments for 'countd.incr' command", "COUNTD.INCR posts:1:like x", notInt,
			"COUNTD.INCR posts:1:like 9223372036854775807 posts:2:view 1", "[-ERR increment or decrement would overflow 4]",
			"COUNTD.INCR posts:1:like 9223372036854775807", "-ERR increment or decrement would overflow",
			"COUNTD.INCR posts:1:like 1 KEY ''", "-ERR idempotency key: 1 to 128 bytes", "COUNTD.INCR posts:1:like 1 KEY " + strings.Repeat("k", 129), "-ERR idempotency key: 1 to 128 bytes",
			"COUNTD.SESSION", "-ERR wrong number of arguments for 'countd.session' command", "COUNTD.SESSION p", "-ERR wrong number of arguments for 'countd.session' command",
			"COUNTD.SESSION " + strings.Repeat("p", 62) + " 1", "-ERR producer: 1 to 61 bytes, none of them 0", "COUNTD.SESSION p 288230376151711744", "-ERR seq: not a number of 0 to 288230376151711743",
			"COUNTD.SESSION p 288230376151711743", "+OK", "COUNTD.SESSION END", "+OK",
		}},
	} {
		t.Run(test.name, func(t *testing.T) { dial(t, serve(t, newFakeNode(), nil)).want(test.pairs...) })
	}
}

// While a node does not know its cluster's keyspaces yet, it replies with an error, not as if there
// were no keyspaces.
func TestNoKeyspacesYet(t *testing.T) {
	n := newFakeNode()
	n.keyspaces = nil
	dial(t, serve(t, n, nil)).want("GET posts:1:like", "-LEADERLESS this node does not know its cluster's keyspaces yet", "PING", "+PONG")
}

func TestScan(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	want := map[string]bool{}
	for i := range 1000 {
		id := uint64(i) * 7919
		c.do(fmt.Sprintf("HSET posts:%d like 1 view 2", id))
		want[fmt.Sprintf("posts:%d", id)] = true
		if i%3 == 0 {
			c.do(fmt.Sprintf("HSET users:%d posts 1", id+1))
			want[fmt.Sprintf("users:%d", id+1)] = true
		}
	}
	c.do("INCR posts:18446744073709551615:like")
	want["posts:18446744073709551615"] = true
	for _, test := range []struct {
		name, options string
		of            func(row string) []string
	}{
		{"all", "", func(row string) []string { return []string{row} }},
		{"many at once", "COUNT 10000", func(row string) []string { return []string{row} }},
		{"one by one", "COUNT 1", func(row string) []string { return []string{row} }},
		{"a keyspace", "MATCH users:* COUNT 100", func(row string) []string { return when(strings.HasPrefix(row, "users"), row) }},
		{"a pattern", "COUNT 100 MATCH *s:*00", func(row string) []string { return when(strings.HasSuffix(row, "00"), row) }},
		{"counts", "MATCH posts:*:like COUNT 100", func(row string) []string { return when(strings.HasPrefix(row, "posts"), row+":like") }},
		{"all counts of posts", "TYPE string MATCH p* COUNT 100", func(row string) []string {
			if row == "posts:18446744073709551615" {
				return []string{row + ":like"}
			}
			return when(strings.HasPrefix(row, "posts"), row+":like", row+":view")
		}},
		{"no such type", "TYPE list COUNT 1000", func(string) []string { return nil }},
		{"an empty type", `TYPE "" COUNT 1000`, func(string) []string { return nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			missing := map[string]bool{}
			for row := range want {
				for _, key := range test.of(row) {
					missing[key] = true
				}
			}
			for cursor := "0"; ; {
				reply := c.do("SCAN " + cursor + " " + test.options)[0]
				words := strings.Fields(strings.NewReplacer("[", " ", "]", " ", `"`, "").Replace(reply))
				for _, key := range words[1:] {
					if !missing[key] {
						t.Fatalf("%s is told twice, or was not asked for", key)
					}
					delete(missing, key)
				}
				if cursor = words[0]; cursor == "0" {
					break
				}
			}
			if len(missing) > 0 {
				t.Errorf("%d keys were not told", len(missing))
			}
		})
	}
	if reply := c.do("SCAN 0 COUNT 10000 TYPE string")[0]; strings.Count(reply, `"posts:`) < 1000 {
		t.Errorf("%d keys at once", strings.Count(reply, `"posts:`))
	}
	c.want("SCAN x", "-ERR invalid cursor", "SCAN 0 COUNT 0", "-ERR syntax error", "SCAN 0 COUNT x", "-ERR value is not an integer or out of range",
		"SCAN 0 COUNT", "-ERR syntax error", "SCAN 0 FOO 1", "-ERR syntax error")
}

// SCAN refuses a pattern that names a keyspace or column that does not exist. It accepts any other
// pattern, even if no key matches it.
func TestScanOfWhatCannotBe(t *testing.T) {
	c := dial(t, serve(t, newFakeNode(), nil))
	for match, want := range map[string]string{
		"nosuch:*":            "-ERR no counter keyspace 'nosuch'",
		"nosuch:*:like":       "-ERR no counter keyspace 'nosuch'",
		"unread:*":            "-ERR no counter keyspace 'unread'",
		"posts:*:frob":        "-ERR no keyspace that the pattern names has a column 'frob'",
		"posts:1:like:2":      "-ERR no keyspace that the pattern names has a column '2'",
		"posts:*:posts":       "-ERR no keyspace that the pattern names has a column 'posts'",
		"p*:*:frob":           "-ERR no keyspace that the pattern names has a column 'frob'",
		"posts:1 TYPE string": "-ERR no keyspace that the pattern names has a column '1'",
		"nosuch:* TYPE list":  "-ERR no counter keyspace 'nosuch'",

		"*": `["0" []]`, "posts": `["0" []]`, "like*": `["0" []]`, "posts:x*": `["0" []]`, "*:*:posts": `["0" []]`, "posts:*": `["0" []]`, "p*": `["0" []]`, "*1*": `["0" []]`, "posts?1": `["0" []]`, "[pq]osts:[^a-z]*": `["0" []]`,
		"posts:0001*": `["0" []]`, "posts:1*:like": `["0" []]`, "*:*:l?ke": `["0" []]`, "*:like TYPE string": `["0" []]`, `posts\:1`: `["0" []]`,
		"posts:1* TYPE string": `["0" []]`, "posts:1 TYPE list": `["0" []]`, strings.Repeat("x", 300): `["0" []]`, "posts:[1": `["0" []]`,
	} {
		c.want("SCAN 0 MATCH "+match, want)
	}
}

// With many columns, a page has fewer rows, and no row is left out.
func TestScanIsBounded(t *testing.T) {
	n := newFakeNode()
	wide := &shard.Keyspace{Name: "wide", Kind: kinds.Counters, Shards: 1}
	for i := range 64 {
		wide.Columns = append(wide.Columns, fmt.Sprintf("c%d", i))
	}
	n.keyspaces = append(n.keyspaces, wide)
	n.tables["wide"] = engine.New()
	c := dial(t, serve(t, n, nil))
	const rows = 700
	for id := range rows {
		c.do(fmt.Sprintf("INCR wide:%d:c63", id))
	}
	cursor, seen, pages := "0", 0, 0
	for pages == 0 || cursor != "0" {
		words := strings.Fields(strings.NewReplacer("[", " ", "]", " ", `"`, "").Replace(c.do("SCAN " + cursor + " MATCH wide:* COUNT 10000")[0]))
		if cursor = words[0]; len(words)-1 > scanCountsMax/64 {
			t.Fatalf("a page of %d rows", len(words)-1)
		}
		seen, pages = seen+len(words)-1, pages+1
	}
	if seen != rows || pages != 2 {
		t.Errorf("%d rows on %d pages, want %d on 2", seen, pages, rows)
	}
}

func when(holds bool, keys ...string) []string {
	if holds {
		return keys
	}
	return nil
}

func TestInfo(t *testing.T) {
	c := dial(t, serve(t, newFakeNode(), nil))
	c.do("INCR posts:1:like")
	all := c.do("INFO")[0]
	for _, part := range []string{"# Server", "redis_version:7.0.15", "countd_version:1.2.3", "connected_clients:1", "role:master", "db0:keys=1,"} {
		if !strings.Contains(all, part) {
			t.Errorf("no %q in %s", part, all)
		}
	}
	if part := c.do("INFO clients")[0]; strings.Contains(part, "Server") || !strings.Contains(part, "# Clients") {
		t.Errorf("INFO clients: %s", part)
	}
}

// Each error of the backend has its code, and the reply to an expected error contains its text.
func TestBackendErrors(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	for _, test := range []struct {
		err  error
		code string
	}{
		{errs.ErrOverloaded, "-OVERLOADED too many writes in flight"},
		{fmt.Errorf("%w: %w", errs.ErrOverloaded, errs.ErrTooLate), "-OVERLOADED the deadline passed before the write was proposed"},
		{errs.ErrNoLeader, "-LEADERLESS the shard has no leader"},
		{errs.ErrNoQuorum, "-LEADERLESS the shard could not confirm the read in time"},
		{errs.ErrOutcomeUnknown, "-UNKNOWN the write was proposed but its outcome is unknown"},
		{errs.ErrConflict, "-CONFLICT the key was used for another request"},
		{errs.ErrExpired, "-EXPIRED the request is too old to tell whether it was applied"},
		{fmt.Errorf("%w: %w", errs.ErrExpired, errs.ErrKeyAhead), "-EXPIRED the time in the key (a UUIDv7) is too far ahead of the server's"},
		{errs.ErrDiskFull, "-DISKFULL the disk is at its reserve"},
		{errs.ErrMemoryFull, "-OOM command not allowed: a new row needs memory, and the node is at its memory limit"},
		{errs.ErrDraining, "-DRAINING the node is stopping"},
		{errors.New("secret"), "-ERR the server failed; its log says why"},
	} {
		n.failWrites(func(*shard.Write) error { return test.err })
		c.want("INCR posts:1:like", test.code, "MSET posts:1:like 1 posts:2:like 2", test.code)
	}
}
