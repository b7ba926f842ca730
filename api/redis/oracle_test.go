package redis

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/storage"
)

// oracleRounds is the number of pipelines that the test compares in each protocol version.
const oracleRounds = 1500

// TestSameAsRedis uses redis-server as the oracle. 1. Random pipelines of the commands that
// docs/REDIS.md marks as the same get the same replies from a real node, in RESP2 and RESP3. 2. The
// pipelines contain every such command.
//
// 3. The same holds if the ids of posts and users are texts.
//
// In countd, a key whose count is 0 does not exist. So after each command, the test deletes the
// keys and fields that have become 0 from Redis. The order of a hash's fields may differ between
// the servers.
func TestSameAsRedis(t *testing.T) {
	oracle := proctest.StartRedis(t)
	used := map[string]bool{}
	for _, test := range []struct {
		name    string
		version int
		texts   bool
	}{{"RESP2", 2, false}, {"RESP3", 3, false}, {"texts", 2, true}} {
		t.Run(test.name, func(t *testing.T) {
			server, version := serve(t, openNode(t, test.texts), nil), test.version
			seed := rand.Uint64()
			g := generator{rand: rand.New(rand.NewPCG(seed, 1)), version: version, used: used, texts: test.texts}
			theirs, ours := dialOracle(t, oracle), dialOracle(t, server.Addr().String())
			theirs.do(t, [][]string{{"FLUSHALL"}}, true)
			hello := [][]string{{"HELLO", strconv.Itoa(version)}}
			theirs.do(t, hello, true)
			ours.do(t, hello, false)
			for round := range oracleRounds {
				pipeline := g.pipeline()
				want, got := theirs.do(t, pipeline, true), ours.do(t, pipeline, false)
				for i := range pipeline {
					if w, g := normal(want[i]), normal(got[i]); w != g {
						t.Fatalf("seed %d, round %d, command %d of %q:\nRedis  %s\ncountd %s", seed, round, i, pipeline, w, g)
					}
				}
			}
		})
	}
	for name, state := range documented(t) {
		if state == "same" && !used[strings.ToLower(name)] {
			t.Errorf("%s is called the same, and was not compared", name)
		}
	}
}

// The table of docs/REDIS.md names each command of the server and no other.
func TestDocumentedCommands(t *testing.T) {
	told := documented(t)
	for name := range newCommands() {
		if state := told[strings.ToUpper(name)]; state != "same" && state != "differs" && state != "countd's own" {
			t.Errorf("%s is told as %q", name, state)
		}
	}
	for name, state := range told {
		if newCommands().find([]byte(name)) == nil && state != "missing" {
			t.Errorf("%s is told as %q, and there is no such command", name, state)
		}
	}
}

// documented returns the entry of each command in the table of docs/REDIS.md.
func documented(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/REDIS.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	row := regexp.MustCompile("(?m)^\\| ((?:`[A-Z.]+`[ ,]*)+)\\| (same|differs|missing|countd's own) \\|")
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		for _, name := range regexp.MustCompile("[A-Z.]+").FindAllString(m[1], -1) {
			told[name] = m[2]
		}
	}
	return told
}

// openNode opens a node that is a cluster by itself. If texts is set, the ids of posts and users are texts.
func openNode(t testing.TB, texts bool) *shard.Node {
	t.Helper()
	shards := 7 // so that requests span shards
	if texts {
		shards = 1 // because transactions need texts whose numbers are on one shard
	}
	n, err := shard.Open(shard.Config{
		Dir: t.TempDir(), NodeKey: "n1", NodeName: "n1", Bootstrap: true, ClusterID: strings.Repeat("5", 32), Version: "1.2.3", ClusterAddr: "127.0.0.1:0",
		HTTPAddr: "127.0.0.1:7400", GossipAddr: "127.0.0.1:7402", LogStore: storage.LogStoreShared,
		Shards: map[string]int{"posts": shards}, Texts: map[string]bool{"posts": texts, "users": texts},
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(must.Context(t)); err != nil {
			t.Error(err)
		}
	})
	if err := n.WaitReady(must.Context(t)); err != nil {
		t.Fatal(err)
	}
	return n
}

// peer is a connection to countd or to Redis.
type peer struct {
	conn net.Conn
	in   *bufio.Reader
}

func dialOracle(t *testing.T, addr string) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &peer{conn, bufio.NewReader(conn)}
}

// These scripts delete a count, or fields of a hash, that are 0.
const (
	forgetCount = `if redis.call('TYPE', KEYS[1]).ok == 'string' and redis.call('GET', KEYS[1]) == '0' then redis.call('DEL', KEYS[1]) end`
	forgetField = `for _, f in ipairs(redis.call('HKEYS', KEYS[1])) do if redis.call('HGET', KEYS[1], f) == '0' then redis.call('HDEL', KEYS[1], f) end end`
)

// do sends a pipeline and returns its replies. If forgets is set, it adds the scripts after each
// command, and omits their replies from the result, also from the reply to an EXEC.
func (p *peer) do(t *testing.T, pipeline [][]string, forgets bool) []string {
	t.Helper()
	_ = p.conn.SetDeadline(time.Now().Add(must.BecomeMax))
	var out []byte
	var extra []int // number of scripts after each command
	for _, words := range pipeline {
		out = appendWords(out, words)
		n := 0
		if forgets {
			for _, word := range words[1:] {
				if script := map[int]string{1: forgetField, 2: forgetCount}[strings.Count(word, ":")]; script != "" {
					out = appendWords(out, []string{"EVAL", script, "1", word})
					n++
				}
			}
		}
		extra = append(extra, n)
	}
	if _, err := p.conn.Write(out); err != nil {
		t.Fatal(err)
	}
	var replies []string
	keep := []bool{} // for each queued command of the open transaction, whether to keep its reply
	for i := range pipeline {
		replies = append(replies, p.reply(t, keep))
		if replies[i] == "+QUEUED" {
			keep = append(keep, true)
		} else if slices.Contains([]string{"MULTI", "EXEC", "DISCARD"}, strings.ToUpper(pipeline[i][0])) {
			keep = keep[:0]
		}
		for range extra[i] {
			if p.reply(t, nil) == "+QUEUED" {
				keep = append(keep, false)
			}
		}
	}
	return replies
}

// reply reads one reply. From the reply to an EXEC, reply keeps only the elements for which keep is
// true.
func (p *peer) reply(t *testing.T, keep []bool) string {
	t.Helper()
	if head, err := p.in.Peek(1); err == nil && head[0] == '*' && slices.Contains(keep, false) {
		line, _ := p.in.ReadString('\n')
		if n, _ := strconv.Atoi(strings.TrimSpace(line[1:])); n == len(keep) {
			parts := []string{}
			for i := range n {
				part, err := readReply(p.in)
				if err != nil {
					t.Fatal(err)
				}
				if keep[i] {
					parts = append(parts, part)
				}
			}
			return "[" + strings.Join(parts, " ") + "]"
		}
		p.in = bufio.NewReader(io.MultiReader(strings.NewReader(line), p.in))
	}
	reply, err := readReply(p.in)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func appendWords(dst []byte, words []string) []byte {
	dst = resp.AppendArray(dst, len(words))
	for _, word := range words {
		dst = resp.AppendBulk(dst, word)
	}
	return dst
}

var hash = regexp.MustCompile(`[\[{]("(repost|comment|like|view)" "[-0-9]+" ?)+[\]}]`)

// normal returns a reply with the fields of each hash sorted.
func normal(reply string) string {
	return hash.ReplaceAllStringFunc(reply, func(one string) string {
		pairs := slices.Collect(slices.Chunk(strings.Fields(one[1:len(one)-1]), 2))
		slices.SortFunc(pairs, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
		return one[:1] + fmt.Sprint(pairs) + one[len(one)-1:]
	})
}
