package shard

import (
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
)

// A group that was made before replicas had numbers gets them once the cluster version
// has them. Until then no replica of it is deleted, and a node that deleted one begins
// no other.
func TestOlderGroupGetsNumbers(t *testing.T) {
	t.Parallel()
	all := openMembersOf(t, 4, 4)
	ks := all[0].Keyspace("posts")
	number := ks.FirstGroup
	was := all[0].router.holders(number)
	byKey := map[string]*Node{}
	var away string
	for _, n := range all {
		byKey[n.cfg.NodeKey] = n
		if !slices.Contains(was, n.cfg.NodeKey) {
			away = n.cfg.NodeKey
		}
	}
	place := func(from, to []string) {
		t.Helper()
		mustDo(t, all[0].catalogClient.MustChange(t.Context(), &catalog.Command{Place: &catalog.PlaceEntry{Group: number, Was: from, Target: to}}))
	}
	mustDo(t, all[0].Write(ks, &Write{Ops: []engine.Op{addTo(0, 0, 7)}, Deadline: soon()}))
	placement := all[0].catalog.View().Groups[number]
	back := byKey[was[0]]
	if placement.Numbered() || back.registry.Replica(number).ID() != raft.ServerID(was[0]) {
		t.Fatalf("an older group has numbers: %+v", placement)
	}

	elsewhere := []string{away, was[1], was[2]}
	place(was, elsewhere)
	eventually(t, "those vote that are to", func() bool { return votesAre(all, number, elsewhere) })
	if _, here := back.registry.dirs.Number(number); !here {
		t.Fatal("a replica without a number was deleted")
	}
	// As an older program would have.
	back.registry.changing.Lock()
	g := back.registry.shardOf(number)
	old := g.replica.Swap(nil)
	mustDo(t, old.close(t.Context(), false))
	mustDo(t, back.registry.dirs.GiveUp(number, 0))
	back.registry.changing.Unlock()
	place(elsewhere, was)
	eventually(t, "the leader adds it", func() bool {
		for _, n := range all {
			if g := n.registry.Replica(number); g != nil && g.Ready() == nil {
				return replica.Contains(g.Configuration().Servers, raft.ServerID(was[0]))
			}
		}
		return false
	})
	mustDo(t, back.follow())
	if back.registry.Replica(number) != nil {
		t.Fatal("a node began a replica again under the Raft id of one that it deleted")
	}

	raiseMembers(t, all[0])
	eventually(t, "all groups have numbers", func() bool { return all[0].groupsUnnumbered() == 0 })
	eventually(t, "those vote that are to", func() bool { return votesAre(all, number, was) })
	if id := back.registry.Replica(number).ID(); id == raft.ServerID(was[0]) {
		t.Errorf("it is %s again", id)
	}
	eventually(t, "the replica that moved away is deleted", func() bool { _, here := byKey[away].registry.dirs.Number(number); return !here })
	rows := make([]int64, 1)
	mustDo(t, back.Get(ks, []uint64{0}, 1, &ReadOptions{Consistency: Linearizable, Deadline: soon()}, rows))
	if rows[0] != 7 {
		t.Errorf("%d increments, 7 were acknowledged", rows[0])
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(all) })
}
