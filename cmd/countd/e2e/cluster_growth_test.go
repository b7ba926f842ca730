package e2e

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/proctest"
)

// withoutGrowth is a list of replacements that turn this program into one of the cluster version
// before growth.
var withoutGrowth = []replacement{
	{"raftfsm/catalog/version.go", "const ClusterVersionMax = versionOfGrowth\n", "const ClusterVersionMax = versionOfGrowth - 1\n"},
}

// TestUpgradeThenGrow upgrades three nodes under load from a program without growth. Until the cluster
// version rises, growth is refused. Then a keyspace grows.
func TestUpgradeThenGrow(t *testing.T) {
	long(t)
	t.Parallel()
	u := startUpgrade(t, buildReplaced(t, withoutGrowth), bin, proctest.Options{Shards: oneShard})
	u.at.MustCtl("upgrade", "hold")
	for i, n := range u.c.Nodes() {
		u.restart(n, u.newer, i%2 == 0)
		if refused := n.Ctl("keyspace", "grow", "posts", "--yes"); refused.Code == 0 || !strings.Contains(refused.Stderr, "growth needs 2") {
			t.Errorf("a growth before the version rose: %+v", refused)
		}
	}
	u.raiseVersion()
	u.at.MustCtl("keyspace", "grow", "posts", "--yes")
	if shards := len(u.at.Cluster().Digests("posts")); shards != 3 {
		t.Errorf("posts has %d shards", shards)
	}
	u.Stop()
	u.End(u.c.Nodes()...)
	u.at.MustCtl("verify")
}

// idArgs are the options for ids that are texts, and for numbers. Numbers are texts too, so all loads are the same.
var idArgs = [][]string{{"--ids=posts=text", "--ids=users=text"}, nil}

var oneShard = map[string]int{"posts": 1, "users": 1, "unread": 1, "feed": 1}

// TestClusterGrowth multiplies the shards of keyspaces under load, each by 3 and once more by 3,
// while nodes are killed. Ids are texts or numbers. In the long form it does so 20 times, with all faults of
// TestClusterChaos, moves, drains, and pipelines of Redis clients. There, every other pair of rounds
// begins with a growth without faults, and prints the times of writes before and during it. At the
// end, each count is the sum of the answered writes, and one order explains all other answers. All
// replicas are equal, and no two ever differed at the same index.
func TestClusterGrowth(t *testing.T) {
	long(t)
	beside(t)
	happens := short(faults[:1], faults)
	for round := range short(1, 20) {
		store := []string{"shared", "boltdb"}[round%2]
		t.Run(store, func(t *testing.T) {
			c := proctest.NewCluster(t, bin, proctest.Options{
				Nodes: short(3, 4), LogStore: store, Cuttable: *chaos, Shards: oneShard, Args: idArgs[round/2%2],
			})
			texts := round/2%2 == 0
			if k, err := clientOf(t, c.Nodes()...).Keyspaces(t.Context()); err != nil || (k[2].IDs == "text") != texts || k[2].Name != "posts" {
				t.Fatalf("%+v, %v", k, err)
			}
			load := faultLoad(c)
			var redis *pipelines
			from := map[string]int{}
			if *chaos {
				redis = startPipelines(t, c)
				if round/2%2 == 0 {
					quietGrowth(t, c, load)
					from["posts"] = 3
				}
			}
			grown := make(chan struct{})
			var faulty sync.WaitGroup
			rng := rand.New(rand.NewPCG(chaosSeed, uint64(round)))
			faulty.Go(func() { // ends once the keyspaces have grown
				for {
					select {
					case <-grown:
						return
					case <-time.After(time.Duration(rng.Int64N(int64(calmMax)))):
					}
					nodes := c.Nodes()
					rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
					happens[rng.IntN(len(happens))].does(c, nodes, time.Duration(rng.Int64N(int64(faultMax))))
				}
			})
			var moves *unrest
			if *chaos {
				moves = startUnrest(c, uint64(round))
			}
			for _, keyspace := range []string{"posts", "users", "unread", "feed"} {
				for at := max(1, from[keyspace]); at < short(3, 9); at *= 3 {
					begun := time.Now()
					grow(t, c, keyspace, at)
					t.Logf("%s has %d shards after %v", keyspace, 3*at, time.Since(begun))
				}
			}
			close(grown)
			faulty.Wait()
			if *chaos {
				moves.end()
				t.Log(moves)
			}
			c.AwaitReady(c.Nodes()...)
			if *chaos {
				redis.end(c.Nodes())
				load.Stop()
				c.AwaitVoters(voters) // moves append entries, too
			}
			t.Logf("all replicas alike %v after it", load.End(c.Nodes()...))
			t.Logf("load: %v", load.Between(time.Time{}, time.Now()))
		})
	}
}

// quietGrowth grows posts without faults, and prints how long writes took before, during and after.
func quietGrowth(t *testing.T, c *proctest.Cluster, load *proctest.Load) {
	t.Helper()
	began := time.Now()
	time.Sleep(quietFor)
	grows := time.Now()
	grow(t, c, "posts", 1)
	grown := time.Now()
	time.Sleep(quietFor)
	t.Logf("before the growth: %v", load.Between(began, grows))
	t.Logf("the growth of %v: %v", grown.Sub(grows).Round(time.Millisecond), load.Between(grows, grown))
	t.Logf("after it: %v", load.Between(grown, time.Now()))
}

// grow multiplies the shards of a keyspace by 3, and waits until it has grown.
func grow(t *testing.T, c *proctest.Cluster, keyspace string, from int) {
	t.Helper()
	eventually(t, keyspace+" has grown", func() bool {
		node := c.Nodes()[rand.IntN(len(c.Nodes()))]
		var all struct{ Keyspaces []client.Keyspace }
		if status, err := node.Call(http.MethodGet, "/v1/keyspaces", nil, &all); err != nil || status != http.StatusOK {
			return false
		}
		for _, k := range all.Keyspaces {
			if k.Name == keyspace && k.Growing == nil {
				if k.Shards == 3*from {
					return true
				}
				// A repeat does nothing. The cluster refuses while a node is down.
				_, _ = node.Call(http.MethodPost, "/v1/admin/keyspaces/"+keyspace+"/grow", map[string]int{"by": 3, "from": from}, nil)
			}
		}
		return false
	})
}
