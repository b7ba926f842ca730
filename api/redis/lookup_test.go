package redis

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// Commands find keyspaces and columns that another node has just created. The node waits for the
// newest catalog once for all commands that have arrived, and only if a valid name is unknown.
func TestNamesMadeElsewhere(t *testing.T) {
	likes := &shard.Keyspace{Name: "likes", Kind: kinds.Counters, Columns: []string{"up"}, Shards: 4}
	wider := &shard.Keyspace{Name: "likes", Kind: kinds.Counters, Columns: []string{"up", "down"}, Shards: 4}
	hearts := &shard.Keyspace{Name: "hearts", Kind: kinds.Counters, Columns: []string{"up"}, Shards: 4}
	heartsWider := &shard.Keyspace{Name: "hearts", Kind: kinds.Counters, Columns: []string{"up", "down"}, Shards: 4}
	wide := &shard.Keyspace{Name: "unread", Kind: kinds.Unread, Columns: []string{"at", "comment", "gift"}, Shards: 4}
	const noLikes, noDown = "-ERR no counter keyspace 'likes'", "-ERR keyspace 'likes' has no column 'down'"
	const leaderless = "-LEADERLESS the shard has no leader"
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	for _, test := range []struct {
		name      string
		elsewhere *shard.Keyspace
		err       error
		lines     []string
		want      []string
		catchUps  int64
	}{
		{"of nobody", nil, nil, []string{"INCR likes:1:up", "GET posts:1:like", "INCR likes:2:up"}, []string{noLikes, "null", noLikes}, 1},
		{"in a flood", nil, nil, slices.Repeat([]string{"GET likes:1:up"}, 60), slices.Repeat([]string{noLikes}, 60), 1},
		{"no name", nil, nil, []string{"GET Likes:1:up", "GET posts:1:Like", "GET :1:up", "GET unread:1:at"},
			[]string{"-ERR no counter keyspace 'Likes'", "-ERR keyspace 'posts' has no column 'Like'", "-ERR no counter keyspace ''", "-ERR no counter keyspace 'unread'"}, 0},
		{"it cannot be known", likes, errs.ErrNoLeader, []string{"INCR posts:1:like", "INCR likes:1:up", "GET likes:1:up", "INCR posts:1:like"}, []string{"1", leaderless, leaderless, "2"}, 1},
		{"patterns", nil, nil, []string{"SCAN 0 MATCH likes:*", "SCAN 0 MATCH posts:*:love"}, []string{noLikes, "-ERR no keyspace that the pattern names has a column 'love'"}, 1},
		{"a pattern of no name", nil, nil, []string{"SCAN 0 MATCH Likes:*"}, []string{"-ERR no counter keyspace 'Likes'"}, 0},
		{"patterns that cannot be known", nil, errs.ErrNoQuorum, []string{"SCAN 0 MATCH likes:* COUNT 5"}, []string{"-LEADERLESS the shard could not confirm the read in time"}, 1},
		{"a transaction that cannot be known", likes, errs.ErrNoLeader, []string{"COUNTD.SESSION p 1", "MULTI", "INCR posts:1:like", "INCR posts:1:love", "EXEC", "COUNTD.SESSION END", "GET posts:1:like"}, []string{"+OK", "+OK", "+QUEUED", "+QUEUED", leaderless, "+OK", `"2"`}, 1},
		{"counts of nobody", nil, nil, []string{"COUNTD.TIMELINE 1 COUNTS likes"}, []string{"-ERR counts: no such keyspace of counters"}, 1},
		{"counts of another kind", nil, nil, []string{"COUNTD.TIMELINE 1 COUNTS unread"}, []string{"-ERR counts: no such keyspace of counters"}, 0},
		{"counts", hearts, nil, []string{"COUNTD.TIMELINE 1 COUNTS hearts"}, []string{`["posts" [] "cursor" null]`}, 1},
		{"members of nobody", nil, nil, []string{"COUNTD.TIMELINE 1 MEMBER down"}, []string{"-ERR member: no such column"}, 1},
		{"members", heartsWider, nil, []string{"COUNTD.TIMELINE 1 COUNTS hearts MEMBER down"}, []string{`["posts" [] "cursor" null]`}, 1},
		{"a keyspace", likes, nil, []string{"INCR posts:1:like", "INCR likes:1:up", "INCR likes:1:up", "GET posts:1:like"}, []string{"3", "1", "2", `"3"`}, 1},
		{"again", likes, nil, []string{"INCR likes:1:up"}, []string{"3"}, 0},
		{"columns of nobody", likes, nil, []string{"MSET likes:1:up 9 likes:1:down 1", "GET likes:1:up"}, []string{noDown, `"3"`}, 1},
		{"columns in a transaction", wider, nil, []string{"INCR posts:1:like", "MULTI", "INCR likes:1:up", "HINCRBY likes:5 down 2", "EXEC", "GET likes:1:up"}, []string{"4", "+OK", "+QUEUED", "+QUEUED", "[4 2]", `"4"`}, 1},
		{"columns of users", wide, nil, []string{"COUNTD.UNREAD.INCR 1 gift 1", "COUNTD.UNREAD.GET 1"}, []string{"[1]", `["at" 0 "comment" 0 "gift" 1]`}, 1},
		{"a transaction of nobody's", nil, nil, []string{"MULTI", "INCR posts:1:like", "GET other:1:up", "EXEC"}, []string{"+OK", "+QUEUED", "+QUEUED", "[5 -ERR no counter keyspace 'other']"}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			n.mu.Lock()
			if n.mu.catchErr, n.elsewhere = test.err, nil; test.elsewhere != nil {
				n.elsewhere = []*shard.Keyspace{test.elsewhere}
			}
			n.mu.Unlock()
			before := n.catchUps.Load()
			equalReplies(t, c.do(test.lines...), test.want...)
			if got := n.catchUps.Load() - before; got != test.catchUps {
				t.Errorf("%d questions, want %d", got, test.catchUps)
			}
		})
	}
}

// If the catalog has no leader, the server first answers the commands before a bad name. The
// commands after the bad name still have their full time.
func TestLookUpWithoutALeader(t *testing.T) {
	n := newFakeNode()
	n.mute = true
	n.failWrites(func(w *shard.Write) error {
		if time.Until(w.Deadline) <= 0 {
			return errs.ErrTooLate
		}
		return nil
	})
	c := dial(t, serve(t, n, func(c *Config) { c.Timeout = 2 * time.Second }))
	c.send("INCR posts:1:like", "INCR likes:1:up", "INCR posts:1:like", "INCR likes:2:up")
	if first, gaveUp := c.reply(), n.gaveUp.Load(); first != "1" || gaveUp != 0 {
		t.Errorf("the first command is answered %s, after %d questions without an answer", first, gaveUp)
	}
	for _, want := range []string{"-LEADERLESS the shard has no leader", "2", "-LEADERLESS the shard has no leader"} {
		if got := c.reply(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if got := n.catchUps.Load(); got != 1 {
		t.Errorf("%d questions", got)
	}
}

// A client that sends bad names one by one delays only itself, not the node.
func TestBadNamesOneByOne(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	began := time.Now()
	for range 10 {
		c.want("GET likes:1:up", "-ERR no counter keyspace 'likes'", "PING", "+PONG")
	}
	if took := time.Since(began); took < 9*lookEvery {
		t.Errorf("10 questions in %v, want %v between two", took, lookEvery)
	}
}

// A session's write to a new keyspace has the same number when it is repeated.
func TestLookUpInASession(t *testing.T) {
	n := newFakeNode()
	n.elsewhere = []*shard.Keyspace{{Name: "likes", Kind: kinds.Counters, Columns: []string{"up"}, Shards: 4}}
	c := dial(t, serve(t, n, nil))
	for range 2 {
		equalReplies(t, c.do("COUNTD.SESSION p 1", "INCR posts:1:like", "INCR likes:1:up", "INCR posts:2:like", "COUNTD.SESSION END")[0:1], "+OK")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.mu.written) != 6 {
		t.Fatalf("%d writes have identities", len(n.mu.written))
	}
	seen := map[string]int{}
	for _, id := range n.mu.written {
		seen[fmt.Sprintf("%+v", id)]++
	}
	if len(seen) != 3 {
		t.Errorf("the identities are %v", seen)
	}
}
