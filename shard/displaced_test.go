package shard

import (
	"context"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/replica"
)

// A node that was wiped comes back as another one with its name and its address. The new node
// replaces the old one in every group, because raft accepts no address twice. Nothing that is sent
// to the old node may reach the new one.
func TestWipedNodeTakesItsOwnPlace(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	old := all[2]
	cfg := old.cfg
	cfg.ClusterAddr, cfg.Metrics = old.mux.Addr().String(), prometheus.NewRegistry()
	cfg.Dir, cfg.NodeKey = t.TempDir(), "n3.1"
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	mustDo(t, old.Close(ctx))
	again, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { mustDo(t, again.Close(context.Background())) })
	put := &catalog.PutNodeEntry{Node: again.record(), Replaces: old.cfg.NodeKey}
	mustDo(t, all[0].catalogClient.MustChange(ctx, &catalog.Command{PutNode: put}))

	if addr, known := all[0].addrOf(old.cfg.NodeKey); addr != "" || !known {
		t.Errorf("the old one is dialled at %q, %v", addr, known)
	}
	for number, placement := range all[0].catalog.View().Groups {
		if slices.Contains(placement.Target, old.cfg.NodeKey) {
			place := &catalog.PlaceEntry{Group: number, Was: placement.Target, Target: append(leadership.Without(placement.Target, old.cfg.NodeKey), cfg.NodeKey)}
			mustDo(t, all[0].catalogClient.MustChange(ctx, &catalog.Command{Place: place}))
		}
	}
	for _, number := range []uint32{catalogGroup, 1, 2, 3, 4} {
		eventually(t, "the new one is in the group, the old one is not", func() bool {
			g := again.registry.Replica(number)
			if g == nil {
				return false
			}
			servers := g.Configuration().Servers
			want := raft.Voter
			if !slices.Contains(all[0].router.holders(number), cfg.NodeKey) {
				want = raft.Nonvoter // in the catalog's group, where this node has no vote
			}
			gone := !slices.ContainsFunc(servers, func(s raft.Server) bool { return replica.NodeOf(s.ID) == old.cfg.NodeKey })
			return replica.SuffrageOf(servers, g.ID()) == want && gone
		})
	}
	mustDo(t, again.WaitReady(ctx))
}
