package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

const (
	chaosFor  = 3 * time.Minute
	faultMax  = 6 * time.Second // longest time for which a fault lasts
	calmMax   = 3 * time.Second // longest time between two faults
	chaosSeed = 4
)

// TestClusterChaos causes one fault after the other in a cluster under load, often before the
// cluster has recovered from the previous one. At the end, each count is the sum of the answered
// writes, and one order explains all other answers. All replicas are equal, and no two ever
// differed at the same index.
func TestClusterChaos(t *testing.T) {
	if !*chaos {
		t.Skip("in the long form only, -chaos")
	}
	for _, store := range stores("") {
		t.Run(store, func(t *testing.T) {
			c := newCluster(t, proctest.Options{LogStore: store, Cuttable: true})
			load := faultLoad(c)
			rng := rand.New(rand.NewPCG(chaosSeed, uint64(len(store))))
			happened := map[string]int{}
			for end := time.Now().Add(chaosFor); time.Now().Before(end); {
				fault := faults[rng.IntN(len(faults))]
				happened[fault.name]++
				nodes := c.Nodes()
				rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
				fault.does(c, nodes, time.Duration(rng.Int64N(int64(faultMax))))
				time.Sleep(time.Duration(rng.Int64N(int64(calmMax))))
			}
			c.AwaitReady(c.Nodes()...)
			t.Logf("%v: all replicas alike %v after it", happened, load.End(c.Nodes()...))
			t.Logf("load: %v", load.Between(time.Time{}, time.Now()))
		})
	}
}

// faults are the faults of nodes, in random order. Each function causes its fault for some time.
// When it returns, all nodes run and are connected.
var faults = []struct {
	name string
	does func(c *proctest.Cluster, nodes []*proctest.Member, span time.Duration)
}{
	{"kill one", func(_ *proctest.Cluster, nodes []*proctest.Member, span time.Duration) {
		nodes[0].Kill()
		time.Sleep(span)
		nodes[0].Start()
	}},
	{"kill two", func(_ *proctest.Cluster, nodes []*proctest.Member, span time.Duration) {
		nodes[0].Kill()
		nodes[1].Kill()
		time.Sleep(span / 2)
		nodes[1].Start()
		nodes[0].Start()
	}},
	{"restart", func(_ *proctest.Cluster, nodes []*proctest.Member, _ time.Duration) {
		nodes[0].Stop()
		nodes[0].Start()
	}},
	{"pause", func(_ *proctest.Cluster, nodes []*proctest.Member, span time.Duration) {
		nodes[0].Pause()
		time.Sleep(span)
		nodes[0].Resume()
	}},
	{"cut", func(c *proctest.Cluster, nodes []*proctest.Member, span time.Duration) {
		c.Cut(nodes[:1])
		time.Sleep(span)
		c.Heal()
	}},
	{"cut all", func(c *proctest.Cluster, nodes []*proctest.Member, span time.Duration) {
		c.Cut(nodes[:1], nodes[1:2])
		time.Sleep(span)
		c.Heal()
	}},
	{"cut, then kill on the other side", func(c *proctest.Cluster, nodes []*proctest.Member, span time.Duration) {
		c.Cut(nodes[:1])
		time.Sleep(span / 2)
		nodes[1].Kill()
		time.Sleep(span / 2)
		c.Heal()
		nodes[1].Start()
	}},
}
