package shard

import (
	"net"
	"testing"
)

// A node behind a name may get another address at any start, as containers do. So the catalog and
// the groups store the name, and each dial resolves it again. Certificates hold for names too.
func TestNameOfANodeStaysAName(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	mustDo(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	mustDo(t, err)
	cfg := memberConfig(t, t.TempDir(), 1, 1)
	cfg.Listener, cfg.ClusterAddr = listener, net.JoinHostPort("localhost", port)
	n := joinAs(t, nil, cfg)
	mustDo(t, n.WaitReady(t.Context()))
	if got := n.catalog.View().Nodes[cfg.NodeKey].ClusterAddr; got != cfg.ClusterAddr {
		t.Errorf("the catalog has %s, want %s", got, cfg.ClusterAddr)
	}
	for _, g := range n.registry.Replicas() {
		for _, s := range g.Configuration().Servers {
			if string(s.Address) != cfg.ClusterAddr {
				t.Errorf("group %d has %s, want %s", g.Group(), s.Address, cfg.ClusterAddr)
			}
		}
	}
}
