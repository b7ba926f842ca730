package redis

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// newTextNode returns a fake node with texts as ids of posts and users. The ids of the keyspace likes are
// numbers.
func newTextNode() *fakeNode {
	n := newFakeNode()
	for i, ks := range n.keyspaces {
		switch ks.Name {
		case "posts":
			ks.Names = "posts@ids"
		case "users", "unread", "feed":
			ks.Names = "users@ids"
		}
		ks.FirstGroup = uint32(i + 1)
	}
	n.keyspaces = append(n.keyspaces,
		&shard.Keyspace{Name: "posts@ids", Kind: "names", Shards: 1, FirstGroup: 101}, &shard.Keyspace{Name: "users@ids", Kind: "names", Shards: 1, FirstGroup: 102})
	n.keyspaces = append(n.keyspaces, &shard.Keyspace{Name: "likes", Kind: kinds.Counters, Columns: []string{"up"}, Shards: 4, FirstGroup: 103})
	n.tables["likes"] = engine.New()
	return n
}

// namesTrouble counts a write of names, and returns the error of a call.
func (n *fakeNode) namesTrouble(space string, write bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if write {
		n.mu.assigns++
	}
	if n.mu.namesErr != nil {
		return n.mu.namesErr(space, write)
	}
	return nil
}

// failNames makes calls for names fail with the errors of a function, or succeed again if it is nil.
func (n *fakeNode) failNames(with func(space string, write bool) error) {
	n.mu.Lock()
	n.mu.namesErr = with
	n.mu.Unlock()
}

func TestTextIDs(t *testing.T) {
	const badID = ": id: not a text of 1 to 128 bytes of UTF-8"
	long := strings.Repeat("é", 64)
	for _, test := range []struct {
		name  string
		pairs []string
	}{
		{"counts", []string{
			"GET posts:a:like", "null", "INCR posts:a:like", "1", "INCRBY posts:a:like 4", "5", "GET posts:a:like", `"5"`, "DECR posts:b:like", "-1",
			"SET posts:c:view 7", "+OK", "GETSET posts:c:view 8", `"7"`, "GETDEL posts:c:view", `"8"`, "MSET posts:a:view 1 posts:d:view 2", "+OK",
			"MGET posts:a:like posts:nobody:like posts:d:view posts:a:view", `["5" null "2" "1"]`, "COUNTD.INCR posts:a:like 1 posts:e:like 2 likes:7:up 3", "[6 2 3]",
			"COUNTD.INCR posts:f:like 1 posts:g:like 3 KEY k", "[1 3]",
		}},
		{"any text", []string{
			"INCR posts:" + long + ":like", "1", "INCR 'posts:a b\t\\n:like'", "1", "GET 'posts:a b\t\\n:like'", `"1"`, "INCR posts:7:like", "1", "INCR posts:007:like", "1", "GET posts:7:like", `"1"`,
			"INCR posts:" + long + "x:like", "-ERR 'posts:" + long[:122] + "'" + badID, "INCR posts::like", "-ERR 'posts::like'" + badID, "INCR posts:\xff:like", "-ERR 'posts:\xff:like'" + badID,
			"GET posts:\xff:like", "-ERR 'posts:\xff:like'" + badID, "HGETALL posts:", "-ERR 'posts:'" + badID,
			"INCR likes:x:up", "-ERR 'likes:x:up' is not {keyspace}:{id}:{column}, {keyspace}:{id} or {keyspace}:{id}:{column}:members, id being 0 to 18446744073709551615" + names.Hint,
		}},
		{"colons", []string{
			"INCR posts:urn:isbn:1:like", "1", "HGETALL posts:urn:isbn:1", `["like" "1"]`, "HINCRBY posts:urn:isbn:1 view 3", "3", "INCR posts:like:like", "1", "GET posts:like:like", `"1"`,
			"HGET posts:like like", `"1"`, "SADD posts:urn:isbn:1:like:members u:1", "1", "SISMEMBER posts:urn:isbn:1:like:members u:1", "1", "GET posts:urn:isbn:1:like", `"2"`,
			"INCR posts:a:love", "-ERR keyspace 'posts' has no column 'love'", "SADD posts:a:love:members u", "-ERR keyspace 'posts' has no column 'love'", "INCR posts:like", wrongTypeText,
			"HGETALL posts:a:love", "[]", "HSET posts:a:love view 2", "1", "HGETALL posts:a:love", `["view" "2"]`, "EXISTS posts:a:love posts:a:like", "1", "TYPE posts:a:love", "+hash",
			"TYPE posts:urn:isbn:1:like:members", "+set", "HGETALL posts:a:like", wrongTypeText, "SCARD posts:a", wrongTypeText,
		}},
		{"rows", []string{
			"HSET posts:a like 1 view 2", "2", "HMGET posts:a view like repost", `["2" "1" null]`, "HLEN posts:a", "2", "HEXISTS posts:a like", "1", "HDEL posts:a like", "1", "HSCAN posts:a 0", `["0" ["view" "2"]]`,
			"DEL posts:a posts:b", "1", "HGETALL posts:a", "[]", "TTL posts:a", "-2", "HGETALL posts:nobody", "[]", "HLEN posts:nobody", "0",
		}},
		{"sets", []string{
			"SADD posts:a:like:members alice bob alice", "2", "SADD posts:a:like:members 7", "1", "SCARD posts:a:like:members", "3", "GET posts:a:like", `"3"`, "SISMEMBER posts:a:like:members bob", "1",
			"SISMEMBER posts:a:like:members carol", "0", "SMISMEMBER posts:a:like:members alice carol \xff 7 07", "[1 0 0 1 0]", "SREM posts:a:like:members bob carol \xff", "1", "SCARD posts:a:like:members", "2",
			"SADD posts:a:like:members \xff", "-ERR member: not a text of 1 to 128 bytes of UTF-8", "SISMEMBER posts:nobody:like:members alice", "0", "SSCAN posts:nobody:like:members 0", `["0" []]`,
			"SSCAN posts:a:like:members 0", `["0" ["7" "alice"]]`, "SSCAN posts:a:like:members 0 MATCH a*", `["0" ["alice"]]`, "SADD likes:1:up:members alice", "1", "SSCAN likes:1:up:members 0", `["0" ["alice"]]`,
			"DEL posts:a:like:members", "-ERR 'posts:a:like:members' is deleted with its row, or by SREM of each member",
		}},
		{"scans", []string{
			"MSET posts:b:like 1 posts:a:like 2 posts:a:view 3 likes:5:up 4", "+OK", "SCAN 0", `["0" ["posts:b" "posts:a" "likes:5"]]`, "SCAN 0 MATCH posts:a*", `["0" ["posts:a"]]`,
			"SCAN 0 MATCH posts:*:like", `["0" ["posts:b:like" "posts:a:like"]]`, "SCAN 0 MATCH posts:* COUNT 1", `["2" ["posts:b"]]`, "SCAN 2 MATCH posts:* COUNT 1", `["0" ["posts:a"]]`,
			"SCAN 0 TYPE string", `["0" ["posts:b:like" "posts:a:like" "posts:a:view" "likes:5:up"]]`, "DBSIZE", "3",
		}},
		{"transactions", []string{
			"MULTI", "+OK", "INCR posts:a:like", "+QUEUED", "HINCRBY posts:a view 2", "+QUEUED", "GET posts:a:like", "+QUEUED", "GET posts:a:repost", "+QUEUED", "EXEC", `[1 2 "1" null]`,
			"MULTI", "+OK", "INCR posts:b:like", "+QUEUED", "INCR posts:c:like", "+QUEUED", "EXEC", "-CROSSSLOT Keys in request don't hash to the same slot", "GET posts:b:like", "null",
			"MULTI", "+OK", "INCR posts:d:like", "+QUEUED", "INCR posts::like", "+QUEUED", "EXEC", "[1 -ERR 'posts::like'" + badID + "]",
		}},
		{"rankings", []string{
			"INCR posts:a:like", "1", "INCR posts:b:like", "1", "INCR posts:c:like", "1", "INCR posts:d:like", "1", "INCR posts:e:like", "1",
			"COUNTD.TOP posts:like", `["" 9 "e" 2]`, "COUNTD.TOP likes:up LIMIT 1", `["18446744073709551615" 9]`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newTextNode()
			dial(t, serve(t, n, nil)).want(test.pairs...)
		})
	}
}

const wrongTypeText = "-" + string(errWrongType)

// 1. The new texts of commands that have arrived together cost one write of names in each keyspace.
// 2. Reads give no numbers, and neither do commands that are refused. 3. A read in the pipeline of a
// write of the same new text sees the write.
func TestNewTextsOfAPipeline(t *testing.T) {
	n := newTextNode()
	c := dial(t, serve(t, n, nil))
	for _, test := range []struct {
		name              string
		lines             []string
		want              []string
		assigns, assigned int
	}{
		{"reads", []string{"GET posts:a:like", "HGETALL posts:b", "MGET posts:a:like posts:c:like", "SISMEMBER posts:a:like:members u", "EXISTS posts:a", "COUNTD.UNREAD.GET u", "COUNTD.POLL u", "COUNTD.OUTBOX.LIST u CURSOR p"},
			[]string{"null", "[]", "[null null]", "0", "0", `["at" 0 "comment" 0]`, `["unread" ["at" 0 "comment" 0] "notices" [] "dots" [] "feed" 0]`, "-ERR cursor: not a cursor of this command"}, 0, 0},
		{"refused", []string{"INCRBY posts:a:like x", "MSET posts:a:like 1 posts:b:like x", "SET posts:a:like 1 EX 5", "HSET posts:a love 1", "INCR posts:a", "SADD posts:a:like:members u \xff", "COUNTD.UNREAD.INCR u at x", "COUNTD.DOT.CLEAR shop u KEY", "INCR posts:a:like x"},
			nil, 0, 0},
		{"writes", []string{"GET posts:a:like", "INCR posts:a:like", "GET posts:a:like", "INCR posts:b:like", "HINCRBY posts:c view 2", "GET posts:never:like", "SADD posts:d:like:members u v", "INCR posts:a:like", "MSET posts:e:like 5 posts:f:like 6"},
			[]string{"null", "1", `"1"`, "1", "2", "null", "2", "2", "+OK"}, 2, 8},
		{"known", []string{"INCR posts:a:like", "SADD posts:d:like:members u v w"}, []string{"3", "1"}, 1, 1},
		{"transaction", []string{"INCR posts:g:like", "MULTI", "INCR posts:h:like", "HINCRBY posts:h view 1", "EXEC", "INCR posts:i:like"}, []string{"1", "+OK", "+QUEUED", "+QUEUED", "[1 1]", "1"}, 3, 3},
		{"unread", []string{"COUNTD.UNREAD.INCR u1 at 1 u2 at 2", "COUNTD.UNREAD.GET u1", "COUNTD.UNREAD.RESET u3 COLUMNS 1 at"}, []string{"[1 2]", `["at" 1 "comment" 0]`, `["counts" ["at" 0 "comment" 0] "cleared" ["at" 0]]`}, 1, 2},
		{"removals", []string{"DEL posts:x:like posts:x", "HDEL posts:x like", "GETDEL posts:x:like", "SREM posts:x:like:members x", "SREM posts:a:like:members x", "COUNTD.FEED.UNFOLLOW x y", "COUNTD.FEED.READ x y",
			"COUNTD.UNREAD.RESET x COLUMNS 1 at", "MULTI", "DEL posts:x", "GET posts:y:like", "EXEC"},
			[]string{"0", "0", "null", "0", "0", "0", "0", `["counts" ["at" 0 "comment" 0] "cleared" ["at" 0]]`, "+OK", "+QUEUED", "+QUEUED", "[0 null]"}, 0, 0},
		{"removals and additions", []string{"DEL posts:y", "INCR posts:y:like", "DEL posts:y", "SREM posts:z:like:members b", "SADD posts:z:like:members b", "SREM posts:z:like:members b"}, []string{"0", "1", "1", "0", "1", "1"}, 2, 3},
		{"calls", []string{"COUNTD.DOT.CLEAR shop u4", "COUNTD.DOT.CLEAR shop u5", "COUNTD.NOTICE.READ news u6"}, nil, 1, 3},
		{"feeds and outboxes", []string{"COUNTD.FEED.FOLLOW u7 u8 u9", "COUNTD.OUTBOX.ADD u8 p1"}, nil, 2, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			n.mu.Lock()
			n.mu.assigns = 0
			n.mu.Unlock()
			before := n.names.Assigned()
			got := c.do(test.lines...)
			if test.want != nil {
				equalReplies(t, got, test.want...)
			} else if refused := slices.ContainsFunc(got, func(reply string) bool { return reply[0] == '-' }); refused != (test.assigns == 0) {
				t.Errorf("replies %q", got)
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			if assigned := n.names.Assigned() - before; n.mu.assigns != test.assigns || assigned != test.assigned {
				t.Errorf("%d writes gave %d numbers, want %d and %d", n.mu.assigns, assigned, test.assigns, test.assigned)
			}
		})
	}
}

// If names cannot be looked up, only the commands that need them fail. Nothing of these commands is
// written, so a session that repeats them counts them.
func TestNamesWithoutALeader(t *testing.T) {
	n := newTextNode()
	c := dial(t, serve(t, n, nil))
	c.do("INCR posts:known:like", "SADD posts:known:like:members friend")
	n.failNames(func(space string, write bool) error {
		if space == "posts@ids" {
			return errs.ErrNoLeader
		}
		return nil
	})
	const leaderless = "-LEADERLESS the shard has no leader"
	for range 2 {
		equalReplies(t, c.do("COUNTD.SESSION p 1", "INCR posts:known:view", "INCR posts:a:like", "COUNTD.INCR posts:known:view 1 posts:a:view 1", "INCR posts:known:view", "COUNTD.SESSION END")[2:4], leaderless, leaderless)
	}
	n.mu.Lock()
	if len(n.mu.written) != 4 {
		t.Errorf("writes with the identities %v", n.mu.written)
	}
	n.mu.Unlock()
	equalReplies(t, c.do("GET posts:known:view", "INCR posts:known:view", "GET posts:a:like", "INCR posts:a:like", "MGET posts:known:view posts:b:like", "HSET posts:a like 1 view 2", "GET posts:known:view", "INCR posts:known:view",
		"SADD posts:a:like:members friend", "SADD posts:known:like:members stranger", "SISMEMBER posts:a:like:members friend", "SISMEMBER posts:known:like:members stranger", "COUNTD.OUTBOX.ADD friend p", "COUNTD.UNREAD.INCR new at 1"),
		`"4"`, "5", leaderless, leaderless, leaderless, leaderless, `"5"`, "6", leaderless, "1", leaderless, "1", leaderless, "[1]")
	equalReplies(t, c.do("MULTI", "INCR posts:known:view", "INCR posts:a:view", "EXEC", "GET posts:known:view"), "+OK", "+QUEUED", "+QUEUED", leaderless, `"6"`)
	n.failNames(func(space string, _ bool) error { return errs.ErrOverloaded })
	equalReplies(t, c.do("COUNTD.POLL somebody", "COUNTD.MPOLL new somebody", "COUNTD.DOT.CLEAR shop somebody", "COUNTD.POLL new"),
		"-OVERLOADED too many writes in flight", "-OVERLOADED too many writes in flight", "-OVERLOADED too many writes in flight", `["unread" ["at" 1 "comment" 0] "notices" [] "dots" [] "feed" 0]`)
	n.failNames(nil)
	equalReplies(t, c.do("COUNTD.SESSION p 1", "INCR posts:a:like", "COUNTD.SESSION END", "GET posts:a:like", "HGETALL posts:a"), "+OK", "1", "+OK", `"1"`, `["like" "1"]`)
}

// Texts that leave memory while others of a transaction are looked up are looked up too, before exec checks the shards.
func TestTextsThatLeaveMemoryInATransaction(t *testing.T) {
	n := newTextNode()
	s := serve(t, n, nil)
	c := dial(t, s)
	transaction := []string{"MULTI", "INCR posts:b:like", "SADD posts:c:like:members new", "EXEC"}
	c.do("INCR posts:a:like", "INCR posts:b:like", "INCR posts:c:like")
	n.failNames(func(space string, write bool) error {
		if write {
			s.Attach(n) // with names that remember nothing
		}
		return nil
	})
	equalReplies(t, c.do(transaction...), "+OK", "+QUEUED", "+QUEUED", "-CROSSSLOT Keys in request don't hash to the same slot")
	equalReplies(t, c.do("GET posts:b:like", "GET posts:c:like"), `"1"`, `"1"`)
}

// A server that has just begun finds the numbers of all texts, each for its own place in the plan.
func TestTextsThatAreNotInMemory(t *testing.T) {
	n := newTextNode()
	dial(t, serve(t, n, nil)).do("MSET posts:a:like 1 posts:b:like 2 posts:c:view 3", "SADD posts:a:like:members ann bob", "COUNTD.UNREAD.INCR ann at 4 bob comment 5")
	for _, lines := range [][]string{
		{"MGET posts:a:like posts:b:like posts:x:like posts:c:view posts:c:like", `["3" "2" null "3" null]`},
		{"EXISTS posts:a posts:b posts:c posts:x", "3"},
		{"INCR posts:b:like", "3", "GET posts:a:like", `"3"`, "HGETALL posts:b", `["like" "3"]`, "INCR posts:a:like", "4"},
		{"SMISMEMBER posts:a:like:members ann carol bob", "[1 0 1]", "SISMEMBER posts:b:like:members ann", "0"},
		{"SSCAN posts:a:like:members 0", `["0" ["bob" "ann"]]`},
		{"SADD posts:a:like:members bob carol ann", "1", "SREM posts:a:like:members bob", "1"},
		{"COUNTD.UNREAD.GET ann", `["at" 4 "comment" 0]`, "COUNTD.UNREAD.GET bob", `["at" 0 "comment" 5]`, "COUNTD.UNREAD.INCR bob at 1 ann at 1", "[1 5]"},
		{"COUNTD.POLL bob", `["unread" ["at" 1 "comment" 5] "notices" [] "dots" [] "feed" 0]`, "COUNTD.POLL ann", `["unread" ["at" 5 "comment" 0] "notices" [] "dots" [] "feed" 0]`},
		{"SCAN 0 MATCH posts:*", `["0" ["posts:a" "posts:b" "posts:c"]]`},
		{"DEL posts:b:like posts:x:like", "1", "GET posts:b:like", "null"},
	} {
		c := dial(t, serve(t, n, nil))
		var commands, want []string
		for i := 0; i < len(lines); i += 2 {
			commands, want = append(commands, lines[i]), append(want, lines[i+1])
		}
		equalReplies(t, c.do(commands...), want...)
	}
}

// A column that another node has created makes text keys of its counts.
func TestTextKeysOfNewColumns(t *testing.T) {
	n := newTextNode()
	posts := *n.Keyspace("posts")
	posts.Columns = append(slices.Clone(posts.Columns), "love")
	n.elsewhere = []*shard.Keyspace{&posts}
	c := dial(t, serve(t, n, nil))
	equalReplies(t, c.do("INCR posts:a:like", "INCR posts:a:love", "SADD posts:a:love:members u", "GET posts:a:love"), "1", "1", "1", `"2"`)
	if got := n.catchUps.Load(); got != 1 {
		t.Errorf("%d questions", got)
	}
}

// The replies of random pipelines are those of their commands one by one, whatever texts are known.
func TestTextPipelinesLikeSingleCommands(t *testing.T) {
	one, many := newTextNode(), newTextNode()
	for _, n := range []*fakeNode{one, many} {
		n.Keyspace("posts").Shards = 1 // so that transactions do not depend on the order of the numbers
	}
	seed := rand.Uint64()
	g := generator{rand: rand.New(rand.NewPCG(seed, 1)), version: 2, used: map[string]bool{}}
	single, pipelined := dial(t, serve(t, one, nil)), dial(t, serve(t, many, nil))
	do := func(c *client, pipeline ...[]string) (replies []string) {
		var all []byte
		for _, words := range pipeline {
			all = appendWords(all, words)
		}
		if _, err := c.conn.Write(all); err != nil {
			t.Fatal(err)
		}
		for range pipeline {
			replies = append(replies, c.reply())
		}
		return replies
	}
	for round := range 500 {
		pipeline := g.pipeline()
		got := do(pipelined, pipeline...)
		for i, words := range pipeline {
			if want := do(single, words)[0]; got[i] != want {
				t.Fatalf("seed %d, round %d, command %d of %q: %s, want %s", seed, round, i, pipeline, got[i], want)
			}
		}
	}
}

// Texts of a real node: the answers of all commands that show ids.
func TestTextsOfANode(t *testing.T) {
	n := openNode(t, true)
	if _, err := n.CreateKeyspace(must.Context(t), shard.Keyspace{Name: "articles", Columns: []string{"like"}, IDs: shard.IDsText}); err != nil {
		t.Fatal(err)
	}
	c := dial(t, serve(t, n, nil))
	c.want(
		"COUNTD.OUTBOX.ADD alice p:1", "1", "COUNTD.OUTBOX.ADD alice p:2", "1", "COUNTD.OUTBOX.ADD carol p:3", "1", "COUNTD.OUTBOX.ADD alice p:2", "0", "GET users:alice:posts", `"2"`,
		"COUNTD.OUTBOX.LIST alice", `["p:2" "p:1"]`, "COUNTD.OUTBOX.LIST alice CURSOR p:2", `["p:1"]`, "COUNTD.OUTBOX.LIST alice CURSOR nothing", "-ERR cursor: not a cursor of this command", "COUNTD.OUTBOX.LIST nobody", "[]", "COUNTD.OUTBOX.REM nobody p:1", "0", "COUNTD.OUTBOX.REM alice nothing", "0", "GET users:alice:posts", `"2"`, "SREM posts:x:like:members bob", "0", "DEL posts:x users:x", "0",
		"COUNTD.FEED.RESET bob FOLLOWEES 2 alice carol", "0", "COUNTD.OUTBOX.ADD carol p:4", "1", "COUNTD.FEED.UNREAD bob", "1", "COUNTD.FEED.UNREAD bob DETAIL", `["unread" 1 "followees" ["alice" 0 "carol" 1]]`,
		"SADD posts:p:4:like:members bob", "1", "INCR posts:p:3:view", "1",
		"COUNTD.TIMELINE bob LIMIT 2 COUNTS posts MEMBER like", `["posts" [["id" "p:4" "author" "carol" "counts" ["repost" 0 "comment" 0 "like" 1 "view" 0] "member" ["like" 1]] ["id" "p:3" "author" "carol" "counts" ["repost" 0 "comment" 0 "like" 0 "view" 1] "member" ["like" 0]]] "cursor" "3.2"]`,
		"COUNTD.TIMELINE bob CURSOR 3.2", `["posts" [["id" "p:2" "author" "alice"] ["id" "p:1" "author" "alice"]] "cursor" null]`, "COUNTD.TIMELINE nobody", `["posts" [] "cursor" null]`,
		"INCRBY articles:p:3:like 7", "7", "COUNTD.TIMELINE bob LIMIT 2 COUNTS articles", `["posts" [["id" "p:4" "author" "carol" "counts" ["like" 0]] ["id" "p:3" "author" "carol" "counts" ["like" 7]]] "cursor" "3.2"]`,
		"COUNTD.FEED.UNFOLLOW bob carol", "0", "COUNTD.POLL bob", `["unread" ["at" 0 "comment" 0 "like" 0 "dm" 0] "notices" [] "dots" [] "feed" 0]`, "COUNTD.MPOLL nobody bob dots 0", `[["unread" ["at" 0 "comment" 0 "like" 0 "dm" 0] "notices" [] "dots" [] "feed" 0] ["unread" ["at" 0 "comment" 0 "like" 0 "dm" 0] "notices" [] "dots" [] "feed" 0]]`,
		"SADD articles:a:b:like:members bob alice", "2", "INCR articles:bob:like", "1", "COUNTD.TOP articles:like", `["p:3" 7 "a:b" 2 "bob" 1]`, "SCAN 0 MATCH articles:*", `["0" ["articles:p:3" "articles:a:b" "articles:bob"]]`,
		"SCAN 0 MATCH articles@ids:*", "-ERR no counter keyspace 'articles@ids'", "GET articles@ids:1:like", "-ERR no counter keyspace 'articles@ids'", "SISMEMBER articles:a:b:like:members carol", "0",
	)
	if hot := c.do("COUNTD.HOT articles:like LIMIT 1")[0]; !strings.HasSuffix(hot, `"results" [["id" "p:3" "gained" 7 "error" 0]]]`) {
		t.Errorf("what is hot: %s", hot)
	}
}
