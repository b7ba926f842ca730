package e2e

import (
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

// TestClusterNodesMove restarts nodes at other addresses. At first it moves one node, which the
// others find by gossip alone. Then it moves all nodes at once, and each names the new gossip
// address of one node in --join. After each step
//
//  1. all nodes can serve, and name each other's new addresses;
//  2. at each node, each count is the sum of the answered writes;
//  3. all replicas are equal.
func TestClusterNodesMove(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{LogStore: "boltdb"})
	writes := func() *proctest.Load {
		load := faultLoad(c)
		time.Sleep(500 * time.Millisecond)
		load.Stop()
		return load
	}
	check := func(loads ...*proctest.Load) {
		t.Helper()
		c.AwaitReady(c.Nodes()...)
		eventually(t, "all nodes name each other's new addresses", func() bool { return nameEachOther(c) })
		for _, load := range append(loads, writes()) {
			load.End(c.Nodes()...)
		}
	}

	before := writes()
	one := c.Nodes()[2]
	one.Stop()
	one.Move(proctest.FreeSite(t))
	one.Start()
	check(before)

	before = writes()
	for _, n := range c.Nodes() {
		n.Stop()
	}
	first := proctest.FreeSite(t)
	for i, n := range c.Nodes() {
		site := first
		if i > 0 {
			site = proctest.FreeSite(t)
		}
		n.Move(site)
		n.Args = append(n.Args, "--join", first.Gossip)
		n.Start()
	}
	check(before)
}

// nameEachOther reports whether each node returns the present addresses of all nodes.
func nameEachOther(c *proctest.Cluster) bool {
	for _, n := range c.Nodes() {
		named := map[string][2]string{}
		for _, other := range n.Cluster().Nodes {
			named[other.ID] = [2]string{other.HTTPAddr, other.ClusterAddr}
		}
		for _, other := range c.Nodes() {
			if site := other.Site(); named[other.Name] != [2]string{site.HTTP, site.Cluster} {
				return false
			}
		}
	}
	return true
}
