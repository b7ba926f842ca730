package redis

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// A pipeline reads each row, channel or dot only once. If a command depends on an earlier one, it
// runs after that one.
func TestUnreadPipelines(t *testing.T) {
	poll := func(channels ...string) string {
		return fmt.Sprintf("COUNTD.POLL 1 CHANNELS %d %s", len(channels), strings.Join(channels, " "))
	}
	for _, test := range []struct {
		name                string
		lines               []string
		gets, writes, polls int64
	}{
		{"polls of one list", []string{poll("a", "b"), poll("a", "b"), "COUNTD.MPOLL 2 3 CHANNELS 2 a b", poll("a", "b")}, 1, 0, 1},
		{"polls of several lists", []string{poll("a"), poll("b"), poll("b"), poll("a")}, 3, 0, 3},
		{"reads of rows between", []string{poll("a"), "GET posts:1:like", poll("a"), "GET posts:2:like", "COUNTD.UNREAD.GET 1", "COUNTD.DOT.GET shop 1"}, 3, 0, 1},
		{"writes of other rows", []string{"INCR posts:1:like", poll("a"), "INCR posts:1:like", poll("a")}, 1, 1, 1},
		{"writes that polls see", []string{"COUNTD.UNREAD.INCR 1 at 1", poll("a"), "INCR users:1:posts", poll("a"), "COUNTD.UNREAD.GET 1"}, 3, 2, 2},
		{"writes of everybody's", []string{"COUNTD.DOT.FIRE a", poll("a"), "COUNTD.NOTICE.PUBLISH a", "COUNTD.NOTICE.PUBLISH b", poll("a")}, 2, 3, 2},
		{"writes to users", []string{"COUNTD.DOT.CLEAR shop 1", "COUNTD.DOT.CLEAR shop 2", "COUNTD.UNREAD.GET 1", "GET posts:1:like"}, 2, 2, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newFakeNode()
			for i, reply := range dial(t, serve(t, n, nil)).do(test.lines...) {
				if reply[0] == '-' {
					t.Errorf("%s: %s", test.lines[i], reply)
				}
			}
			if n.gets.Load() != test.gets || n.writes.Load() != test.writes || n.polls.Load() != test.polls {
				t.Errorf("%d reads, %d writes and %d feeds, want %d, %d and %d", n.gets.Load(), n.writes.Load(), n.polls.Load(), test.gets, test.writes, test.polls)
			}
		})
	}
}

// Independent writes run concurrently. Writes to the same subject run in their order.
func TestUnreadWaves(t *testing.T) {
	var dots []string
	for i := range 40 {
		dots = append(dots, fmt.Sprintf("COUNTD.DOT.FIRE d%d", i))
	}
	for _, test := range []struct {
		name  string
		lines []string
		first int64 // number of the first writes that run concurrently
	}{
		{"of everybody's", append(dots, "COUNTD.DOT.FIRE d0"), 40},
		{"of a user's day", []string{"COUNTD.NOTICE.READ news 1", "COUNTD.DOT.CLEAR shop 1", "COUNTD.FEED.UNFOLLOW 1 2", "COUNTD.FEED.UNFOLLOW 2 2", "COUNTD.FEED.UNFOLLOW 1 3"}, 4},
		{"under a key", []string{"COUNTD.DOT.FIRE a KEY k", "COUNTD.DOT.FIRE b KEY l", "COUNTD.DOT.FIRE c KEY k"}, 2},
		{"of rows under a key", []string{"COUNTD.INCR posts:1:like 1 KEY k", "COUNTD.INCR posts:2:like 1 KEY l", "COUNTD.INCR posts:3:like 1 KEY k"}, 2},
		{"of both", []string{"COUNTD.DOT.CLEAR shop 1", "COUNTD.DOT.FIRE shop", "COUNTD.DOT.CLEAR shop 2"}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newFakeNode()
			n.hold = make(chan struct{})
			c := dial(t, serve(t, n, nil))
			c.send(test.lines...)
			until(t, "the first are side by side", func() bool { return n.writes.Load() == test.first })
			close(n.hold)
			for _, line := range test.lines {
				if got := c.reply(); got[0] == '-' {
					t.Errorf("%s: %s", line, got)
				}
			}
			if got := n.writes.Load(); got != int64(len(test.lines)) {
				t.Errorf("%d writes", got)
			}
		})
	}
}

// Reads of unread numbers combine several keyspaces. They see all writes through the node to any of
// these keyspaces. Reads of READONLY connections may be stale.
func TestUnreadReadsSeeTheNodesWrites(t *testing.T) {
	n := newFakeNode()
	s := serve(t, n, nil)
	c := dial(t, s)
	read := func(consistency shard.Consistency, at ...shard.GroupIndex) {
		t.Helper()
		c.do("COUNTD.NOTICE.GET news 1")
		n.mu.Lock()
		defer n.mu.Unlock()
		if got := n.mu.opt; got.Consistency != consistency || !slices.Equal(got.Token.At, at) {
			t.Errorf("it is read with %+v", got)
		}
	}
	read(shard.Bounded)
	dial(t, s).do("COUNTD.NOTICE.READ news 1", "INCR posts:1:like", "INCR users:1:posts") // READ is the first write; the two INCR are the next ones, in any order
	n.mu.Lock()
	latest := n.tokens["users"]
	n.mu.Unlock()
	read(shard.Bounded, shard.GroupIndex{Group: 3, Index: 1}, shard.GroupIndex{Group: 3, Index: latest})
	c.do("READONLY")
	read(shard.Stale)
	c.do("READWRITE", "COUNTD.UNREAD.INCR 1 at 1")
	read(shard.Bounded, shard.GroupIndex{Group: 3, Index: 4}, shard.GroupIndex{Group: 3, Index: latest})
}

// Errors concern only the user or shard that failed. They have the same codes as in other commands.
func TestUnreadErrors(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	n.failWrites(func(w *shard.Write) error {
		if len(apitest.RowOps(w.Ops)) > 0 && apitest.RowOps(w.Ops)[0].ID == 2 {
			return errs.ErrOutcomeUnknown
		}
		return nil
	})
	equalReplies(t, c.do("COUNTD.DOT.CLEAR shop 1", "COUNTD.DOT.CLEAR shop 2"), "0", "-UNKNOWN the write was proposed but its outcome is unknown")
	n.mu.readErr = func(ids []uint64) error {
		if slices.Contains(ids, 2) {
			return errs.ErrNoQuorum
		}
		return nil
	}
	const late = "-LEADERLESS the shard could not confirm the read in time"
	const good = `["unread" ["at" 0 "comment" 0] "notices" ["a" 0] "dots" [] "feed" 0]`
	equalReplies(t, c.do("COUNTD.POLL 1 CHANNELS 1 a", "COUNTD.POLL 2 CHANNELS 1 a", "COUNTD.MPOLL 1 3 CHANNELS 1 a", "COUNTD.MPOLL 1 2 CHANNELS 1 a", "COUNTD.NOTICE.GET news 2", "COUNTD.DOT.GET shop 1"),
		good, late, "["+good+" "+good+"]", late, late, "1")
}

// A pipeline of polls allocates little.
func TestPollAllocates(t *testing.T) {
	from := &textConn{}
	c := newConn(serve(t, newFakeNode(), nil), from)
	defer c.release()
	c.begin()
	pipeline := []byte(strings.Repeat(wire("COUNTD.POLL 7 CHANNELS 2 a b DOTS 1 shop"), 100))
	run := func() {
		for from.left = pipeline; len(from.left) > 0 && c.read(); {
			c.execute()
		}
		if err := c.out.Send(); err != nil {
			t.Fatal(err)
		}
	}
	run()
	// The bound allows for allocations of the fake's board, of the calls' arguments and of
	// goroutines.
	if got := testing.AllocsPerRun(100, run); got > 40 {
		t.Errorf("%v allocations for 100 polls", got)
	}
}

// Writes whose results depend on each other do not run concurrently. A new feed depends on the
// posts in an outbox, and a new position on the notices of its channel.
func TestWavesOfDependentWrites(t *testing.T) {
	channel, position, feed, outbox := subject{name: "news"}, subject{ofUser, 7, "news"}, subject{kind: ofUser, id: 7}, subject{kind: ofAuthor, id: 9}
	for _, test := range []struct {
		about []subject
		want  int
	}{
		{[]subject{outbox, feed}, 1},
		{[]subject{feed, outbox}, 1},
		{[]subject{channel, position}, 1},
		{[]subject{position, feed, position}, 2},
		{[]subject{outbox, {kind: ofAuthor, id: 10}}, 2},
	} {
		var all []call
		for _, about := range test.about {
			all = append(all, call{about: about})
		}
		if got := wave(all); got != test.want {
			t.Errorf("%v: %d run side by side, want %d", test.about, got, test.want)
		}
	}
}
