package e2e

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// growLog writes so much to every shard of posts that a stop finds a snapshot
// worth it, and leaves every count as it was. The rows that it writes are its
// own while it runs.
func growLog(t *testing.T, n *proctest.Node) {
	t.Helper()
	const (
		opsOfRequest  = 10_000
		logBytesOfOp  = 40       // at least: an id and four values of 9 bytes
		logBytesWorth = 20 << 20 // of a shard, with room over what the node's bound is
		firstID       = 7_000_000_000_000_000_000
	)
	shards := len(n.Cluster().Digests("posts"))
	set := func(value func() int64) {
		type op struct {
			ID  string           `json:"id"`
			Set map[string]int64 `json:"set"`
		}
		ops := make([]op, opsOfRequest)
		for i := range ops {
			ops[i] = op{strconv.Itoa(firstID + i), map[string]int64{
				"repost": value(), "comment": value(), "like": value(), "view": value(),
			}}
		}
		n.MustCall(http.MethodPost, "/v1/counters/posts/set", map[string]any{"ops": ops, "want": "none"}, nil)
	}
	for range shards * logBytesWorth / (opsOfRequest * logBytesOfOp) {
		set(func() int64 { return 1<<62 | rand.Int64() })
	}
	set(func() int64 { return 0 })
}

// hasSnapshots holds every shard of posts to having one.
func hasSnapshots(t *testing.T, n *proctest.Node) {
	t.Helper()
	for _, g := range n.Cluster().Groups {
		if g.Keyspace == "posts" && g.SnapshotIndex == 0 {
			t.Errorf("shard %d of posts has no snapshot", g.Shard)
		}
	}
}
