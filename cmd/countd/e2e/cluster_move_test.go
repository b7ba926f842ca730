package e2e

import (
	"testing"
	"time"

	"github.com/countd/countd/internal/clustertest"
	"github.com/countd/countd/internal/proctest"
)

// TestClusterNodesMove starts nodes at other addresses: one, which is found by
// gossip alone, then all at once, each told of one living gossip address. After
// each
//
//  1. all nodes can serve, and name each other's new addresses;
//  2. each count is what the answered writes add up to, at each node;
//  3. all replicas are alike.
func TestClusterNodesMove(t *testing.T) {
	beside(t)
	c := clustertest.New(t, bin, clustertest.Options{LogStore: "boltdb"})
	writes := func() *clustertest.Load {
		load := c.StartLoad(clustertest.LoadConfig{})
		time.Sleep(500 * time.Millisecond)
		load.Stop()
		return load
	}
	check := func(loads ...*clustertest.Load) {
		t.Helper()
		c.AwaitReady(c.Nodes()...)
		c.AwaitAddrs()
		loads = append(loads, writes())
		c.AwaitAgreement(agreeTimeout(), c.Nodes()...)
		for _, load := range loads {
			load.Check(c.Nodes()...)
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
