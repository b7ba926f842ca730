package shard

import (
	"context"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/replica"
)

// roles returns the node that leads a group and those that follow it.
func roles(t *testing.T, all []*Node, number uint32) (leader *Node, followers []*Node) {
	t.Helper()
	eventually(t, "the group has a leader whom all know", func() bool {
		leader, followers = nil, nil
		for _, n := range all {
			switch g := n.registry.Replica(number); {
			case g == nil:
			case g.Ready() == nil:
				leader = n
			default:
				followers = append(followers, n)
			}
		}
		return leader != nil && !slices.ContainsFunc(followers, func(n *Node) bool {
			return n.registry.Replica(number).Leader() != leader.cfg.NodeKey
		})
	})
	return leader, followers
}

// A member of a group that the catalog no longer places on its node:
//
//  1. keeps its replica as long as the leader answers that the replica is a member;
//  2. keeps the replica too if the leader first answers that the replica is gone, and after the
//     close answers that it is a member, or does not answer. The replica may have acknowledged
//     writes in between.
func TestReplicaOfAMemberIsKept(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	ks := all[0].Keyspace("posts")
	number := ks.FirstGroup
	w := once(&Write{Ops: counters.Ops{addTo(0, 0, 1)}, Deadline: soon()}) // id 0 is on the first shard
	mustDo(t, all[0].Write(ks, w))
	leader, followers := roles(t, all, number)
	n := followers[slices.IndexFunc(followers, func(n *Node) bool { return !n.LeadsCatalog() })]

	// The node of the next replica is down, so the old replica stays a member.
	mustDo(t, all[3].Close(t.Context()))
	target := all[0].router.holders(number)
	moved := append(leadership.Without(target, n.cfg.NodeKey), all[3].cfg.NodeKey)
	place := &catalog.PlaceEntry{Group: number, Was: target, Target: moved}
	mustDo(t, all[0].catalogClient.MustChange(t.Context(), &catalog.Command{Place: place}))
	eventually(t, "it knows that it is not to hold the group", func() bool { return !slices.Contains(n.router.holders(number), n.cfg.NodeKey) })

	g := n.registry.shardOf(number)
	r := g.replica.Load()
	eventually(t, "it has the write", func() bool { return r.group.LastIndex() >= w.Token.Index(number) })
	for range 3 {
		n.dropIfRemoved(g, r, n.catalog.View())
	}
	if g.replica.Load() != r {
		t.Fatal("a replica that its leader has was closed")
	}
	mustDrop := func(when string) {
		t.Helper()
		old := g.replica.Load()
		mustDo(t, n.dropReplica(g, old))
		r := g.replica.Load()
		if r == nil || r == old {
			t.Fatalf("%s: it was deleted, or never closed", when)
		}
		if last := r.group.LastIndex(); last < w.Token.Index(number) {
			t.Fatalf("%s: its log ends at %d, and had %d", when, last, w.Token.Index(number))
		}
	}
	mustDrop("the leader says that it is a member")
	eventually(t, "it follows again", func() bool {
		g := n.registry.Replica(number)
		return g.Leader() != "" && replica.SuffrageOf(g.Configuration().Servers, g.ID()) == raft.Voter
	})
	for _, other := range append(followers, leader) {
		if other != n {
			mustDo(t, other.Close(context.Background()))
		}
	}
	mustDrop("nobody answers")
}
