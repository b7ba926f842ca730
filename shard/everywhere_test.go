package shard

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard/replica"
)

// A node that begins to hold a shard has none of the shard's state at first. Until it has that
// state, other nodes answer its stale reads, as before.
func TestStaleReadsBesideAReplicaThatIsCopied(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	last := all[3] // everywhere, the function, places on the first three
	ks := all[0].Keyspace("users")
	mustDo(t, all[0].Write(ks, once(&Write{Ops: counters.Ops{addTo(7, 0, 5)}, Deadline: soon()})))
	stale := func(n *Node) int64 {
		t.Helper()
		rows := make([]int64, 1)
		mustDo(t, n.Get(ks, []uint64{7}, 1, &ReadOptions{Consistency: Stale, Deadline: soon()}, rows))
		return rows[0]
	}
	eventually(t, "those that vote have applied it", func() bool {
		return stale(all[0]) == 5 && stale(all[1]) == 5 && stale(all[2]) == 5
	})
	g := last.registry.groups.Load().byFirst[ks.FirstGroup].all[0]
	if g.replica.Load() != nil {
		t.Fatal("the fourth node holds a replica to begin with")
	}
	// No leader knows yet that the node is to have a replica, so the replica stays empty.
	view := *last.catalog.View()
	last.registry.changing.Lock()                                            // so that the node does not open it too, once it finds its files
	mustDo(t, last.openReplica(g, view.Groups[g.number].NextReplica, &view)) // the number that it gets next
	last.registry.changing.Unlock()
	if got := stale(last); got != 5 {
		t.Errorf("a node that has copied nothing yet answers %d, want 5", got)
	}
	err := setEverywhere(t.Context(), all[0], "users", true)
	mustDo(t, err)
	eventually(t, "it answers by itself", func() bool {
		r := g.replica.Load()
		return r != nil && r.fsm.Applied() > 0 && stale(last) == 5 && digestsAgree(all)
	})
}

// TestEverywhereWhileAVoteMoves writes to a shard while its votes move from node to node. Meanwhile
// the keyspace is set to everywhere and back, each time before the previous change is complete. 1.
// The voters become those of the target, each time. 2. No write that was acknowledged is lost. 3.
// At the end no other node has anything of the shard.
func TestEverywhereWhileAVoteMoves(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	ks := all[0].Keyspace("users")
	number := ks.FirstGroup
	stop, done := make(chan struct{}), make(chan int64)
	go func() {
		n := int64(0)
		defer func() { done <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := all[n%4].Write(ks, once(&Write{Ops: counters.Ops{addTo(3, 0, 1)}, Deadline: soon()})); err != nil {
				t.Error(err)
			}
			n++
			time.Sleep(2 * time.Millisecond) // the votes move for seconds
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	target := all[0].router.holders(number)
	for round := range 5 {
		err := setEverywhere(ctx, all[round%4], "users", round%2 == 0)
		mustDo(t, err)
		was := target
		target = slices.Clone(was[1:])
		for _, n := range all {
			if !slices.Contains(was, n.cfg.NodeKey) {
				target = append(target, n.cfg.NodeKey)
			}
		}
		mustDo(t, all[0].catalogClient.MustChange(ctx, &catalog.Command{Place: &catalog.PlaceEntry{Group: number, Was: was, Target: target}}))
		eventually(t, "those vote that are to", func() bool { return votesAre(all, number, target) })
	}
	err := setEverywhere(ctx, all[0], "users", false)
	mustDo(t, err)
	eventually(t, "nobody else holds it", func() bool {
		return !slices.ContainsFunc(all, func(n *Node) bool {
			_, here := n.registry.dirs.Number(number)
			return here != slices.Contains(target, n.cfg.NodeKey)
		})
	})
	close(stop)
	want := <-done
	rows := make([]int64, 1)
	mustDo(t, all[0].Get(ks, []uint64{3}, 1, &ReadOptions{Consistency: Linearizable, Deadline: soon()}, rows))
	if rows[0] != want || want == 0 {
		t.Errorf("%d increments, %d were acknowledged", rows[0], want)
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(all) })
}

// votesAre reports whether each of the target's nodes sees that exactly the given nodes have a vote
// in a group.
func votesAre(all []*Node, number uint32, target []string) bool {
	for _, n := range all {
		if !slices.Contains(target, n.cfg.NodeKey) {
			continue
		}
		g := n.registry.Replica(number)
		if g == nil {
			return false
		}
		var keys []string
		for _, id := range g.Voters() {
			keys = append(keys, replica.NodeOf(id))
		}
		slices.Sort(keys)
		if !slices.Equal(keys, slices.Sorted(slices.Values(target))) {
			return false
		}
	}
	return true
}
