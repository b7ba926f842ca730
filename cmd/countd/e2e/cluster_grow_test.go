package e2e

import (
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

const voters = 3

// In TestClusterGrowsAndReplaces, a fourth and a fifth node join during writes. In the long form, a
// node then dies for good. Then
//
//  1. each new node holds and leads its share of the groups, plus or minus one;
//  2. the dead node is replaced: every shard has three voters again, and the cluster has forgotten
//     the node;
//  3. no request failed while nodes joined;
//  4. each count is the sum of the answered writes, one order explains all other answers, and
//     replicas never differed at one index.
func TestClusterGrowsAndReplaces(t *testing.T) {
	long(t)
	beside(t)
	for _, store := range stores("shared") {
		t.Run(store, func(t *testing.T) {
			// In the short form no node dies, but a node on a busy machine may not respond for
			// seconds. It must not be replaced.
			replaceAfter := short("10m", "5s")
			c := newCluster(t, proctest.Options{LogStore: store, Args: []string{"--replace-after", replaceAfter}})
			load := startLoad(t, c)
			c.Add()
			if *chaos {
				c.AwaitShares()
			}
			c.Add()
			t.Logf("two nodes joined, shares are even after %v", c.AwaitShares())
			grown := time.Now()

			live := c.Nodes()
			if *chaos {
				live = replaced(t, c)
			}
			during := load.inTime(grown)
			load.End(live...)
			t.Logf("while nodes joined: %v", during)
			t.Logf("after that: %v", load.Between(grown, time.Now()))
		})
	}
}

// replaced kills the node that leads most shards, waits until it is replaced and removed
// completely, and returns the other nodes.
func replaced(t *testing.T, c *proctest.Cluster) []*proctest.Member {
	t.Helper()
	dead, _ := c.LeaderOfMost()
	dead.Kill()
	took := c.AwaitVoters(voters, dead)
	c.AwaitShares(dead)
	t.Logf("%s killed, shards have %d voters again after %v", dead.Name, voters, took)
	c.AwaitGone(dead)
	return c.Others(dead)
}
