package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// redisTimeout bounds the run time of one client program.
const redisTimeout = must.BecomeMax

// TestRedisClients runs common Redis clients against three nodes:
//
//  1. each command has the same effect as in Redis, through every node;
//  2. all increments that the clients send are counted.
func TestRedisClients(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{LogStore: "shared"})
	t.Run("go-redis", func(t *testing.T) {
		for i, n := range c.Nodes() {
			for _, protocol := range []int{2, 3} {
				useGoRedis(t, n.Redis, protocol, 100+10*i+protocol)
			}
		}
	})
	t.Run("redis-cli", func(t *testing.T) { useRedisCLI(t, c.Nodes()[1].Redis) })
	t.Run("redis-benchmark", func(t *testing.T) { useRedisBenchmark(t, c.Nodes()[2].Redis) })
	t.Run("redis-py", func(t *testing.T) { useRedisPy(t, c.Nodes()[1].Redis) })
	t.Run("Node.js", func(t *testing.T) { useNodeClients(t, c.Nodes()[0].Redis) })
}

// newGoRedis returns a client that sends each command once. A client with retries could count
// twice.
func newGoRedis(t *testing.T, addr string, protocol int) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, Protocol: protocol, MaxRetries: -1, ReadTimeout: must.BecomeMax})
	t.Cleanup(func() { client.Close() })
	return client
}

// equal fails the test unless a client returned want and no error.
func equal(t *testing.T, what string, got any, err error, want any) {
	t.Helper()
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, %v; want %v", what, got, err, want)
	}
}

func useGoRedis(t *testing.T, addr string, protocol, id int) {
	ctx := t.Context()
	client := newGoRedis(t, addr, protocol)
	row := fmt.Sprintf("posts:%d", id)
	if err := client.Get(ctx, row+":like").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("an absent count: %v", err)
	}
	n, err := client.IncrBy(ctx, row+":like", 41).Result()
	equal(t, "IncrBy", n, err, 41)
	added, err := client.HSet(ctx, row, "view", 7, "like", 42).Result()
	equal(t, "HSet", added, err, 1)
	all, err := client.HGetAll(ctx, row).Result()
	equal(t, "HGetAll", all, err, map[string]string{"like": "42", "view": "7"})
	several, err := client.MGet(ctx, row+":like", row+":repost").Result()
	equal(t, "MGet", several, err, []any{"42", nil})
	if err := client.Set(ctx, row+":like", "many", 0).Err(); err == nil || !strings.Contains(err.Error(), "not an integer") {
		t.Errorf("text as a count: %v", err)
	}
	commands, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for range 100 {
			p.HIncrBy(ctx, row, "comment", 1)
		}
		p.Get(ctx, row+":comment")
		return nil
	})
	equal(t, "a pipeline", commands[100].(*redis.StringCmd).Val(), err, 100)
	commands, err = client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Incr(ctx, row+":like")
		p.HGet(ctx, row, "like")
		return nil
	})
	equal(t, "a transaction", commands[1].(*redis.StringCmd).Val(), err, 43)
	likers := fmt.Sprintf("users:%d:followers:members", id)
	joined, err := client.SAdd(ctx, likers, 7, 8, 7, uint64(1<<64-1)).Result()
	equal(t, "SAdd", joined, err, 3)
	in, err := client.SMIsMember(ctx, likers, 7, 9).Result()
	equal(t, "SMIsMember", in, err, []bool{true, false})
	left, err := client.SRem(ctx, likers, 8, 9).Result()
	equal(t, "SRem", left, err, 1)
	card, err := client.SCard(ctx, likers).Result()
	equal(t, "SCard", card, err, 2)
	var members []string
	for each := client.SScan(ctx, likers, 0, "", 1).Iterator(); each.Next(ctx); {
		members = append(members, each.Val())
	}
	equal(t, "SScan", members, nil, []string{"18446744073709551615", "7"})
	var found []string
	for keys := client.Scan(ctx, 0, row, 100).Iterator(); keys.Next(ctx); {
		found = append(found, keys.Val())
	}
	equal(t, "Scan", found, nil, []string{row})
	for range 2 {
		counts, err := client.Do(ctx, "COUNTD.INCR", row+":view", 3, "KEY", row+"-key").Int64Slice()
		equal(t, "COUNTD.INCR", counts, err, []int64{10})
	}
	for range 2 {
		counts, err := client.Do(ctx, "COUNTD.UNREAD.INCR", id, "comment", 2, id, "at", 1, "KEY", row+"-unread").Int64Slice()
		equal(t, "COUNTD.UNREAD.INCR", counts, err, []int64{2, 1})
	}
	poll, err := client.Do(ctx, "COUNTD.POLL", id, "CHANNELS", 1, "none").Result()
	equal(t, "COUNTD.POLL", plain(poll), err, map[int]any{
		2: []any{"unread", []any{"at", 1, "comment", 2, "like", 0, "dm", 0}, "notices", []any{"none", 0}, "dots", []any{}, "feed", 0},
		3: map[string]any{"unread": map[string]any{"at": 1, "comment": 2, "like": 0, "dm": 0}, "notices": map[string]any{"none": 0}, "dots": map[string]any{}, "feed": 0},
	}[protocol])
	deleted, err := client.Del(ctx, row, row+":like").Result()
	equal(t, "Del", deleted, err, 1)
	info, err := client.Info(ctx, "server").Result()
	equal(t, "Info", strings.Contains(info, "redis_version:7"), err, true)
}

// runProgram runs a program and returns its output. It skips the test if the program is not
// installed.
func runProgram(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	out, err := tryProgram(t, stdin, name, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}

// tryProgram is like runProgram, but returns the error if the program fails.
func tryProgram(t *testing.T, stdin, name string, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed; .ci/run installs it", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), redisTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func hostPort(t *testing.T, addr string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

func useRedisCLI(t *testing.T, addr string) {
	host, port := hostPort(t, addr)
	for _, version := range []string{"-2", "-3"} {
		var out string
		for tries := 3; tries > 0; tries-- {
			out = runProgram(t, "DEL posts:2\nINCR posts:2:like\nHSET posts:2 view 5\nHGETALL posts:2\nGET posts:2:repost\nMULTI\nINCR posts:2:like\nEXEC\nGET posts:2\n",
				"redis-cli", version, "-h", host, "-p", port)
			if !strings.Contains(out, "UNKNOWN") { // on a busy machine, the leader may have changed
				break
			}
		}
		lines := strings.Fields(out)
		want := strings.Fields("1 1 1 like 1 view 5 OK QUEUED 2 WRONGTYPE Operation against a key holding the wrong kind of value")
		lines[0] = "1" // the reply to DEL depends on earlier rounds
		if got := strings.Join(lines, " "); got != strings.Join(want, " ") {
			t.Errorf("redis-cli %s says %s", version, got)
		}
	}
	runProgram(t, "INCR posts:3:like\n", "redis-cli", "-h", host, "-p", port)
	if out := runProgram(t, "", "redis-cli", "-h", host, "-p", port, "--scan", "--pattern", "posts:3*"); out != "posts:3\n" {
		t.Errorf("redis-cli --scan says %q", out)
	}
	if out, err := exec.CommandContext(t.Context(), "redis-cli", "-h", host, "-p", port, "--scan", "--pattern", "post:*").CombinedOutput(); err == nil || !strings.Contains(string(out), "no counter keyspace 'post'") {
		t.Errorf("redis-cli --scan of what cannot be says %q, %v", out, err)
	}
	if out := runProgram(t, "", "redis-cli", "-h", host, "-p", port, "INFO"); !strings.Contains(out, "countd_version") {
		t.Errorf("redis-cli INFO says %q", out)
	}
	raw := "*3\r\n$6\r\nINCRBY\r\n$12\r\nposts:3:view\r\n$2\r\n10\r\n"
	if out := runProgram(t, strings.Repeat(raw, 1000), "redis-cli", "-h", host, "-p", port, "--pipe"); !strings.Contains(out, "errors: 0, replies: 1000") {
		t.Errorf("redis-cli --pipe says %q", out)
	}
}

// useRedisBenchmark runs redis-benchmark with 50 connections and checks the sum of the counts.
// redis-benchmark exits at the first error. So if the leader changes on a busy machine, the test
// runs it again with other rows.
func useRedisBenchmark(t *testing.T, addr string) {
	const rows, commands = 100, 20_000
	host, port := hostPort(t, addr)
	users := 1 // first digit of the ids; 0 would not change the ids
	for _, depth := range []int{1, 16} {
		args := []string{"-h", host, "-p", port, "-c", "50", "-P", strconv.Itoa(depth), "-n", strconv.Itoa(commands), "-r", strconv.Itoa(rows), "incr"}
		for ; ; users++ {
			out, err := tryProgram(t, "", "redis-benchmark", append(args, fmt.Sprintf("users:%d__rand_int__:posts", users))...)
			if err == nil {
				break
			}
			if users == 5 || !strings.Contains(out, "UNKNOWN") {
				t.Fatalf("redis-benchmark: %v\n%s", err, out)
			}
		}
		holdsSum(t, addr, users, rows, commands)
		users++
	}
}

// holdsSum checks that the posts of all users that redis-benchmark incremented add up to commands,
// the number of commands that it sent. rows is the number of these users. Each id is prefix,
// then 12 digits.
func holdsSum(t *testing.T, addr string, prefix, rows, commands int) {
	t.Helper()
	var keys []string
	for id := range rows {
		keys = append(keys, fmt.Sprintf("users:%d%012d:posts", prefix, id))
	}
	counts, err := newGoRedis(t, addr, 3).MGet(t.Context(), keys...).Result()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, count := range counts {
		n, err := strconv.Atoi(fmt.Sprint(count))
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	// redis-benchmark may send more than commands, because each connection completes its last
	// pipeline.
	if sum < commands || sum > commands+50*16 {
		t.Errorf("redis-benchmark counted %d, asked for %d", sum, commands)
	}
}

// useNodeClients runs testdata/nodeclients. npm must have installed the clients before.
func useNodeClients(t *testing.T, addr string) {
	const dir = "testdata/nodeclients"
	if _, err := os.Stat(filepath.Join(dir, "node_modules")); err != nil {
		t.Skipf("the clients are not installed; .ci/run does it, with npm ci --prefix cmd/countd/e2e/%s", dir)
	}
	host, port := hostPort(t, addr)
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("node is not installed; .ci/run installs it")
	}
	if out := runProgram(t, "", "node", filepath.Join(dir, "clients.js"), host, port, "77"); !strings.HasSuffix(out, "ok\n") {
		t.Errorf("node says %s", out)
	}
}

// useRedisPy runs the redis-py example of docs/REDIS.md, and then checks what docs/REDIS.md states
// about transactions.
func useRedisPy(t *testing.T, addr string) {
	doc, err := os.ReadFile("../../../docs/REDIS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(doc), "\nPython, redis-py:\n\n")
	if !found {
		t.Fatal("docs/REDIS.md has no example for redis-py")
	}
	host, port := hostPort(t, addr)
	example := ""
	for line := range strings.Lines(after) {
		code, indented := strings.CutPrefix(line, "    ")
		if !indented && line != "\n" {
			break
		}
		example += strings.NewReplacer("127.0.0.1", host, "7403", port).Replace(code)
	}
	example += `
try:
    with client.pipeline() as p:
        p.incr("posts:51:like").incr("posts:52:like").execute()
except redis.ResponseError as e:
    print(e)
with client.pipeline() as p:
    print(p.incr("posts:51:like").hget("posts:51", "like").execute())
try:
    list(client.scan_iter("post:*"))
except redis.ResponseError as e:
    print(e)
print([key.decode() for key in client.scan_iter("posts:51*", count=1000)])
`
	out := runProgram(t, example, pythonWithRedis(t), "-")
	for _, want := range []string{"1 [[b'1', None], [None, None], [None, None]]", "CROSSSLOT", "[1, b'1']", "no counter keyspace 'post'", "['posts:51']"} {
		if !strings.Contains(out, want) {
			t.Errorf("redis-py says %s, want %s in it", out, want)
		}
	}
}

// pythonWithRedis returns a Python that has redis-py.
func pythonWithRedis(t *testing.T) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} { // python3 may be another Python than Debian's, which lacks Debian's packages
		if exec.CommandContext(t.Context(), python, "-c", "import redis").Run() == nil {
			return python
		}
	}
	t.Skip("redis-py is not installed; .ci/run installs python3-redis")
	return ""
}

// A producer repeats each session through all nodes until one of them answers. Each write counts
// once, even while nodes are killed.
func TestRedisSessionsUnderKills(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{LogStore: "shared"})
	const sessions, writes, rows = 40, 120, 10
	nodes := c.Nodes()
	clients := make([]*redis.Client, len(nodes))
	for i, n := range nodes {
		clients[i] = newGoRedis(t, n.Redis, 3)
	}
	follows := func() bool { return clients[0].Do(t.Context(), "COUNTD.FEED.FOLLOW", 7, 8).Err() == nil }
	// Follow before the first session. Otherwise one try of that session could count the post, and
	// only a later try could follow.
	eventually(t, "a user follows another", follows)
	at := 0
	for seq := range sessions {
		switch victim := nodes[seq/10%len(nodes)]; seq % 10 {
		case 3:
			victim.Kill()
		case 8:
			victim.Start()
		}
		for end := time.Now().Add(redisTimeout); !sendSession(t, clients[at%len(clients)], seq, writes, rows); {
			if at++; time.Now().After(end) {
				t.Fatalf("session %d was not answered in %v", seq, redisTimeout)
			}
		}
	}
	c.AwaitReady(nodes...)
	for id := range rows {
		count, err := clients[0].Do(t.Context(), "COUNTD.INCR", fmt.Sprintf("posts:%d:like", id), 0).Int64Slice()
		equal(t, fmt.Sprintf("row %d", id), count, err, []int64{sessions * writes / rows})
	}
	count, err := clients[0].Do(t.Context(), "COUNTD.UNREAD.INCR", 7, "at", 0).Int64Slice()
	equal(t, "a user's count", count, err, []int64{sessions})
	seq, err := clients[0].Do(t.Context(), "COUNTD.NOTICE.PUBLISH", "news").Int()
	equal(t, "the notice after them", seq, err, sessions+1)
	// This increment by 0 is linearizable. A read would see the writes through other nodes only
	// after a moment.
	count, err = clients[0].Do(t.Context(), "COUNTD.INCR", "users:8:posts", 0).Int64Slice()
	equal(t, "the posts", count, err, []int64{sessions})
	eventually(t, "the user still follows the other", follows)
	unread, err := clients[0].Do(t.Context(), "COUNTD.FEED.UNREAD", 7).Int()
	equal(t, "the feed", unread, err, sessions)
}

// sendSession reports whether each write of a session was answered.
func sendSession(t *testing.T, client *redis.Client, seq, writes, rows int) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	commands, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Do(ctx, "COUNTD.SESSION", "producer", seq)
		for i := range writes {
			p.Incr(ctx, fmt.Sprintf("posts:%d:like", i%rows))
		}
		p.Do(ctx, "COUNTD.FEED.FOLLOW", 7, 8)
		p.Do(ctx, "COUNTD.UNREAD.INCR", 7, "at", 1)
		p.Do(ctx, "COUNTD.NOTICE.PUBLISH", "news")
		p.Do(ctx, "INCR", "users:8:posts")
		p.Do(ctx, "COUNTD.SESSION", "END")
		return nil
	})
	for _, cmd := range commands {
		var told redis.Error
		if errors.As(cmd.Err(), &told) && !bytes.HasPrefix([]byte(told.Error()), []byte("LEADERLESS")) && !strings.HasPrefix(told.Error(), "UNKNOWN") &&
			!strings.HasPrefix(told.Error(), "OVERLOADED") && !strings.HasPrefix(told.Error(), "DRAINING") {
			t.Fatalf("session %d: %v", seq, told)
		}
	}
	return err == nil
}
