package e2e

import (
	"testing"
	"time"

	"github.com/countd/countd/internal/clustertest"
)

const (
	// placeTimeout bounds what the cluster does by itself, a step a second.
	placeTimeout = 90 * time.Second
	shardsOfAll  = 28 // of posts, users, unread and feed
	voters       = 3
)

// fewShards has all keyspaces but one begin with one shard in the short form, because the
// placement moves one replica a second. It returns the nodes' arguments and the number of shards
// of all keyspaces, 10 or, in the long form, 28.
func fewShards(but string) (args []string, shards int) {
	if *chaos {
		return nil, shardsOfAll
	}
	for _, keyspace := range []string{"posts", "users", "unread", "feed"} {
		if keyspace != but {
			args = append(args, "--shards="+keyspace+"=1")
		}
	}
	return args, len(args) + postsShards
}

// TestClusterGrowsAndReplaces has a fourth and a fifth node join under writers and
// then, in its long form, one die for good. Then
//
//  1. the new nodes hold and lead their share, give or take one;
//  2. the dead one is replaced: every shard has three voters again, and the cluster
//     has forgotten it;
//  3. no request failed while nodes joined;
//  4. each count is what the answered writes add up to, one order explains all
//     other answers, and replicas never differed at one index.
func TestClusterGrowsAndReplaces(t *testing.T) {
	beside(t)
	for _, store := range stores("shared") {
		t.Run(store, func(t *testing.T) {
			args, shards := fewShards("posts")
			c := clustertest.New(t, bin, clustertest.Options{LogStore: store, Args: append(args, "--replace-after", "5s")})
			load, history, digests := c.StartLoad(clustertest.LoadConfig{}), c.StartHistory(0), c.WatchDigests()
			began := time.Now()
			c.Add()
			if *chaos {
				c.AwaitShares(placeTimeout, shards)
			}
			c.Add()
			t.Logf("two nodes joined, shares are even after %v", c.AwaitShares(placeTimeout, shards))
			grown := time.Now()

			live := c.Nodes()
			if *chaos {
				live = replaced(t, c)
			}
			load.Stop()
			history.Stop()
			c.AwaitAgreement(agreeTimeout(), live...)
			load.Check(live...)
			history.Check()
			digests.Check()
			during := load.Between(began, grown)
			if during.Late > 0 {
				t.Errorf("%d requests took longer than %v while nodes joined", during.Late, clustertest.RequestDeadline)
			}
			t.Logf("while nodes joined: %v", during)
			t.Logf("after that: %v", load.Between(grown, time.Now()))
		})
	}
}

// replaced kills the node that leads most shards, waits until it is replaced and
// nothing of it is left, and returns the others.
func replaced(t *testing.T, c *clustertest.Cluster) []*clustertest.Node {
	t.Helper()
	dead, _ := c.LeaderOfMost("posts", postsShards)
	dead.Kill()
	took := c.AwaitVoters(voters, dead)
	c.AwaitShares(placeTimeout, shardsOfAll, dead)
	t.Logf("%s killed, shards have %d voters again after %v", dead.Name, voters, took)
	c.AwaitGone(placeTimeout, dead)
	return c.Others(dead)
}
