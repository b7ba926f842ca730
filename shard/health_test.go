package shard

import (
	"context"
	"testing"
)

// Health reports the leader of each local group, and the resources that are full. Without a majority it
// reports no leaders.
func TestHealth(t *testing.T) {
	all := openMembers(t, 3)
	n := all[0]
	for _, m := range all {
		holdHeadroom(m)
	}
	eventually(t, "all groups have a leader", func() bool {
		h := n.Health()
		for _, leader := range h.Leaders {
			if leader == "" {
				return false
			}
		}
		return len(h.Leaders) == len(n.registry.Replicas())
	})
	ks := n.Keyspace("posts")
	leader, followers := roles(t, all, ks.FirstGroup)
	if got := followers[0].Health().Leaders[ks.FirstGroup]; got != leader.cfg.NodeKey {
		t.Errorf("a follower's leader is %q, want %q", got, leader.cfg.NodeKey)
	}
	leader.headroom.MemoryFull.Store(true)
	eventually(t, "the leader tells what is full", func() bool {
		leader.registry.shardOf(ks.FirstGroup).replica.Load().fsm.VotersFull.Store(true) // holds only until the leader asks the voters again
		h := leader.Health()
		return h.Memory.Full && len(h.VotersFull) > 0 && h.VotersFull[0] == ks.FirstGroup
	})
	leader.headroom.DiskFull.Store(true)
	if !leader.Health().Disk.Full {
		t.Error("the leader does not tell that its disk is full")
	}
	if h := followers[0].Health(); h.Memory.Full || h.Disk.Full || len(h.VotersFull) > 0 {
		t.Errorf("a follower's health %+v", h)
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	mustDo(t, all[2].Close(ctx))
	mustDo(t, all[1].Close(ctx))
	eventually(t, "no group of three voters has a leader with one left", func() bool {
		for _, g := range n.registry.Replicas() {
			if leader := n.Health().Leaders[g.Group()]; leader != "" && len(g.Voters()) > 1 {
				return false
			}
		}
		return true
	})
}
