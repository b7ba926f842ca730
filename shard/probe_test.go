package shard

import "testing"

// TestLeaderWhoseStateLagsSaysWhatIsCommitted has a leader confirm its place while
// its state machine is behind its log, as that of a follower need not be. Who has
// read there must find the same everywhere from then on.
func TestLeaderWhoseStateLagsSaysWhatIsCommitted(t *testing.T) {
	all := openMembers(t, 3)
	var leader *Node
	var g *counterGroup
	eventually(t, "the first shard has a leader", func() bool {
		for _, n := range all {
			groups, err := n.groupsOf(n.Keyspace("posts"))
			mustDo(t, err)
			if r := groups[0].replica.Load(); r.group.ready() == nil {
				leader, g = n, groups[0]
			}
		}
		return leader != nil
	})
	r := g.replica.Load()
	lagging := r.fsm.Applied()
	index, err := leader.askFresh(t.Context(), r.group, func() uint64 { return lagging })
	if err != nil || index != lagging {
		t.Errorf("before any write: index %d, %v, want %d", index, err, lagging)
	}
	w := &Write{Deadline: soon()}
	w.Ops = append(w.Ops, addTo(0, 2, 1))
	mustDo(t, leader.Write(leader.Keyspace("posts"), w))
	index, err = leader.askFresh(t.Context(), r.group, func() uint64 { return lagging })
	if want := w.Token.Index(g.number); err != nil || index < want {
		t.Errorf("after a write: index %d, %v, want %d", index, err, want)
	}
}
