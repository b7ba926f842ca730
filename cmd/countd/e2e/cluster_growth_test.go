package e2e

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/proctest"
)

// growing is a list of replacements that turn this program into one that supports the cluster
// version in which keyspaces may grow.
var growing = []replacement{
	{"raftfsm/catalog/version.go", "const ClusterVersionMax = 1\n", "const ClusterVersionMax = versionOfGrowth\n"},
}

// TestClusterGrowth multiplies the shards of keyspaces under load, each by 3 and once more by 3,
// while nodes are killed. In the long form it does so 20 times, with all faults of
// TestClusterChaos. At the end, each count is the sum of the answered writes, and one order
// explains all other answers. All replicas are equal, and no two ever differed at the same index.
func TestClusterGrowth(t *testing.T) {
	long(t)
	beside(t)
	program := buildReplaced(t, growing)
	happens := short(faults[:1], faults)
	for round := range short(1, 20) {
		store := []string{"shared", "boltdb"}[round%2]
		t.Run(store, func(t *testing.T) {
			c := proctest.NewCluster(t, program, proctest.Options{
				LogStore: store, Cuttable: *chaos, Shards: map[string]int{"posts": 1, "users": 1, "unread": 1, "feed": 1},
			})
			eventually(t, "the cluster has the version of growth", func() bool {
				var v struct{ Version int }
				c.Nodes()[0].MustCall(http.MethodGet, "/v1/admin/version", nil, &v)
				return v.Version == 2
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
