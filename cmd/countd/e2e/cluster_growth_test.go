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

var oneShard = map[string]int{"posts": 1, "users": 1, "unread": 1, "feed": 1}

// TestClusterGrowth multiplies the shards of keyspaces under load, each by 3 and once more by 3,
// while nodes are killed. In the long form it does so 20 times, with all faults of
// TestClusterChaos. At the end, each count is the sum of the answered writes, and one order
// explains all other answers. All replicas are equal, and no two ever differed at the same index.
func TestClusterGrowth(t *testing.T) {
	long(t)
	beside(t)
	happens := short(faults[:1], faults)
	for round := range short(1, 20) {
		store := []string{"shared", "boltdb"}[round%2]
		t.Run(store, func(t *testing.T) {
			c := proctest.NewCluster(t, bin, proctest.Options{
				LogStore: store, Cuttable: *chaos, Shards: oneShard,
			})
			load := faultLoad(c)
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
			for _, keyspace := range []string{"posts", "users", "unread", "feed"} {
				for _, from := range short([]int{1}, []int{1, 3}) {
					begun := time.Now()
					grow(t, c, keyspace, from)
					t.Logf("%s has %d shards after %v", keyspace, 3*from, time.Since(begun))
				}
			}
			close(grown)
			faulty.Wait()
			c.AwaitReady(c.Nodes()...)
			t.Logf("all replicas alike %v after it", load.End(c.Nodes()...))
			t.Logf("load: %v", load.Between(time.Time{}, time.Now()))
		})
	}
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
