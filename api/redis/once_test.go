package redis

import (
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// A client may repeat a session, or any prefix of it, on any connection and split in any way.
// Nevertheless,
//
//  1. each of its writes is applied once;
//  2. each write of the next session is applied once too;
//  3. a write without a session counts each time.
func TestSessionsCountOnce(t *testing.T) {
	s := serve(t, openNode(t, false), nil)
	rng := rand.New(rand.NewPCG(1, 2))
	const writes = 300 // more writes than the window of a producer
	want := map[string]int{}
	for seq := range 6 {
		lines := []string{fmt.Sprintf("COUNTD.SESSION importer %d", seq)}
		for i := range writes {
			id := rng.IntN(20)
			switch i % 4 {
			case 0:
				lines = append(lines, fmt.Sprintf("HINCRBY posts:%d like 1", id))
			case 1:
				lines = append(lines, "GET posts:1:like", fmt.Sprintf("COUNTD.INCR posts:%d:like 1 posts:%d:like 2", id, id+1))
				want[fmt.Sprint(id+1)] += 2
			case 2:
				lines = append(lines, "MULTI", fmt.Sprintf("INCR posts:%d:like", id), "GET posts:1", "EXEC")
			default:
				lines = append(lines, fmt.Sprintf("INCR posts:%d:like", id))
			}
			want[fmt.Sprint(id)]++
		}
		var whole strings.Builder
		for _, line := range lines {
			whole.WriteString(wire(line))
		}
		for range 3 { // repeat, as after lost connections
			lost := dial(t, s)
			if _, err := io.WriteString(lost.conn, whole.String()[:rng.IntN(whole.Len())]); err != nil {
				t.Fatal(err)
			}
			lost.conn.Close()
		}
		until(t, "what was lost has been applied", func() bool { return s.listener.Open() == 0 })
		c := dial(t, s)
		for _, reply := range c.do(lines...) {
			if strings.Contains(reply, "-") && !strings.Contains(reply, "WRONGTYPE") {
				t.Fatalf("session %d: %s", seq, reply)
			}
		}
		c.conn.Close()
		until(t, "it has left", func() bool { return s.listener.Open() == 0 })
	}
	c := dial(t, s)
	for id, count := range want {
		c.want("GET posts:"+id+":like", fmt.Sprintf("%q", fmt.Sprint(count)))
	}
	c.want("COUNTD.SESSION importer 3", "+OK", "INCR posts:1:like", "-EXPIRED the request is too old to tell whether it was applied",
		"COUNTD.SESSION END", "+OK", "INCR posts:77:like", "1", "INCR posts:77:like", "2")
}

func TestKeysCountOnce(t *testing.T) {
	s := serve(t, openNode(t, false), nil)
	a, b := dial(t, s), dial(t, s)
	const line = "COUNTD.INCR posts:1:like 1 posts:2:like 2 users:3:posts 3 KEY "
	a.want(line+"k1", "[1 2 3]", line+"k1", "[1 2 3]", line+"k2", "[2 4 6]")
	b.want(line+"k1", "[2 4 6]", "COUNTD.INCR posts:1:like 2 KEY k1", "-CONFLICT the key was used for another request")
	equalReplies(t, a.do("INCR posts:1:like", line+"k2", line+"k3", "GET posts:1:like"), "3", "[3 4 6]", "[4 6 9]", `"4"`)
}

// If a key was used for another COUNTD.INCR, the whole new command conflicts. The commands may name
// different keyspaces, and may be in one pipeline or in two.
func TestKeysConflictWithTheWholeCommand(t *testing.T) {
	c := dial(t, serve(t, openNode(t, false), nil))
	const conflict = "-CONFLICT the key was used for another request"
	ofPosts, ofUsers := "COUNTD.INCR posts:1:like 1 KEY ", "COUNTD.INCR users:3:posts 1 KEY "
	ofBoth, ofOthers := "COUNTD.INCR posts:1:like 1 users:3:posts 1 KEY ", "COUNTD.INCR users:4:posts 1 posts:2:like 1 KEY "
	uses := []struct{ first, reply string }{{ofPosts, "[1]"}, {ofUsers, "[1]"}, {ofBoth, "[2 2]"}, {ofOthers, "[1 1]"}}
	for i, use := range uses {
		key := fmt.Sprint("k", i)
		lines, want := []string{use.first + key}, []string{use.reply}
		for _, other := range uses {
			if lines = append(lines, other.first+key); other == use {
				want = append(want, use.reply)
			} else {
				want = append(want, conflict)
			}
		}
		equalReplies(t, c.do(lines...), want...)
	}
	c.want("MGET posts:1:like posts:2:like users:3:posts users:4:posts", `["2" "1" "2" "1"]`)
	c.want(ofBoth+"own", "[3 3]", "INCR users:3:posts", "4", ofBoth+"own", "[3 4]", "GET posts:1:like", `"3"`)
	const most = "9223372036854775807"
	c.want("SET users:5:posts "+most, "+OK", "COUNTD.INCR posts:5:like 1 users:5:posts 1 KEY over", "[1 -ERR increment or decrement would overflow]")
}

// While a new cluster still waits for its nodes, a keyspace may be created before the keyspace that
// checks keys exists.
func TestKeyBeforeTheKeyspaceThatJudgesIt(t *testing.T) {
	n := newFakeNode()
	n.keyspaces = slices.DeleteFunc(n.keyspaces, func(ks *shard.Keyspace) bool { return ks.Name == kinds.KeyspacePosts })
	const leaderless = "-LEADERLESS this node does not know its cluster's keyspaces yet"
	dial(t, serve(t, n, nil)).want("COUNTD.INCR users:1:posts 1 KEY k", leaderless, "COUNTD.INCR users:1:posts 1", "[1]")
}

// The reply to a write on several keyspaces names the part that was applied, if only some shards
// applied it.
func TestKeyOfACommandThatIsAppliedInPart(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	n.failWrites(func(w *shard.Write) error {
		if len(w.Spaces) != 2 || w.Spaces[0].Name != kinds.KeyspacePosts || len(apitest.RowOps(w.Ops)) != 3 || len(w.In) != 3 {
			t.Errorf("written: %+v", w)
		}
		clear(w.Rows)
		w.Rows[0] = 9 // the count after the only op that was applied
		return &shard.PartialError{Err: errs.ErrNoLeader, AppliedOps: []int{0}, ByOp: []error{nil, errs.ErrNoLeader, errs.ErrNoLeader}}
	})
	got := c.do("COUNTD.INCR users:3:posts 1 posts:1:like 1 users:4:posts 1 KEY k")
	if len(got) != 1 || strings.Count(got[0], "LEADERLESS") != 2 || !strings.Contains(got[0], "9") {
		t.Errorf("told %q", got)
	}
}

// Each write of a session has its own number, even if the session has more writes than a stream has
// numbers.
func TestSessionNumbers(t *testing.T) {
	s := dedup.Session{Name: []byte("p"), Seq: 3}
	seen := map[string]bool{}
	for n := range 3 * dedup.SessionBlock {
		id := s.Next()
		want := dedup.ByProducer([]byte{'p', 0, 0, byte(n / dedup.SessionBlock)}, uint64(3*dedup.SessionBlock+n%dedup.SessionBlock))
		if !reflect.DeepEqual(id, want) {
			t.Fatalf("write %d: %+v, want %+v", n, id, want)
		}
		seen[fmt.Sprintf("%+v", id)] = true
	}
	if len(seen) != 3*dedup.SessionBlock {
		t.Errorf("%d of %d identities differ", len(seen), 3*dedup.SessionBlock)
	}
}

// A session that has used all its numbers refuses further writes. It uses no number twice.
func TestFullSession(t *testing.T) {
	n := newFakeNode()
	s := serve(t, n, nil)
	c := newConn(s, nullConn{})
	defer c.release()
	c.begin()
	c.once = dedup.Session{Name: []byte("p"), Writes: dedup.SessionWritesMax - 1}
	for range 2 {
		c.command([][]byte{[]byte("INCR"), []byte("posts:1:like")})
		c.batch.flush()
	}
	if got, want := string(c.out.Buf), ":1\r\n-"+errSessionFull+"\r\n"; got != want {
		t.Errorf("replies %q, want %q", got, want)
	}
	c.out.Buf = nil
	for _, words := range [][][]byte{{[]byte("MULTI")}, {[]byte("INCR"), []byte("posts:1:like")}, {[]byte("EXEC")}, {[]byte("PING")}} {
		c.command(words)
		c.batch.flush()
	}
	if got, want := string(c.out.Buf), "+OK\r\n+QUEUED\r\n-"+errSessionFull+"\r\n+PONG\r\n"; got != want {
		t.Errorf("of a transaction %q, want %q", got, want)
	}
}

// Another node's program may know a command that this node does not know. So after an unknown
// command, a session has no number for a write. 1. It refuses a write, in a transaction too. 2. It
// serves reads. 3. Earlier writes have counted. 4. The next session may write.
func TestSessionRefusesWritesBehindAnUnknownCommand(t *testing.T) {
	c := dial(t, serve(t, openNode(t, false), nil))
	unknown := "-" + resp.UnknownCommand([][]byte{[]byte("COUNTD.LATER"), []byte("posts:1")})
	c.want("COUNTD.LATER posts:1", unknown, "COUNTD.SESSION p 1", "+OK", "INCR posts:1:like", "1",
		"COUNTD.LATER posts:1", unknown, "INCR posts:1:like", "-"+errSessionUnsure, "GET posts:1:like", `"1"`,
		"MULTI", "+OK", "INCR posts:1:like", "+QUEUED", "EXEC", "-"+errSessionUnsure,
		"COUNTD.SESSION p 2", "+OK", "INCR posts:1:like", "2",
		"COUNTD.LATER posts:1", unknown, "COUNTD.SESSION END", "+OK", "INCR posts:1:like", "3")
}

// Of the writes with an identity, those to the same row run one after the other, in order. The
// others run concurrently.
func TestWaves(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	lines, want := []string{"COUNTD.SESSION p 1"}, []string{"+OK"}
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("SET posts:%d:like %d GET", i%3, i), fmt.Sprintf("INCR posts:%d:like", 10+i))
		if i < 3 {
			want = append(want, "null", "1")
		} else {
			want = append(want, strings.ReplaceAll(fmt.Sprintf("%q", fmt.Sprint(i-3)), `"0"`, "null"), "1")
		}
	}
	equalReplies(t, c.do(lines...), want...)
	if len(n.mu.written) != 200 {
		t.Errorf("%d writes have identities", len(n.mu.written))
	}
}

// Connections share the helper goroutines. If none is free, a connection executes its commands
// itself.
func TestWavesShareLanes(t *testing.T) {
	n := newFakeNode()
	n.hold = make(chan struct{})
	s := serve(t, n, nil)
	s.helpers.Max = gate.HelpersMax / gate.WaveMax // so a connection gets one helper
	writes := func(first int) (lines []string) {
		for i := range 20 {
			lines = append(lines, fmt.Sprintf("COUNTD.INCR posts:%d:like 1 KEY k%d", first+i, first+i))
		}
		return lines
	}
	a, b := dial(t, s), dial(t, s)
	a.send(writes(0)...)
	until(t, "one takes a share", func() bool { return n.writes.Load() == 2 })
	b.send(writes(100)...)
	until(t, "the other goes on by itself", func() bool { return n.writes.Load() == 3 })
	close(n.hold)
	for _, c := range []*client{a, b} {
		for range 20 {
			if got := c.reply(); got != "[1]" {
				t.Errorf("a write is answered %s", got)
			}
		}
	}
}
