package redis

import (
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

func TestSets(t *testing.T) {
	const notInt = "-ERR value is not an integer or out of range"
	const wrongType = "-WRONGTYPE Operation against a key holding the wrong kind of value"
	const set = "posts:1:like:members"
	for _, test := range []struct {
		name  string
		pairs []string
	}{
		{"members", []string{
			"SADD " + set + " 7 8 7 18446744073709551615", "3", "SADD " + set + " 7", "0", "sadd " + set + " 007 9", "1", "SCARD " + set, "4",
			"GET posts:1:like", `"4"`, "SISMEMBER " + set + " 7", "1", "SISMEMBER " + set + " 6", "0", "SMISMEMBER " + set + " 6 7 x 18446744073709551615", "[0 1 0 1]",
			"SREM " + set + " 8 8 6 x", "1", "SREM " + set + " x", "0", "SCARD " + set, "3", "HGET posts:1 like", `"3"`,
			"SADD posts:2:view:members 7", "1", "SISMEMBER posts:2:like:members 7", "0", "SCARD posts:3:like:members", "0", "SMISMEMBER posts:3:like:members x", "[0]",
		}},
		{"beside counts", []string{
			"SADD " + set + " 7", "1", "INCRBY posts:1:like 10", "11", "SCARD " + set, "11", "SREM " + set + " 7", "1", "SCARD " + set, "10",
			"TYPE " + set, "+set", "TYPE posts:2:like:members", "+none", "TTL " + set, "-1", "EXISTS " + set + " posts:2:like:members", "1",
			"SADD " + set + " 7", "1", "DEL posts:1", "1", "SISMEMBER " + set + " 7", "0", "SCARD " + set, "0",
			"SET posts:1:like 9223372036854775807", "+OK", "SADD " + set + " 7", "-ERR increment or decrement would overflow",
		}},
		{"bad ones", []string{
			"SADD " + set + " x", notInt, "SADD " + set + " 1 -1", notInt, "SADD " + set + " 18446744073709551616", notInt, "SCARD " + set, "0",
			"SADD " + set, "-ERR wrong number of arguments for 'sadd' command", "SISMEMBER " + set + " 1 2", "-ERR wrong number of arguments for 'sismember' command",
			"SADD posts:1:like 7", wrongType, "SCARD posts:1", wrongType, "SISMEMBER posts:1:like 7", wrongType, "SSCAN posts:1 0", wrongType,
			"GET " + set, wrongType, "INCR " + set, wrongType, "HGETALL " + set, wrongType,
			"SADD posts:1:likes:members 7", "-ERR keyspace 'posts' has no column 'likes'", "SADD other:1:like:members 7", "-ERR no counter keyspace 'other'",
			"SCARD unread:1:at:members", "-ERR no counter keyspace 'unread'",
			"SCARD posts:1:members", "-ERR keyspace 'posts' has no column 'members'", "SADD posts:1:members 7", "-ERR keyspace 'posts' has no column 'members'",
			"DEL " + set, "-ERR '" + set + "' is deleted with its row, or by SREM of each member",
		}},
		{"pages", []string{
			"SSCAN " + set + " 0", `["0" []]`, "SADD " + set + " 1", "1", "SADD " + set + " 21 3", "2", "SSCAN " + set + " 0", `["0" ["3" "21" "1"]]`,
			"SSCAN " + set + " 0 MATCH *1 COUNT 5", `["0" ["21" "1"]]`, "SSCAN " + set + " x", "-ERR invalid cursor", "SSCAN " + set + " -1", "-ERR invalid cursor", "SSCAN " + set + " 281474976710656", "-ERR invalid cursor",
			"SSCAN " + set + " 0 COUNT 0", "-ERR syntax error", "SSCAN " + set + " 0 COUNT x", notInt, "SSCAN " + set + " 0 COUNT", "-ERR syntax error",
			"SSCAN " + set + " 0 NOVALUES x", "-ERR syntax error",
		}},
		{"transactions", []string{
			"MULTI", "+OK", "SADD " + set + " 7 8", "+QUEUED", "INCR posts:1:view", "+QUEUED", "SCARD " + set, "+QUEUED", "SREM " + set + " 7", "+QUEUED", "EXEC", "[2 1 2 1]",
			"MULTI", "+OK", "SADD " + set + " 9", "+QUEUED", "SISMEMBER " + set + " 9", "-ERR Command not allowed inside a transaction", "EXEC", "-EXECABORT Transaction discarded because of previous errors.",
			"SMISMEMBER " + set + " 7 8 9", "[0 1 0]",
		}},
	} {
		t.Run(test.name, func(t *testing.T) { dial(t, serve(t, newFakeNode(), nil)).want(test.pairs...) })
	}
}

// A column may have the name members. Its count and its own set have keys like those of any other
// column.
func TestSetsOfAColumnNamedMembers(t *testing.T) {
	n := newFakeNode()
	n.keyspaces = append(n.keyspaces, &shard.Keyspace{Name: "groups", Kind: kinds.Counters, Columns: []string{"members", "posts"}, Shards: 4})
	n.tables["groups"] = engine.New()
	dial(t, serve(t, n, nil)).want(
		"INCRBY groups:12:members 5", "5", "GET groups:12:members", `"5"`, "TYPE groups:12:members", "+string", "HGET groups:12 members", `"5"`,
		"SADD groups:12:members:members 7 8", "2", "GET groups:12:members", `"7"`, "SCARD groups:12:members:members", "7", "TYPE groups:12:members:members", "+set",
		"SADD groups:12:posts:members 7", "1", "SADD groups:12:members 7", "-WRONGTYPE Operation against a key holding the wrong kind of value",
		"DEL groups:12:members", "1", "EXISTS groups:12:members groups:12:posts", "1")
}

// A read of a set sees the earlier writes of the pipeline, but not the later ones.
func TestSetsInPipelines(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	const set = "posts:1:like:members"
	got := c.do("SISMEMBER "+set+" 7", "SADD "+set+" 7", "SISMEMBER "+set+" 7", "SREM "+set+" 7", "SADD "+set+" 8", "SSCAN "+set+" 0", "GET posts:1:like", "SCARD "+set)
	if want := []string{"0", "1", "1", "1", "1", `["0" ["8"]]`, `"1"`, "1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(n.mu.opt.Token.At) == 0 {
		t.Error("the last read carries no token of the write before")
	}
}

// SSCAN returns each member that stays exactly once, even if members share a stamp, and even if
// sets change between two pages.
func TestWholeStamps(t *testing.T) {
	var all []members.Entry
	for stamp := range members.Stamp(40) {
		for id := range uint64(1 + stamp%4*3) {
			all = append(all, members.Entry{ID: id, At: 100 - stamp})
		}
	}
	for count := 1; count < 30; count++ {
		var got []members.Entry
		page := members.Page{Limit: count}
		for {
			reads := 0
			p, err := wholeStamps(page, func(p members.Page) (members.List, error) {
				reads++
				from := 0
				for p.Continues && from < len(all) && (all[from].At > p.After.At || all[from].At == p.After.At && all[from].ID <= p.After.ID) {
					from++
				}
				end := min(from+p.Limit, len(all))
				return members.List{Entries: all[from:end], More: end < len(all)}, nil
			})
			if err != nil || len(p.found) < min(count, len(all)-len(got)) {
				t.Fatalf("%d entries of %d: %v", len(p.found), count, err)
			}
			got = append(got, p.found...)
			if p.next == 0 {
				break
			}
			page.After, page.Continues = members.Entry{At: p.next, ID: 1<<64 - 1}, true
		}
		if !slices.Equal(got, all) {
			t.Fatalf("of pages of %d: got %v", count, got)
		}
	}
}

func TestSetsOfANodeInTrouble(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	n.mu.Lock()
	n.mu.readErr = func([]uint64) error { return errs.ErrNoLeader }
	n.mu.Unlock()
	for _, command := range []string{"SISMEMBER posts:1:like:members 7", "SMISMEMBER posts:1:like:members 7 8", "SSCAN posts:1:like:members 0"} {
		if got := c.do(command)[0]; !strings.HasPrefix(got, "-LEADERLESS ") {
			t.Errorf("%s: %s", command, got)
		}
	}
}
