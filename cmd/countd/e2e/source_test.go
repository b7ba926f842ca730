package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// sourceShown has the fields of a source that tests read.
type sourceShown struct {
	State      string `json:"state"`
	Reason     string `json:"reason"`
	Node       string `json:"node"`
	Applied    uint64 `json:"applied"`
	Rejected   uint64 `json:"rejected"`
	Lag        *int   `json:"lag"`
	Partitions []struct {
		Position string `json:"position"`
	} `json:"partitions"`
}

// TestSource counts a stream of Redis with three nodes, while the node that reads it and the
// node that leads most shards are killed:
//
//  1. each message is counted once, despite the kills, a pause and a seek to the current position;
//  2. another node continues to read when the reader is dead;
//  3. an invalid message becomes a dead letter, at least once;
//  4. replicas agree.
func TestSource(t *testing.T) {
	long(t)
	beside(t)
	stream := redis.NewClient(&redis.Options{Addr: proctest.StartRedis(t)})
	defer stream.Close()
	c := newCluster(t, proctest.Options{})
	nodes := c.Nodes()
	const rows = 40
	want, message := [rows]int64{}, 0
	write := func(n int) {
		t.Helper()
		for n > 0 {
			pipe := stream.Pipeline()
			for range min(n, 500) {
				row, add := message%rows, int64(message%7)-2
				want[row] += add
				message++
				pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", Values: []string{"value", fmt.Sprintf(`{"keyspace":"posts","id":%d,"add":{"like":%d}}`, row, add)}})
			}
			if _, err := pipe.Exec(t.Context()); err != nil {
				t.Fatal(err)
			}
			n -= 500
		}
	}
	file := filepath.Join(t.TempDir(), "likes.yaml")
	config := fmt.Sprintf("name: likes\ntype: redis-stream\naddr: %s\nkey: likes\nbatch: {messages: 200}\n", stream.Options().Addr)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	write(2000)
	nodes[0].MustCtl("source", "create", file)
	nodes[1].MustCtl("source", "show", "likes", "--wait")

	for round := range short(2, 10) {
		var shown sourceShown
		awaitSource(t, nodes[round%3], "a node reads it", &shown, func() bool { return shown.Node != "" })
		victim, _ := c.LeaderOfMost()
		if round%2 == 0 {
			for _, n := range nodes {
				if n.Name == shown.Node {
					victim = n
				}
			}
		}
		alive := c.Others(victim)[0]
		write(3000)
		victim.Kill()
		write(1000)
		awaitSource(t, alive, "another node reads it to the end", &shown, func() bool {
			return shown.Node != "" && shown.Node != victim.Name && shown.Lag != nil && *shown.Lag == 0 && shown.Reason == ""
		})
		victim.Start()
		c.AwaitReady(victim)
	}
	if err := stream.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", Values: []string{"value", "poison"}}).Err(); err != nil {
		t.Fatal(err)
	}
	write(10)
	nodes[2].MustCtl("source", "show", "likes", "--wait")
	if letters, err := stream.XLen(t.Context(), "likes.dead").Result(); err != nil || letters == 0 {
		t.Errorf("%d dead letters, %v", letters, err)
	}

	// Repeat the pause until all shards are at one position. A shard that has just lost its leader
	// may be at an earlier position. Then the source's reason is not empty.
	var paused sourceShown
	awaitSource(t, nodes[1], "it is paused with all shards at one position", &paused, func() bool {
		if paused.State == "paused" && paused.Reason == "" {
			return true
		}
		nodes[2].MustCtl("source", "resume", "likes")
		nodes[0].MustCtl("source", "show", "likes", "--wait")
		nodes[0].MustCtl("source", "pause", "likes")
		return false
	})
	if paused.State != "paused" || len(paused.Partitions) != 1 {
		t.Fatalf("after a pause: %+v", paused)
	}
	write(300)
	nodes[1].MustCtl("source", "seek", "likes", "0="+paused.Partitions[0].Position)
	nodes[2].MustCtl("source", "resume", "likes")
	nodes[0].MustCtl("source", "show", "likes", "--wait")
	for _, n := range nodes {
		ids := make([]string, rows)
		for i := range ids {
			ids[i] = strconv.Itoa(i)
		}
		for i, row := range n.Rows("posts", ids) {
			if got := row.Counts["like"]; got != want[i] {
				t.Errorf("%s: row %d is %d, want %d", n.Name, i, got, want[i])
			}
		}
	}
	c.AwaitAgreement(nodes...)
	nodes[0].MustCtl("source", "delete", "likes")
	if code, err := nodes[1].Call(http.MethodGet, "/v1/sources/likes", nil, nil); code != http.StatusNotFound {
		t.Errorf("a deleted source is answered %d, %v", code, err)
	}
}

// awaitSource reads the source into shown until holds returns true.
func awaitSource(t *testing.T, n *proctest.Member, what string, shown *sourceShown, holds func() bool) {
	t.Helper()
	ctx := must.Context(t)
	for {
		*shown = sourceShown{}
		code, err := n.Call(http.MethodGet, "/v1/sources/likes", nil, shown)
		if code == http.StatusOK && err == nil && holds() {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("it never came to be that %s: %d, %+v, %v", what, code, *shown, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
