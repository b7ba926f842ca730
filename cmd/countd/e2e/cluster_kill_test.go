package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

// TestClusterLeaderKilled repeatedly kills the node that leads most shards, during writes and
// reads. Each time, for every shard that this node led:
//
//  1. writes succeed again before their clients' deadline;
//  2. reads of the other nodes' replicas never fail;
//
// and at the end
//
//  3. each count is the sum of the answered writes;
//  4. one order explains all answers to writes, linearizable reads and bounded reads;
//  5. replicas never differed at one index.
func TestClusterLeaderKilled(t *testing.T) {
	beside(t)
	kills := short(1, 20)
	for _, store := range stores("boltdb") {
		t.Run(store, func(t *testing.T) {
			c := proctest.NewCluster(t, bin, proctest.Options{LogStore: store})
			load := faultLoad(c)
			var resumed []time.Duration
			for range kills {
				victim, led := c.LeaderOfMost()
				others := c.Others(victim)
				reads := c.StartStaleReads(others...)
				began := time.Now()
				victim.Kill()
				after := c.WritesResume(began, led, others...)
				t.Logf("%s killed, shards %v: writes resume after %v", victim.Name, led, after)
				resumed = append(resumed, after...)
				reads.Check()
				victim.Start()
				c.AwaitReady(victim)
				c.AwaitVoters(3)
			}
			load.End(c.Nodes()...)
			slices.Sort(resumed)
			t.Logf("%d kills, %d shards: writes resume after %v (median), %v (longest)", kills, len(resumed),
				proctest.Quantile(resumed, 0.5), resumed[len(resumed)-1])
			t.Logf("load: %v", load.Between(time.Time{}, time.Now()))
		})
	}
}
