package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// TestCountctlUnread runs every command about unread numbers. Then it backs up the node and
// restores the backup into another node, which must give the same answers.
func TestCountctlUnread(t *testing.T) {
	long(t)
	t.Parallel()
	n := proctest.NewNode(t, bin, t.TempDir())
	n.StartReady()
	for _, step := range []struct{ args, want string }{
		{"unread incr 7 comment=3 like=1", "USER AT COMMENT LIKE DM 7 0 3 1 0"},
		{"unread reset 7 comment=2", "USER AT COMMENT LIKE DM 7 0 1 1 0 CLEARED NUMBER comment 2"},
		{"unread reset 7 --columns like", "USER AT COMMENT LIKE DM 7 0 1 0 0 CLEARED NUMBER like 1"},
		{"unread get 7 --consistency linearizable", "USER AT COMMENT LIKE DM 7 0 1 0 0"},
		{"notice publish news", "CHANNEL NOTICE news 1"},
		{"notice read news 7", "CHANNEL USER UNREAD READ LATEST news 7 0 1 1"},
		{"notice publish news --key again", "CHANNEL NOTICE news 2"},
		{"notice publish news --key again", "CHANNEL NOTICE news 2"},
		{"notice publish news", "CHANNEL NOTICE news 3"},
		{"notice get news 7 --consistency linearizable", "CHANNEL USER UNREAD READ LATEST news 7 2 1 3"},
		{"notice get news 8 --since 1 --consistency linearizable", "CHANNEL USER UNREAD READ LATEST news 8 2 never 3"},
		{"notice read news 8 --since 0", "CHANNEL USER UNREAD READ LATEST news 8 3 0 3"},
		{"notice read news 8 --up-to 2", "CHANNEL USER UNREAD READ LATEST news 8 1 2 3"},
		{"notice retract news 3", "CHANNEL RETRACTED news 3"},
		{"notice list --consistency linearizable", "CHANNEL LATEST RETRACTED news 3 1"},
		{"dot fire shop", "DOT FIRED shop 1"},
		{"dot get shop 7 --consistency linearizable", "DOT USER SHOWS shop 7 shows"},
		{"dot clear shop 7", "DOT USER SHOWS shop 7 -"},
		{"dot set shop --new-users=false", "DOT FIRED NEW USERS shop 1 -"},
		{"dot get shop 1000 --consistency linearizable", "DOT USER SHOWS shop 1000 -"},
		{"dot list --consistency linearizable", "DOT FIRED NEW USERS shop 1 -"},
		{"incr --keyspace users 2 posts=+6", "ID POSTS FOLLOWERS FOLLOWING 2 6 0 0"},
		{"feed reset 7 2 3", "USER UNREAD 7 0"},
		{"incr --keyspace users 2 posts=+4", "ID POSTS FOLLOWERS FOLLOWING 2 10 0 0"},
		{"feed get 7 --detail --consistency linearizable", "USER UNREAD 7 4 FOLLOWEE UNREAD 2 4 3 0"},
		{"feed follow 7 9", "USER UNREAD 7 4"},
		{"feed unfollow 7 3 9", "USER UNREAD 7 4"},
		{"poll 7 --channels news --dots shop --consistency linearizable", "USER AT COMMENT LIKE DM news shop FEED 7 0 1 0 0 1 - 4"},
		{"feed read 7 2", "USER UNREAD 7 0"},
		{"feed reset 7", "USER UNREAD 7 0"},
	} {
		if got := strings.Join(strings.Fields(n.MustCtl(strings.Fields(step.args)...)), " "); got != step.want {
			t.Fatalf("countctl %s prints %q, want %q", step.args, got, step.want)
		}
	}
	for args, code := range map[string]int{
		"notice publish News": 2, "notice retract news 9": 1, "notice retract news x": 2, "unread reset 7": 2, "unread reset 7 at=1 --columns at": 2,
		"feed": 2, "feed reset 7 2 --nobody": 2, "poll x": 2, "poll 7 --channels A": 2, "dot get shop": 2, "notice read news 7 --up-to 1 --since 1": 2,
	} {
		if ctl := n.Ctl(strings.Fields(args)...); ctl.Code != code {
			t.Errorf("countctl %s exits %d, want %d: %s", args, ctl.Code, code, ctl.Stderr)
		}
	}

	for _, args := range []string{
		"--op feed --dist each --ids 50 --requests 50 --followees 20 --authors 100", "--op seen --channels news --dist each --ids 50 --requests 50",
		"--op clear --dots shop --dist each --ids 50 --requests 50", "--op publish --channels news --requests 3", "--op poll --channels news --dots shop --ids 50 --requests 100",
		"--op polls --page 10 --channels news --dots shop --ids 50 --requests 10", "--keyspace unread --column at --op incr --ids 50 --requests 10",
	} {
		if table := n.MustCtl(append([]string{"--yes", "bench", "--concurrency", "4"}, strings.Fields(args)...)...); !strings.Contains(table, "P99.99") {
			t.Errorf("countctl bench %s prints\n%s", args, table)
		}
	}
	if ctl := n.Ctl("bench", "--op", "feed", "--requests", "1"); ctl.Code != 2 || !strings.Contains(ctl.Stderr, "--yes") {
		t.Errorf("a bench that changes feeds exits %d: %s", ctl.Code, ctl.Stderr)
	}

	const poll = "poll 7 8 1000 --channels news --dots shop --consistency linearizable"
	n.MustCtl("feed", "reset", "7", "2", "3")
	n.MustCtl("incr", "--keyspace", "users", "3", "posts=+5")
	n.MustCtl("verify")
	want := n.MustCtl(strings.Fields(poll)...)
	dir := filepath.Join(t.TempDir(), "backup")
	n.MustCtl("backup", dir)
	other := proctest.NewNode(t, bin, t.TempDir())
	other.StartReady()
	other.MustCtl("dot", "fire", "elsewhere")
	other.MustCtl("--yes", "restore", "--force", dir)
	if got := other.MustCtl(strings.Fields(poll)...); got != want || !strings.Contains(got, "5") {
		t.Errorf("restored it answers\n%s, before\n%s", got, want)
	}
	for _, keyspace := range []string{"unread", "feed", "board"} {
		for shard, digest := range n.Cluster().Digests(keyspace) {
			if got := other.Cluster().Digests(keyspace)[shard]; got != digest {
				t.Errorf("%s/%d has digest %s, backed up was %s", keyspace, shard, got, digest)
			}
		}
	}
	n.Kill()
	n.StartReady()
	if got := n.MustCtl(strings.Fields(poll)...); got != want {
		t.Errorf("after a kill it answers\n%s, before\n%s", got, want)
	}
}
