package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/proctest"
)

const (
	// cutDeadline is how long the clients of a node that is cut off wait.
	cutDeadline = time.Second
	// cutAnswerMax bounds the fastest answer to each request, because the machine may be busy
	// during others. A node that ignores the client's deadline always exceeds it: such a node waits
	// for the API's default, proctest.RequestDeadline.
	cutAnswerMax = proctest.RequestDeadline - time.Second
)

// TestClusterCut cuts the node that leads most shards off from the two others, during writes, and
// then heals the cut. Once the others have a leader
//
//  1. the others accept writes for every shard that the cut-off node led, before their clients'
//     deadline;
//  2. once the cut-off node knows no leader, it refuses writes and linearizable reads with 503
//     within the deadline, and never applies these writes;
//  3. the cut-off node answers stale reads;
//
// and when the cut is healed and the load is over
//
//  4. all replicas soon become equal, and never differed at one index;
//  5. each count is the sum of the answered writes, and one order explains all other answers.
func TestClusterCut(t *testing.T) {
	long(t)
	beside(t)
	spans := short([]time.Duration{4 * time.Second}, []time.Duration{4 * time.Second, 15 * time.Second, 45 * time.Second})
	for _, store := range stores("boltdb") {
		t.Run(store, func(t *testing.T) {
			c := proctest.NewCluster(t, bin, proctest.Options{LogStore: store, Cuttable: true})
			load := faultLoad(c)
			for i, span := range spans {
				victim, led := c.LeaderOfMost()
				reads := c.StartStaleReads(c.Nodes()...)
				began := time.Now()
				c.Cut([]*proctest.Member{victim})
				resumed := c.WritesResume(began, led, c.Others(victim)...)
				t.Logf("%s cut off for %v, shards %v: writes resume after %v", victim.Name, span, led, resumed)
				// Wait, because requests that the node forwarded before the cut may have an unknown
				// outcome.
				eventually(t, "the node hears of no leader", func() bool {
					return !slices.ContainsFunc(victim.Cluster().Groups, func(g admin.Group) bool { return g.Leader != "" })
				})
				fastest := map[string]time.Duration{}
				for round, alone := 0, time.Now(); time.Since(alone) < span; round++ {
					refusesAlone(t, victim, round%c.Shards("posts"), fastest)
				}
				for method, took := range fastest {
					if took > cutAnswerMax {
						t.Errorf("%s at %s alone: answered after %v or more, the deadline was %v", method, victim.Name, took, cutDeadline)
					}
				}
				reads.Check()
				if i == len(spans)-1 {
					load.Stop()
				}
				c.Heal()
				healed := time.Now()
				c.AwaitReady(victim)
				t.Logf("%s ready %v after the cut was healed", victim.Name, time.Since(healed))
			}
			t.Logf("all replicas alike %v after that", load.End(c.Nodes()...))
			for shard := range c.Shards("posts") {
				row := c.Nodes()[0].Rows("posts", []string{refusedID(shard)})[0]
				if got := row.Counts["comment"]; got != 0 {
					t.Errorf("shard %d: %d increments were applied that a node alone had refused", shard, got)
				}
			}
			t.Logf("load: %v", load.Between(time.Time{}, time.Now()))
		})
	}
}

// refusedID returns an id that only refusesAlone writes. The ids for different shard numbers belong
// to different shards.
func refusedID(shard int) string { return fmt.Sprint(4000 + shard) }

// refusesAlone checks that a node that is cut off refuses a write and a linearizable read. The
// write has no idempotency key, so that the answer is the outcome of this request. fastest has the
// time of the fastest answer to each method.
func refusesAlone(t *testing.T, n *proctest.Member, shard int, fastest map[string]time.Duration) {
	t.Helper()
	id := refusedID(shard)
	write := map[string]any{"ops": []op{{id, map[string]int64{"comment": 1}}}}
	refuses(t, n, fastest, http.MethodPost, incrPath, write)
	refuses(t, n, fastest, http.MethodGet, "/v1/counters/posts/"+id+"?consistency=linearizable", nil)
}

// refuses checks that a node answers a request with 503, and notes the time in fastest.
func refuses(t *testing.T, n *proctest.Member, fastest map[string]time.Duration, method, path string, body any) {
	t.Helper()
	var a answer
	began := time.Now()
	status, err := n.Send(t.Context(), method, path, http.Header{"Countd-Timeout": {cutDeadline.String()}}, body, &a)
	took := time.Since(began)
	if err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("%s %s at %s alone: status %d, %+v, %v; want 503", method, path, n.Name, status, a, err)
	}
	if least, is := fastest[method]; !is || took < least {
		fastest[method] = took
	}
}
