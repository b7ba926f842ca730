package shard

import (
	"testing"

	"github.com/countd/countd/engine"
)

// A node that begins to hold a shard has nothing of it at first. Until it has
// some, stale reads there are answered by others, as they were before it began.
func TestStaleReadsBesideAReplicaThatIsCopied(t *testing.T) {
	all := openMembers(t, 4)
	last := all[3] // everywhere, the function, places on the first three
	ks := all[0].Keyspace("users")
	mustDo(t, all[0].Write(ks, &Write{Ops: []engine.Op{addTo(7, 0, 5)}, Deadline: soon()}))
	stale := func(n *Node) int64 {
		t.Helper()
		rows := make([]int64, 1)
		mustDo(t, n.Get(ks, []uint64{7}, 1, &ReadOptions{Consistency: Stale, Deadline: soon()}, rows))
		return rows[0]
	}
	eventually(t, "those that vote have applied it", func() bool {
		return stale(all[0]) == 5 && stale(all[1]) == 5 && stale(all[2]) == 5
	})
	g := last.groups.Load().byFirst[ks.firstGroup][0]
	if g.replica.Load() != nil {
		t.Fatal("the fourth node holds a replica to begin with")
	}
	// No leader knows yet that it is to have one: it stays empty.
	view := *last.catalog.View()
	mustDo(t, last.openReplica(g, &view))
	if got := stale(last); got != 5 {
		t.Errorf("a node that has copied nothing yet answers %d, want 5", got)
	}
	_, err := all[0].SetEverywhere(t.Context(), "users", true)
	mustDo(t, err)
	eventually(t, "it answers by itself", func() bool {
		r := g.replica.Load()
		return r != nil && r.fsm.Applied() > 0 && stale(last) == 5 && digestsAgree(all)
	})
}
