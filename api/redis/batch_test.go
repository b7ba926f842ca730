package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// A pipeline calls the backend as few times as the order of its commands allows. The replies are
// the same as if the commands were sent one by one.
func TestPipelines(t *testing.T) {
	for _, test := range []struct {
		name         string
		lines        []string
		want         []string
		gets, writes int64
	}{
		{"reads", []string{"GET posts:1:like", "HGETALL posts:2", "MGET posts:3:like posts:4:view"}, []string{"null", "[]", "[null null]"}, 1, 0},
		{"writes", []string{"INCR posts:1:like", "INCR posts:1:like", "SET posts:2:view 5", "DECR posts:1:like"}, []string{"1", "2", "+OK", "1"}, 0, 1},
		{"reads after writes", []string{"INCR posts:1:like", "GET posts:1:like", "INCR posts:1:like", "GET posts:1:like", "HLEN posts:1"},
			[]string{"1", `"1"`, "2", `"2"`, "1"}, 0, 1},
		{"reads before writes", []string{"GET posts:1:like", "EXISTS posts:1", "INCR posts:1:like"}, []string{"null", "0", "1"}, 1, 1},
		{"two keyspaces", []string{"INCR posts:1:like", "INCR users:1:posts", "GET posts:1:like", "GET users:2:posts"}, []string{"1", "1", `"1"`, "null"}, 0, 2},
		{"known replies between", []string{"PING", "INCR posts:1:like", "PING", "ECHO a", "GET posts:1", "INCR posts:1:like"},
			[]string{"+PONG", "1", "+PONG", `"a"`, "-WRONGTYPE Operation against a key holding the wrong kind of value", "2"}, 0, 1},
		{"transactions", []string{"INCR posts:1:like", "MULTI", "INCR posts:1:like", "INCR posts:5:like", "EXEC", "MULTI", "INCR posts:1:like", "INCR posts:2:like", "EXEC", "INCR posts:1:like"},
			[]string{"1", "+OK", "+QUEUED", "+QUEUED", "[2 1]", "+OK", "+QUEUED", "+QUEUED", "-CROSSSLOT Keys in request don't hash to the same slot", "3"}, 0, 1},
		{"what answers at once", []string{"INCR posts:1:like", "DBSIZE", "INCR posts:1:like"}, []string{"1", "1", "2"}, 0, 2},
		{"deletes", []string{"HSET posts:1 like 1 view 2", "DEL posts:1:like", "HGETALL posts:1", "DEL posts:1 posts:1", "EXISTS posts:1"},
			[]string{"2", "1", `["view" "2"]`, "1", "0"}, 0, 1},
		{"a key of its own", []string{"INCR posts:1:like", "COUNTD.INCR posts:1:like 1 KEY a", "INCR posts:1:like"}, []string{"1", "[2]", "3"}, 0, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newFakeNode()
			equalReplies(t, dial(t, serve(t, n, nil)).do(test.lines...), test.want...)
			if n.gets.Load() != test.gets || n.writes.Load() != test.writes {
				t.Errorf("%d reads and %d writes, want %d and %d", n.gets.Load(), n.writes.Load(), test.gets, test.writes)
			}
		})
	}
}

// A pipeline with more ops than one write is split, in order.
func TestLongPipeline(t *testing.T) {
	const commands = 30_000
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	lines := make([]string, commands)
	for i := range lines {
		lines[i] = "INCR posts:1:like"
	}
	go func() { c.send(lines...) }() // the goroutine ends when the server has read all lines
	for i := range commands {
		if got := c.reply(); got != fmt.Sprint(i+1) {
			t.Fatalf("reply %d: %s", i, got)
		}
	}
}

// The server reads a pipeline that has fully arrived in a few reads, each larger than the previous
// one.
func TestReadsGrow(t *testing.T) {
	const commands = 8000 // some 270 KiB
	n := newFakeNode()
	n.hold = make(chan struct{})
	c := dial(t, serve(t, n, nil))
	lines := make([]string, commands)
	for i := range lines {
		lines[i] = "INCR posts:1:like"
	}
	c.send(lines...)
	close(n.hold)
	for range lines {
		c.reply()
	}
	if writes := n.writes.Load(); writes > 12 {
		t.Errorf("%d writes", writes)
	}
}

// A command accepts as many keys as one request of the HTTP API.
func TestTooManyKeys(t *testing.T) {
	c := dial(t, serve(t, newFakeNode(), nil))
	line := "MGET"
	for range rowsMax + 1 {
		line += " posts:1:like"
	}
	c.want(line, "-ERR a command takes at most 10000 keys", line[:len(line)-len(" posts:1:like")]+" ", c.do(line[:len(line)-len(" posts:1:like")])[0])
}

// The reads through a node carry the token of all writes through that node. Reads of READONLY
// connections carry no token.
func TestReadsSeeTheNodesWrites(t *testing.T) {
	n := newFakeNode()
	s := serve(t, n, nil)
	c, other := dial(t, s), dial(t, s)
	read := func(by *client, what string, consistency shard.Consistency, at ...shard.GroupIndex) {
		t.Helper()
		by.do("GET " + what)
		n.mu.Lock()
		defer n.mu.Unlock()
		if got := n.mu.opt; got.Consistency != consistency || !slices.Equal(got.Token.At, at) {
			t.Errorf("%s is read with %+v", what, got)
		}
	}
	read(c, "posts:1:like", shard.Bounded)
	c.do("INCR posts:1:like", "INCR posts:1:like")
	c.do("INCR posts:1:like")
	latest := shard.GroupIndex{Group: 3, Index: uint64(n.writes.Load())}
	read(c, "posts:1:like", shard.Bounded, latest)
	read(other, "posts:2:like", shard.Bounded, latest)
	read(c, "users:1:posts", shard.Bounded)
	c.do("READONLY")
	read(c, "posts:1:like", shard.Stale)
	read(other, "posts:1:like", shard.Bounded, latest)
	c.do("READWRITE")
	read(c, "posts:1:like", shard.Bounded, latest)
}

// Reads of users see posts that were published through the node, and later writes to users. The
// node merges the tokens of both, with one index for each group.
func TestReadsSeePublishedPosts(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	seen := func(line string) {
		t.Helper()
		c.do(line)
		n.mu.Lock()
		defer n.mu.Unlock()
		want := []shard.GroupIndex{{Group: 3, Index: uint64(n.writes.Load())}}
		if got := n.mu.opt; !slices.Equal(got.Token.At, want) {
			t.Errorf("%s is read with %v, want %v", line, got.Token.At, want)
		}
	}
	c.do("COUNTD.OUTBOX.ADD 1 2")
	seen("GET users:1:posts")
	seen("COUNTD.POLL 1 CHANNELS 1 news")
	c.do("HINCRBY users:1 posts 1")
	seen("COUNTD.POLL 1 CHANNELS 1 news")
	c.do("COUNTD.OUTBOX.REM 1 2")
	seen("HGET users:1 posts")
}

// If a cluster was restored to an earlier state, reads see that state. The node does not refuse
// them forever.
func TestReadsAfterTheClusterWasSetBack(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	c.do("INCR posts:1:like")
	n.mu.Lock()
	n.mu.readErr = func([]uint64) error {
		if len(n.mu.opt.Token.At) > 0 {
			return errs.ErrBadToken
		}
		return nil
	}
	n.mu.Unlock()
	c.want("GET posts:1:like", `"1"`, "GET posts:1:like", `"1"`)
	if n.gets.Load() != 3 {
		t.Errorf("%d reads, want 3", n.gets.Load())
	}
}

// shardsFailed returns the error of a write whose ops failed with err in some shards of four.
func shardsFailed(w *shard.Write, err error, shards ...uint64) *shard.PartialError {
	e := &shard.PartialError{Err: err, ByOp: make([]error, w.Ops.Len())}
	for i := range e.ByOp {
		if slices.Contains(shards, w.Ops.ID(i)%4) {
			e.ByOp[i] = err
		}
	}
	return e
}

// If some shards fail in a shared read or write, only the commands on these shards fail.
func TestCommandsFailAlone(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	c.do("MSET posts:1:like 5 posts:2:like 6 posts:3:like 7")
	n.failWrites(func(w *shard.Write) error {
		for i := range apitest.RowOps(w.Ops) {
			if apitest.RowOps(w.Ops)[i].ID%2 == 0 {
				n.tables["posts"].Apply(apitest.RowOps(w.Ops)[i:i+1], w.Width, w.Rows[i*w.Width:(i+1)*w.Width], nil)
			}
		}
		return shardsFailed(w, errs.ErrNoLeader, 1, 3)
	})
	const leaderless = "-LEADERLESS the shard has no leader"
	equalReplies(t, c.do("INCR posts:1:like", "INCR posts:2:like", "SET posts:3:like 1", "GET posts:3:like", "GET posts:2:like",
		"MSET posts:1:view 1 posts:2:view 2", "MSET posts:1:view 1 posts:3:view 2", "COUNTD.INCR posts:1:like 1 posts:2:like 1", "DEL posts:1", "HSET posts:2 view 9"),
		leaderless, "7", leaderless, `"7"`, `"7"`, "-UNKNOWN some of the keys were written, others were not: LEADERLESS the shard has no leader", leaderless, "["+leaderless+" 8]", leaderless, "0")
	n.failWrites(nil)
	n.mu.readErr = func([]uint64) error {
		return &shard.ReadError{ByShard: []error{nil, errs.ErrNoQuorum, nil, errs.ErrNoQuorum}, Route: raftfsm.NewRoute(4, 4, false)}
	}
	const late = "-LEADERLESS the shard could not confirm the read in time"
	equalReplies(t, c.do("GET posts:1:like", "GET posts:2:like", "MGET posts:1:like posts:2:like", "MGET posts:2:like"), late, `"8"`, late, `["8"]`)
	n.mu.readErr = func([]uint64) error { return errs.ErrNoQuorum }
	equalReplies(t, c.do("GET posts:1:like", "GET posts:2:like"), late, late)
}

// If reads get no answer until their deadline, the writes behind them still have time.
func TestWritesBehindReadsThatWait(t *testing.T) {
	n := newFakeNode()
	n.mu.readErr = func([]uint64) error {
		time.Sleep(time.Until(n.mu.opt.Deadline))
		return errs.ErrNoQuorum
	}
	n.failWrites(func(w *shard.Write) error {
		if time.Until(w.Deadline) <= 0 {
			return errs.ErrTooLate
		}
		return nil
	})
	c := dial(t, serve(t, n, func(c *Config) { c.Timeout = 2 * time.Second }))
	const late = "-LEADERLESS the shard could not confirm the read in time"
	equalReplies(t, c.do("GET posts:1:like", "INCR posts:2:like"), late, "1")
	equalReplies(t, c.do("COUNTD.POLL 1", "INCR posts:2:like"), late, "2")
	equalReplies(t, c.do("GET posts:1:like", "COUNTD.DOT.FIRE shop"), late, "3")
}

// If memory for new rows is lacking, commands that create no row succeed.
func TestMemoryFull(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	c.do("MSET posts:1:like 5 posts:2:like 6")
	n.failWrites(func(w *shard.Write) error {
		for i, op := range apitest.RowOps(w.Ops) {
			for _, cell := range op.Cells {
				if cell.Value != 0 && !n.tables["posts"].Has(op.ID) {
					return &shard.NewRowError{Op: i}
				}
			}
		}
		return nil
	})
	const oom = "-OOM command not allowed: a new row needs memory, and the node is at its memory limit"
	equalReplies(t, c.do("INCR posts:1:like", "INCR posts:9:like", "GET posts:9:like", "MSET posts:2:like 1 posts:8:like 1", "GET posts:2:like", "HSET posts:2 view 3", "SET posts:7:like 0"),
		"6", oom, "null", oom, `"6"`, "1", "+OK")
}

// If memory is lacking, only the command that widens rows is refused. The other commands in the
// batch, which neither create nor widen rows, are applied once each.
func TestMemoryFullBesideWideningCommands(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	c.do("MSET posts:1:like 5 posts:2:like 6 posts:3:like 7")
	writes := 0
	n.failWrites(func(w *shard.Write) error {
		writes++
		for i, op := range apitest.RowOps(w.Ops) {
			for _, cell := range op.Cells {
				if cell.Column == 3 && cell.Value != 0 { // the column view
					return &shard.NewRowError{Op: i, Wider: true}
				}
			}
		}
		return nil
	})
	const oom = "-OOM command not allowed: a new row needs memory, and the node is at its memory limit"
	equalReplies(t, c.do("INCR posts:1:like", "INCR posts:1:view", "INCR posts:2:like", "INCR posts:3:like", "INCR posts:2:view", "INCR posts:1:like"),
		"6", oom, "7", "8", oom, "7")
	equalReplies(t, c.do("MGET posts:1:like posts:2:like posts:3:like posts:1:view posts:2:view"), `["7" "7" "8" null null]`)
	writes = 0
	equalReplies(t, c.do("INCR posts:1:view"), oom)
	if writes > 2 {
		t.Errorf("one command that widens rows is written %d times", writes)
	}
}

// If only one shard lacks memory, the ops that other shards applied are not written again.
func TestMemoryFullOnOneShard(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	c.do("MSET posts:1:like 5 posts:2:like 6 posts:6:like 7")
	n.failWrites(func(w *shard.Write) error {
		makes := false // whether an op creates a row of shard 2, the only shard whose leader lacks memory
		for _, op := range apitest.RowOps(w.Ops) {
			makes = makes || op.ID%4 == 2 && op.Cells[0].Value != 0 && !n.tables["posts"].Has(op.ID)
		}
		if !makes {
			return nil
		}
		err := shardsFailed(w, errs.ErrMemoryFull, 2)
		for i := range apitest.RowOps(w.Ops) {
			if apitest.RowOps(w.Ops)[i].ID%4 != 2 {
				n.tables["posts"].Apply(apitest.RowOps(w.Ops)[i:i+1], w.Width, w.Rows[i*w.Width:(i+1)*w.Width], nil)
				err.Applied = append(err.Applied, apitest.RowOps(w.Ops)[i].ID)
			}
		}
		return err
	})
	const oom = "-OOM command not allowed: a new row needs memory, and the node is at its memory limit"
	equalReplies(t, c.do("INCR posts:1:like", "INCR posts:2:like", "INCR posts:10:like", "INCR posts:9:like", "GET posts:6:like", "MSET posts:5:like 1 posts:14:like 1", "INCR posts:1:like"),
		"6", "7", oom, "1", `"7"`, "-UNKNOWN some of the keys were written, others were not: "+oom[1:], "7")
	equalReplies(t, c.do("MGET posts:1:like posts:2:like posts:10:like posts:9:like posts:5:like"), `["7" "7" null "1" "1"]`)
}

// A node with a full disk still answers reads.
func TestReadsBesideRefusedWrites(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, nil))
	c.do("SET posts:1:like 5")
	n.failWrites(func(*shard.Write) error { return errs.ErrDiskFull })
	equalReplies(t, c.do("INCR posts:1:like", "GET posts:1:like", "HGETALL posts:1"), "-DISKFULL the disk is at its reserve", `"5"`, `["like" "5"]`)
	n.mu.readErr = func([]uint64) error { return errors.New("secret") }
	equalReplies(t, c.do("INCR posts:1:like", "GET posts:1:like"), "-DISKFULL the disk is at its reserve", "-ERR the server failed; its log says why")
}

// Commands that read allocate nothing, and a pipeline of writes allocates a constant number of
// times.
func TestReadPathAllocates(t *testing.T) {
	n := newFakeNode()
	s := serve(t, n, nil)
	from := &textConn{}
	c := newConn(s, from)
	defer c.release()
	c.begin()
	for _, test := range []struct {
		name, line string
		most       float64 // for 100 commands
	}{
		{"GET", "GET posts:1:like", 0},
		{"HMGET", "HMGET posts:1 repost comment like view", 0},
		{"MGET", "MGET posts:1:like posts:2:like posts:3:like users:4:posts", 0},
		{"HGETALL", "HGETALL posts:1", 0},
		{"INCR", "INCR posts:1:like", 3}, // the write's token, in the fake and in the server
		{"PING", "PING", 0},
		{"several", "GET posts:1:like\nHGETALL posts:1\nget posts:2:like", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			var pipeline []byte
			for range 100 {
				for line := range strings.SplitSeq(test.line, "\n") {
					pipeline = append(pipeline, wire(line)...)
				}
			}
			run := func() {
				for from.left = pipeline; len(from.left) > 0 && c.read(); {
					c.execute()
				}
				if err := c.out.Send(); err != nil {
					t.Fatal(err)
				}
			}
			run()
			if got := testing.AllocsPerRun(100, run); got > test.most {
				t.Errorf("%v allocations, at most %v are right", got, test.most)
			}
		})
	}
}
