package e2e

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

const (
	opsOfLargeSet = 10_000
	logBytesOfOp  = 40 // lower bound for the log bytes of an op: an id, and four values of 9 bytes
	setPath       = "/v1/counters/posts/set"
)

// setTo returns a request that sets all columns of opsOfLargeSet rows to values. No other test
// writes these rows.
func setTo(value func() int64) map[string]any {
	type op struct {
		ID  string           `json:"id"`
		Set map[string]int64 `json:"set"`
	}
	const firstID = 7_000_000_000_000_000_000
	ops := make([]op, opsOfLargeSet)
	for i := range ops {
		ops[i] = op{strconv.Itoa(firstID + i), map[string]int64{
			"repost": value(), "comment": value(), "like": value(), "view": value(),
		}}
	}
	return map[string]any{"ops": ops, "want": "none"}
}

// largeSet returns a request that takes at least opsOfLargeSet*logBytesOfOp bytes in the logs.
func largeSet() map[string]any {
	return setTo(func() int64 { return 1<<62 | rand.Int64() })
}

// growLog writes so many log bytes to every shard of posts that a stop writes a snapshot. It ends
// by setting the counts of its rows to 0.
func growLog(t *testing.T, n *proctest.Node) {
	t.Helper()
	const logBytesWorth = 20 << 20 // log bytes per shard: so many that the node writes a snapshot when it stops
	shards := len(n.Cluster().Digests("posts"))
	for range shards * logBytesWorth / (opsOfLargeSet * logBytesOfOp) {
		n.MustCall(http.MethodPost, setPath, largeSet(), nil)
	}
	n.MustCall(http.MethodPost, setPath, setTo(func() int64 { return 0 }), nil)
}

// hasSnapshots checks that every shard of posts has a snapshot.
func hasSnapshots(t *testing.T, n *proctest.Node) {
	t.Helper()
	for _, g := range n.Cluster().Groups {
		if g.Keyspace == "posts" && g.SnapshotIndex == 0 {
			t.Errorf("shard %d of posts has no snapshot", g.Shard)
		}
	}
}
