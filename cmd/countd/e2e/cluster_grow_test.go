package e2e

import (
	"testing"
	"time"

	"github.com/countd/countd/internal/clustertest"
)

const (
	// placeTimeout bounds what the cluster does by itself, a step a second.
	placeTimeout = 90 * time.Second
	shardsOfAll  = 8 // of posts and users
	voters       = 3
)

// TestClusterGrowsAndReplaces has a fourth and a fifth node join under writers and
// then one of the first die for good. Then
//
//  1. the new nodes hold and lead their share, give or take one;
//  2. the dead one is replaced, and every shard has three voters again;
//  3. no request failed before the death, nor was any lost after it;
//  4. each count is what the answered writes add up to, one order explains all
//     other answers, and replicas never differed at one index.
func TestClusterGrowsAndReplaces(t *testing.T) {
	for _, store := range stores("wal") {
		t.Run(store, func(t *testing.T) {
			c := clustertest.New(t, bin, clustertest.Options{LogStore: store, Args: []string{"--replace-after", "5s"}})
			load, history, digests := c.StartLoad(clustertest.LoadConfig{}), c.StartHistory(0), c.WatchDigests()
			began := time.Now()
			c.Add()
			if *chaos {
				c.AwaitShares(placeTimeout, shardsOfAll)
			}
			c.Add()
			t.Logf("two nodes joined, shares are even after %v", c.AwaitShares(placeTimeout, shardsOfAll))
			grown := time.Now()

			dead, _ := c.LeaderOfMost("posts", postsShards)
			dead.Kill()
			took := c.AwaitVoters(voters, dead)
			t.Logf("%s killed and replaced after %v", dead.Name, took)
			c.AwaitShares(placeTimeout, shardsOfAll, dead)
			load.Stop()
			history.Stop()
			live := c.Others(dead)
			c.AwaitAgreement(agreeTimeout, live...)
			load.Check(live...)
			history.Check()
			digests.Check()
			during := load.Between(began, grown)
			if during.Late > 0 {
				t.Errorf("%d requests took longer than %v while nodes joined", during.Late, clustertest.RequestDeadline)
			}
			t.Logf("while nodes joined: %v", during)
			t.Logf("after the death:    %v", load.Between(grown, time.Now()))
			for _, n := range live[0].Cluster().Nodes {
				if n.ID == dead.Name {
					t.Errorf("%s is %s, though nothing of it is left", n.ID, n.State)
				}
			}
		})
	}
}
