//go:build !race

// This file is not built with the race detector, because raft changes a peer's address under a
// lock, but reads the peer without the lock (v1.8.0, replication.go, updateLastAppended). The race
// is harmless, because that reader uses only the id, which never changes.

package shard

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/raftfsm/catalog"
)

// Gossip finds a node that starts at another address, although the catalog has the old one. The node
// serves again, and the catalog and the configurations of its groups learn the new address. This holds
// even if all nodes move.
func TestMovedNodesAreFound(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		moves int
	}{{"one", 1}, {"all", 3}} {
		t.Run(test.name, func(t *testing.T) {
			heard := &callNodes{}
			all := openHeard(t, heard, 3)
			moving := all[3-test.moves:]
			for i, n := range moving {
				heard.Put(n.cfg.NodeKey, "")
				ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
				defer cancel()
				mustDo(t, n.Close(ctx))
				cfg := n.cfg
				cfg.Metrics = prometheus.NewRegistry()
				moving[i] = mustOpenHeard(t, heard, cfg)
			}
			ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
			defer cancel()
			for _, n := range moving {
				mustDo(t, n.WaitReady(ctx))
			}
			for _, n := range all {
				eventually(t, "the catalog and the groups have the addresses", func() bool { return knowsAddrs(n, all) })
			}
		})
	}
}

// knowsAddrs reports whether a node's catalog, and each group that it leads, has every
// node's present address.
func knowsAddrs(n *Node, all []*Node) bool {
	view := n.catalog.View()
	for _, other := range all {
		key, addr := other.cfg.NodeKey, other.mux.Addr().String()
		if view.Nodes[key].ClusterAddr != addr {
			return false
		}
		for _, g := range n.registry.Replicas() {
			for _, s := range g.Configuration().Servers {
				if g.Ready() == nil && string(s.ID) == key && string(s.Address) != addr {
					return false
				}
			}
		}
	}
	return true
}

// openHeard opens a cluster of nodes that learn each other's addresses from heard.
func openHeard(t *testing.T, heard *callNodes, nodes int) []*Node {
	t.Helper()
	var all []*Node
	for i := 1; i <= nodes; i++ {
		all = append(all, mustOpenHeard(t, heard, memberConfig(t, t.TempDir(), i, nodes)))
		if i > 1 {
			put := &catalog.PutNodeEntry{Node: all[i-1].record()}
			mustDo(t, all[0].catalogClient.MustChange(t.Context(), &catalog.Command{PutNode: put}))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	for _, n := range all {
		mustDo(t, n.WaitReady(ctx))
	}
	return all
}

func mustOpenHeard(t *testing.T, heard *callNodes, cfg Config) *Node {
	t.Helper()
	cfg.LiveAddr = func(node string) string {
		addr, _ := heard.Lookup(node)
		return addr
	}
	n, err := Open(cfg)
	mustDo(t, err)
	heard.Put(cfg.NodeKey, n.mux.Addr().String())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
		defer cancel()
		mustDo(t, n.Close(ctx))
	})
	return n
}
