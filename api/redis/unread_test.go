package redis

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/names"
)

const (
	nobody   = `["unread" ["at" 0 "comment" 0 "like" 0 "dm" 0] "notices" [] "dots" [] "feed" 0]`
	notUser  = "-ERR user: not an unsigned 64-bit integer" + names.Hint
	notSeq   = "not an integer from 0 to 9223372036854775807"
	notName  = "not 1 to 63 of a-z, 0-9 and _, from a letter on"
	mended   = "-ERR syntax error"
	longName = "a23456789012345678901234567890123456789012345678901234567890123"
)

// The test runs the commands of unread numbers on a real node, in the order in which a user causes
// them.
func TestUnreadCommands(t *testing.T) {
	s := serve(t, openNode(t, false), nil)
	dial(t, s).want("COUNTD.POLL 3", nobody)
	for _, test := range []struct {
		name  string
		pairs []string
	}{
		{"one-to-one", []string{
			"COUNTD.UNREAD.GET 7", `["at" 0 "comment" 0 "like" 0 "dm" 0]`,
			"COUNTD.UNREAD.INCR 7 comment 2 7 like 1 8 at -3", "[2 1 0]", "countd.unread.get 007", `["at" 0 "comment" 2 "like" 1 "dm" 0]`,
			"COUNTD.UNREAD.INCR 7 comment 1 key k1", "[3]", "COUNTD.UNREAD.INCR 7 comment 1 KEY k1", "[3]",
			"COUNTD.UNREAD.RESET 7 SEEN 1 comment 2", `["counts" ["at" 0 "comment" 1 "like" 1 "dm" 0] "cleared" ["comment" 2]]`,
			"COUNTD.UNREAD.RESET 7 seen 2 comment 50 like 0 KEY k2", `["counts" ["at" 0 "comment" 0 "like" 1 "dm" 0] "cleared" ["comment" 1 "like" 0]]`,
			"COUNTD.UNREAD.RESET 7 seen 2 comment 50 like 0 KEY k2", `["counts" ["at" 0 "comment" 0 "like" 1 "dm" 0] "cleared" ["comment" 0 "like" 0]]`,
			"COUNTD.UNREAD.RESET 7 COLUMNS 2 like at", `["counts" ["at" 0 "comment" 0 "like" 0 "dm" 0] "cleared" ["like" 1 "at" 0]]`,
			"COUNTD.UNREAD.RESET 8 COLUMNS 1 at", `["counts" ["at" 0 "comment" 0 "like" 0 "dm" 0] "cleared" ["at" 0]]`,
			"COUNTD.UNREAD.INCR 8 at 9223372036854775807 8 at 1 8 dm 1", "[9223372036854775807 -ERR increment or decrement would overflow 1]",
			"MULTI", "+OK", "COUNTD.UNREAD.INCR 9 at 1", "+QUEUED", "COUNTD.UNREAD.RESET 9 COLUMNS 1 at", "+QUEUED", "COUNTD.UNREAD.GET 9", "+QUEUED",
			"EXEC", `[[1] ["counts" ["at" 0 "comment" 0 "like" 0 "dm" 0] "cleared" ["at" 1]] ["at" 0 "comment" 0 "like" 0 "dm" 0]]`,
			"GET unread:7:at", "-ERR no counter keyspace 'unread'",
		}},
		{"notices", []string{
			"COUNTD.NOTICE.READ news 7", `["unread" 0 "last_read" 0 "latest" 0]`, "COUNTD.NOTICE.PUBLISH news", "1", "COUNTD.NOTICE.READ news 7", `["unread" 0 "last_read" 1 "latest" 1]`,
			"COUNTD.NOTICE.PUBLISH news KEY p2", "2", "COUNTD.NOTICE.PUBLISH news", "3", "COUNTD.NOTICE.PUBLISH news KEY p2", "2",
			"COUNTD.NOTICE.GET news 7", `["unread" 2 "last_read" 1 "latest" 3]`, "COUNTD.NOTICE.READ news 7 UPTO 2", `["unread" 1 "last_read" 2 "latest" 3]`,
			"COUNTD.NOTICE.RETRACT news 3", "3", "COUNTD.NOTICE.RETRACT news 3 KEY r", "3", "COUNTD.NOTICE.RETRACT news 4", "-ERR no such notice",
			"COUNTD.NOTICE.GET news 7", `["unread" 0 "last_read" 2 "latest" 3]`, "COUNTD.NOTICE.GET news 8", `["unread" 0 "last_read" null "latest" 3]`,
			"COUNTD.NOTICE.GET news 8 SINCE 0", `["unread" 2 "last_read" null "latest" 3]`, "COUNTD.NOTICE.READ news 8 SINCE 1 KEY b", `["unread" 1 "last_read" 1 "latest" 3]`,
			"COUNTD.NOTICE.READ news 8 SINCE 2", `["unread" 1 "last_read" 1 "latest" 3]`, "COUNTD.NOTICE.LIST", `["news" ["latest" 3 "retracted" 1]]`,
			"COUNTD.NOTICE.PUBLISH other KEY p2", "-CONFLICT the key was used for another request",
		}},
		{"dots", []string{
			"COUNTD.DOT.GET shop 7", "0", "COUNTD.DOT.CLEAR shop 7", "0", "COUNTD.DOT.FIRE shop", "1", "COUNTD.DOT.GET shop 7", "1", "COUNTD.DOT.CLEAR shop 7 KEY c", "0",
			"COUNTD.DOT.GET shop 7", "0", "COUNTD.DOT.FIRE shop KEY f", "2", "COUNTD.DOT.CLEAR shop 7 KEY c", "1", "COUNTD.DOT.FIRE shop KEY f", "2",
			"COUNTD.DOT.SET moved NEWUSERS 0 KEY s", "0", "COUNTD.DOT.FIRE moved", "1", "COUNTD.DOT.GET moved 1000", "0", "COUNTD.DOT.GET moved 7", "1",
			"COUNTD.DOT.LIST", `["moved" ["fired" 1 "new_users" 0] "shop" ["fired" 2 "new_users" 1]]`,
		}},
		{"timelines", []string{
			"COUNTD.FEED.FOLLOW 70 20 30", "0", "COUNTD.OUTBOX.ADD 20 5", "1", "COUNTD.OUTBOX.ADD 20 5", "0", "COUNTD.OUTBOX.ADD 20 6 KEY o", "1", "COUNTD.OUTBOX.ADD 20 6 KEY o", "0",
			"COUNTD.OUTBOX.ADD 30 7", "1", "GET users:20:posts", `"2"`, "COUNTD.OUTBOX.LIST 20", `["6" "5"]`, "COUNTD.OUTBOX.LIST 20 LIMIT 1", `["6"]`, "COUNTD.OUTBOX.LIST 20 CURSOR 6", `["5"]`,
			"INCR posts:7:like", "1", "COUNTD.TIMELINE 70 LIMIT 1 COUNTS posts", `["posts" [["id" "7" "author" "30" "counts" ["repost" 0 "comment" 0 "like" 1 "view" 0]]] "cursor" "7.30"]`,
			"SADD posts:7:like:members 70", "1", "COUNTD.TIMELINE 70 LIMIT 1 MEMBER like", `["posts" [["id" "7" "author" "30" "member" ["like" 1]]] "cursor" "7.30"]`, "SADD users:7:posts:members 70", "1",
			"COUNTD.TIMELINE 70 LIMIT 1 MEMBER view,like COUNTS posts", `["posts" [["id" "7" "author" "30" "counts" ["repost" 0 "comment" 0 "like" 2 "view" 0] "member" ["view" 0 "like" 1]]] "cursor" "7.30"]`,
			"COUNTD.TIMELINE 70 LIMIT 1 MEMBER posts COUNTS users", `["posts" [["id" "7" "author" "30" "counts" ["posts" 1 "followers" 0 "following" 0] "member" ["posts" 1]]] "cursor" "7.30"]`, "DEL users:7", "1",
			"COUNTD.TIMELINE 70 CURSOR 7.30", `["posts" [["id" "6" "author" "20"] ["id" "5" "author" "20"]] "cursor" null]`, "COUNTD.FEED.UNREAD 70", "3",
			"COUNTD.OUTBOX.REM 20 6", "1", "COUNTD.OUTBOX.REM 20 6", "0", "COUNTD.FEED.RESET 70", "0", "COUNTD.TIMELINE 70 GROUP none", "-ERR no such group", "COUNTD.TIMELINE 71", `["posts" [] "cursor" null]`,
			"SET users:40:posts 9223372036854775807", "+OK", "COUNTD.OUTBOX.ADD 40 1", "-ERR the number of posts is not an integer of 64 bits",
		}},
		{"the feed", []string{
			"COUNTD.FEED.UNREAD 1", "0", "MSET users:2:posts 6 users:3:posts 7 users:4:posts 12", "+OK", "COUNTD.FEED.RESET 1 FOLLOWEES 3 2 3 4", "0",
			"MSET users:2:posts 10 users:3:posts 8 users:4:posts 14", "+OK", "COUNTD.FEED.UNREAD 1", "7", "COUNTD.FEED.UNREAD 1 DETAIL", `["unread" 7 "followees" ["2" 4 "3" 1 "4" 2]]`,
			"SET users:9:posts 1000", "+OK", "COUNTD.FEED.FOLLOW 1 9 KEY f", "7", "COUNTD.FEED.UNFOLLOW 1 2 key u", "3", "COUNTD.FEED.READ 1 4", "1",
			"COUNTD.FEED.FOLLOW 1 9 KEY f", "1", "COUNTD.FEED.RESET 1", "0", "INCR users:3:posts", "9", "COUNTD.FEED.RESET 1 FOLLOWEES 0 KEY none", "0", "COUNTD.FEED.UNREAD 1 DETAIL", `["unread" 0 "followees" []]`,
		}},
		{"polls", []string{
			"COUNTD.POLL 8 DOTS 2 moved shop CHANNELS 2 none news", `["unread" ["at" 9223372036854775807 "comment" 0 "like" 0 "dm" 1] "notices" ["none" 0 "news" 1] "dots" ["moved" 1 "shop" 1] "feed" 0]`,
			"COUNTD.MPOLL 3 3", "[" + nobody + " " + nobody + "]", "COUNTD.MPOLL 3 CHANNELS 0 DOTS 0", "[" + nobody + "]",
			"HELLO 3", `{"server" "redis" "version" "7.0.15" "proto" 3 "id" 7 "mode" "standalone" "role" "master" "modules" []}`,
			"COUNTD.POLL 3 CHANNELS 1 news", `{"unread" {"at" 0 "comment" 0 "like" 0 "dm" 0} "notices" {"news" 0} "dots" {} "feed" 0}`, "COUNTD.UNREAD.GET 3", `{"at" 0 "comment" 0 "like" 0 "dm" 0}`,
			"COUNTD.UNREAD.RESET 3 COLUMNS 1 at", `{"counts" {"at" 0 "comment" 0 "like" 0 "dm" 0} "cleared" {"at" 0}}`, "COUNTD.NOTICE.GET news 3", `{"unread" 0 "last_read" null "latest" 3}`,
			"COUNTD.NOTICE.LIST", `{"news" {"latest" 3 "retracted" 1}}`, "COUNTD.DOT.GET shop 3", "1", "COUNTD.FEED.UNREAD 1 DETAIL", `{"unread" 0 "followees" {}}`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) { dial(t, s).want(test.pairs...) })
	}
}

// The error of a bad command names the fault. The command changes nothing.
func TestBadUnreadCommands(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	many := func(count int, from string) string { return strings.Repeat(" "+from, count) }
	for _, pair := range [][2]string{
		{"COUNTD.POLL x", notUser}, {"COUNTD.POLL -1", notUser}, {"COUNTD.POLL 18446744073709551616", notUser}, {"COUNTD.POLL 1 2", mended}, {"COUNTD.POLL 1 CHANNELS", mended},
		{"COUNTD.POLL 1 CHANNELS x a", "-ERR numchannels: not a number from 0 to 63"}, {"COUNTD.POLL 1 DOTS 64", "-ERR numdots: not a number from 0 to 63"}, {"COUNTD.POLL 1 CHANNELS 2 a", mended},
		{"COUNTD.POLL 1 CHANNELS 1 A", "-ERR channels: A: " + notName}, {"COUNTD.POLL 1 DOTS 2 a a", "-ERR dots: a: given twice"}, {"COUNTD.POLL 1 DOTS 1 " + longName + "4", "-ERR dots: " + longName + "4: " + notName},
		{"COUNTD.POLL 1 CHANNELS 1 a CHANNELS 1 b", mended}, {"COUNTD.POLL 1 KEY k", mended}, {"COUNTD.MPOLL a 1", notUser}, {"COUNTD.MPOLL 1 2 x", notUser}, {"COUNTD.MPOLL" + many(101, "1"), "-ERR users: more than 100"},
		{"COUNTD.UNREAD.GET x", notUser}, {"COUNTD.UNREAD.INCR 1 at x", "-ERR value is not an integer or out of range"}, {"COUNTD.UNREAD.INCR 1 love 1", "-ERR keyspace 'unread' has no column 'love'"},
		{"COUNTD.UNREAD.INCR 1 at 1 2 at", "-ERR wrong number of arguments for 'countd.unread.incr' command"}, {"COUNTD.UNREAD.INCR 1 at 1 x at 1", notUser}, {"COUNTD.UNREAD.INCR 1 at 1 KEY ''", "-ERR idempotency key: 1 to 128 bytes"},
		{"COUNTD.UNREAD.RESET 1 KEY k COLUMNS 0", "-ERR columns: at least one column is needed"}, {"COUNTD.UNREAD.RESET 1 KEY k KEY", mended}, {"COUNTD.UNREAD.RESET 1 KEY k", "-ERR wrong number of arguments for 'countd.unread.reset' command"},
		{"COUNTD.UNREAD.RESET 1 COLUMNS 1 at SEEN 1 at 1", "-ERR seen: a reset takes either COLUMNS or SEEN"}, {"COUNTD.UNREAD.RESET 1 COLUMNS 2 at at", "-ERR at: given twice"}, {"COUNTD.UNREAD.RESET 1 SEEN 1 at -1", "-ERR seen.at: " + notSeq},
		{"COUNTD.UNREAD.RESET 1 COLUMNS 1 love", "-ERR keyspace 'unread' has no column 'love'"}, {"COUNTD.UNREAD.RESET 1 COLUMNS 65 at", "-ERR numcolumns: not a number from 0 to 64"}, {"COUNTD.UNREAD.RESET 1 FOO 1 at", mended},
		{"COUNTD.NOTICE.PUBLISH News", "-ERR channel: " + notName}, {"COUNTD.NOTICE.PUBLISH news 1", mended}, {"COUNTD.NOTICE.PUBLISH news KEY", mended}, {"COUNTD.NOTICE.PUBLISH news KEY a KEY b", mended},
		{"COUNTD.NOTICE.PUBLISH news KEY " + strings.Repeat("k", 129), "-ERR idempotency key: 1 to 128 bytes"}, {"COUNTD.NOTICE.RETRACT news -1", "-ERR seq: " + notSeq}, {"COUNTD.NOTICE.RETRACT news 9223372036854775808", "-ERR seq: " + notSeq},
		{"COUNTD.NOTICE.GET news 1 SINCE x", "-ERR since: " + notSeq}, {"COUNTD.NOTICE.GET news 1 UPTO 1", mended}, {"COUNTD.NOTICE.GET '' 1", "-ERR channel: " + notName}, {"COUNTD.NOTICE.GET news x", notUser},
		{"COUNTD.NOTICE.READ news 1 UPTO 1 SINCE 1", "-ERR since: a read goes up to a notice or begins behind one, not both"}, {"COUNTD.NOTICE.READ news 1 UPTO -1", "-ERR upto: " + notSeq}, {"COUNTD.NOTICE.READ news 1 UPTO", mended},
		{"COUNTD.DOT.FIRE 1shop", "-ERR dot: " + notName}, {"COUNTD.DOT.SET shop NEWUSERS 2", "-ERR newusers: neither 0 nor 1"}, {"COUNTD.DOT.SET shop KEY k", "-ERR newusers: missing"}, {"COUNTD.DOT.CLEAR shop x", notUser}, {"COUNTD.DOT.GET shop", "-ERR wrong number of arguments for 'countd.dot.get' command"},
		{"COUNTD.FEED.FOLLOW 1 x", "-ERR followees[0]: not an unsigned 64-bit integer" + names.Hint}, {"COUNTD.FEED.FOLLOW 1" + many(5001, "2"), "-ERR followees: more than 5000"}, {"COUNTD.FEED.RESET 1 FOLLOWEES 5001", "-ERR numfollowees: not a number from 0 to 5000"},
		{"COUNTD.OUTBOX.ADD 1", "-ERR wrong number of arguments for 'countd.outbox.add' command"}, {"COUNTD.OUTBOX.ADD x 1", "-ERR author: not an unsigned 64-bit integer" + names.Hint}, {"COUNTD.OUTBOX.REM 1 -1", "-ERR id: not an unsigned 64-bit integer" + names.Hint},
		{"COUNTD.OUTBOX.LIST 1 LIMIT 0", "-ERR limit: not an integer from 1 to 1000"}, {"COUNTD.OUTBOX.LIST 1 CURSOR x", "-ERR cursor: not a cursor of this command"}, {"COUNTD.TIMELINE 1 CURSOR 5", "-ERR cursor: not a cursor of this command"},
		{"COUNTD.TIMELINE 1 GROUP a:b", "-ERR group: not 1 to 63 of A-Z a-z 0-9 . _ -"}, {"COUNTD.TIMELINE 1 COUNTS x", "-ERR counts: no such keyspace of counters"}, {"COUNTD.TIMELINE 1 MEMBER", mended}, {"COUNTD.TIMELINE 1 MEMBER likes", "-ERR member: no such column"}, {"COUNTD.TIMELINE 1 MEMBER like,", "-ERR member: no such column"},
		{"COUNTD.TIMELINE 1 MEMBER like,like", "-ERR member: given twice"}, {"COUNTD.TIMELINE 1 MEMBER like COUNTS users", "-ERR member: no such column"}, {"COUNTD.TIMELINE x", notUser},
		{"COUNTD.FEED.RESET 1 2", mended}, {"COUNTD.FEED.READ x 1", notUser}, {"COUNTD.FEED.UNREAD 1 DETAIL DETAIL", mended}, {"COUNTD.FEED.UNREAD 1 ALL", mended}, {"COUNTD.FEED.FOLLOW 1", "-ERR wrong number of arguments for 'countd.feed.follow' command"},
	} {
		c.want(pair[0], pair[1])
	}
	c.want("MULTI", "+OK", "COUNTD.POLL 1", "-ERR Command not allowed inside a transaction", "EXEC", "-EXECABORT Transaction discarded because of previous errors.",
		"MULTI", "+OK", "COUNTD.UNREAD.INCR 1 at 1 KEY k", "+QUEUED", "EXEC", "[-ERR a transaction counts once by COUNTD.SESSION, not by KEY]")
	if n.writes.Load()+n.polls.Load() != 0 {
		t.Errorf("%d writes and %d polls", n.writes.Load(), n.polls.Load())
	}
}

// The commands of a user's whole day get the same replies in one pipeline as one by one. A repeat
// in the same session gets the same replies and changes nothing.
func TestUnreadSessions(t *testing.T) {
	s := serve(t, openNode(t, false), nil)
	lines := []string{
		"COUNTD.SESSION importer 1", "COUNTD.NOTICE.PUBLISH news", "COUNTD.NOTICE.PUBLISH news", "COUNTD.NOTICE.READ news 7 UPTO 1", "COUNTD.UNREAD.INCR 7 at 2 8 at 1",
		"COUNTD.UNREAD.RESET 7 SEEN 1 at 1", "SET users:2:posts 5", "COUNTD.FEED.FOLLOW 7 2", "INCRBY users:2:posts 3", "COUNTD.DOT.FIRE shop", "COUNTD.DOT.CLEAR shop 7",
		"COUNTD.POLL 7 CHANNELS 1 news DOTS 1 shop", "COUNTD.FEED.READ 7 2", "COUNTD.FEED.UNREAD 7",
	}
	const day = `["unread" ["at" 1 "comment" 0 "like" 0 "dm" 0] "notices" ["news" 1] "dots" ["shop" 0] "feed" %d]`
	equalReplies(t, dial(t, s).do(lines...), "+OK", "1", "2", `["unread" 1 "last_read" 1 "latest" 2]`, "[2 1]",
		`["counts" ["at" 1 "comment" 0 "like" 0 "dm" 0] "cleared" ["at" 1]]`, "+OK", "0", "8", "1", "0", fmt.Sprintf(day, 3), "0", "0")
	equalReplies(t, dial(t, s).do(lines...), "+OK", "1", "2", `["unread" 1 "last_read" 1 "latest" 2]`, "[1 1]",
		`["counts" ["at" 1 "comment" 0 "like" 0 "dm" 0] "cleared" ["at" 0]]`, "+OK", "0", "8", "1", "0", fmt.Sprintf(day, 0), "0", "0")
}

// For any arguments:
//
//  1. there is one reply, in both protocol versions;
//  2. an error changes nothing, unless it is UNKNOWN.
func FuzzUnreadCommands(f *testing.F) {
	names := []string{}
	for name := range newCommands() {
		if strings.HasPrefix(name, "countd.") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for i, args := range []string{"1 CHANNELS 2 a b", "1 at 1 KEY k", "1 SEEN 1 at 5", "news 1 UPTO 3 KEY x", "news 1", "shop NEWUSERS 1", "1 FOLLOWEES 2 3 4", "1 2 3", "1 DETAIL", "posts:1:like 1 KEY a", "p 1"} {
		for at := range names {
			f.Add(uint8(at), args, i%2 == 0)
		}
	}
	n := newFakeNode()
	s := serve(f, n, nil)
	f.Fuzz(func(t *testing.T, which uint8, line string, resp3 bool) {
		words, err := resp.SplitLine([][]byte{[]byte(names[int(which)%len(names)])}, []byte(line))
		if err != nil || len(words) > 200 {
			return
		}
		before := n.writes.Load()
		c := newConn(s, nullConn{})
		defer c.release()
		c.begin()
		c.resp3 = resp3
		c.command(words)
		c.batch.flush()
		in := bufio.NewReader(bytes.NewReader(c.out.Buf))
		reply, err := readReply(in)
		if rest, _ := in.Peek(1); err != nil || len(rest) > 0 {
			t.Fatalf("%q: %q: %v", words, c.out.Buf, err)
		}
		if reply[0] == '-' && !strings.HasPrefix(reply, "-UNKNOWN") && n.writes.Load() != before && !strings.Contains(reply, "overflow") {
			t.Fatalf("%q: %s, and %d writes", words, reply, n.writes.Load()-before)
		}
	})
}
