package e2e

import (
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

const (
	coldRows    = 100_000 // in 7 shards, so that most rows are not in a shard's last segment
	coldIDs     = 3_000   // number of ids that the writers use
	coldWaitMax = must.BecomeMax
)

// TestKillWhileRowsGoCold kills a node at random points while old rows leave memory, are
// written to, and are written to disk again. It checks what TestKillUnderWriters checks,
// for cold rows.
func TestKillWhileRowsGoCold(t *testing.T) {
	long(t)
	beside(t)
	rounds := max(3, *killRounds/2)
	seed := uint64(time.Now().UnixNano())
	t.Logf("%d rounds, seed %d", rounds, seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	n := proctest.NewNode(t, bin, t.TempDir(), "--cold-after=1s")
	n.StartReady()
	l := newLedger()
	l.ids = l.ids[:0]
	for from := 0; from < coldRows; from += 10_000 {
		ops := make([]op, 10_000)
		for i := range ops {
			id := strconv.FormatUint(3342819171543700+uint64(from+i)<<20, 10)
			ops[i] = op{id, map[string]int64{"comment": 1}}
			if i%(coldRows/coldIDs) == 0 {
				l.ids = append(l.ids, id)
				l.mu.least[cell{id, "comment"}] = 1
			}
		}
		n.MustCall(http.MethodPost, "/v1/counters/posts/incr", map[string]any{"ops": ops, "want": "none"}, nil)
	}
	waitCold(t, n)
	for round := range rounds {
		w := startWriters(n, l)
		time.Sleep(time.Duration(rng.Int64N(int64(500 * time.Millisecond))))
		if round%3 == 2 {
			n.Stop()
		} else {
			n.Kill()
		}
		w.wait(t)
		n.StartReady()
		l.check(t, n)
		time.Sleep(time.Duration(rng.Int64N(int64(2500 * time.Millisecond)))) // let the rows that were written become cold again
		n.Kill()
		n.StartReady()
		l.check(t, n)
		if rows := n.Cluster().Rows("posts"); rows != coldRows {
			t.Errorf("%d rows, want %d", rows, coldRows)
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
		waitCold(t, n)
	}
}

// TestClusterColdRows kills the nodes of a cluster in turn during writes. Two nodes move old rows
// to disk, and one does not. The times in ids are spread over the last ten years. The test checks:
//
//  1. each count is the sum of the answered writes, even for cold rows;
//  2. replicas never differed at one index, whichever rows are cold.
func TestClusterColdRows(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{ArgsOf: map[string][]string{
		"n1": {"--cold-after=1s"}, "n2": {"--cold-after=2s", "--cold-cache=1MiB"}, "n3": {"--cold-after=0"},
	}})
	nodes := c.Nodes()
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for range coldRows / 5_000 {
		ops := make([]op, 10_000)
		for i := range ops {
			ops[i] = op{strconv.FormatUint(3_340_000_000_000_000+rng.Uint64N(1_300_000_000_000_000), 10), map[string]int64{"comment": 1 + rng.Int64N(1000)}}
		}
		writeRows(t, nodes[2], ops)
	}
	waitCold(t, nodes[0].Node)
	waitCold(t, nodes[1].Node)
	load := faultLoad(c)
	for range short(1, 5) {
		for _, victim := range nodes {
			victim.Kill()
			victim.Start()
			c.AwaitReady(victim)
			c.AwaitVoters(3)
		}
	}
	load.End(nodes...)
}

// writeRows writes rows once. It repeats the request, under its key, if a leader changed meanwhile.
func writeRows(t *testing.T, n *proctest.Member, ops []op) {
	t.Helper()
	key := http.Header{"Idempotency-Key": {crand.Text()}}
	eventually(t, "the rows are written", func() bool {
		status, err := n.Send(t.Context(), http.MethodPost, "/v1/counters/posts/incr", key, map[string]any{"ops": ops, "want": "none"}, nil)
		return err == nil && status == http.StatusOK
	})
}

// waitCold waits until most rows are on disk.
func waitCold(t *testing.T, n *proctest.Node) {
	t.Helper()
	deadline := time.Now().Add(coldWaitMax)
	for {
		var status struct {
			Groups []struct {
				ColdRows uint64 `json:"cold_rows"`
			}
		}
		n.MustCall(http.MethodGet, "/v1/cluster", nil, &status)
		cold := uint64(0)
		for _, g := range status.Groups {
			cold += g.ColdRows
		}
		if cold > coldRows/2 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(fmt.Sprint(cold, " rows are cold"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}
