package shard

import (
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/replica"
)

// ledReplica returns the node that leads a shard of posts, and its replica.
func ledReplica(t *testing.T, all []*Node, shard int) (*Node, *localReplica) {
	t.Helper()
	var leader *Node
	var r *localReplica
	eventually(t, "the shard has a leader", func() bool {
		for _, n := range all {
			groups, err := n.groupsOf(n.Keyspace("posts"))
			mustDo(t, err)
			if here := groups[shard].replica.Load(); here != nil && here.group.Ready() == nil {
				leader, r = n, here
			}
		}
		return leader != nil
	})
	return leader, r
}

// TestLeaderWhoseStateLagsSaysWhatIsCommitted has a leader confirm its place while
// its state machine is behind its log, as that of a follower need not be. Who has
// read there must find the same everywhere from then on.
func TestLeaderWhoseStateLagsSaysWhatIsCommitted(t *testing.T) {
	all := openMembers(t, 3)
	leader, r := ledReplica(t, all, 0)
	lagging := r.fsm.Applied()
	index, err := leader.prover.askFresh(t.Context(), r.group, func() uint64 { return lagging })
	if err != nil || index != lagging {
		t.Errorf("before any write: index %d, %v, want %d", index, err, lagging)
	}
	w := once(&Write{Deadline: soon()})
	w.Ops = append(w.Ops, addTo(0, 2, 1))
	mustDo(t, leader.Write(leader.Keyspace("posts"), w))
	index, err = leader.prover.askFresh(t.Context(), r.group, func() uint64 { return lagging })
	if want := w.Token.Index(r.group.Group()); err != nil || index < want {
		t.Errorf("after a write: index %d, %v, want %d", index, err, want)
	}
}

// A leader proves its place together with the one that asks it, if that is another
// voter in no later term and two are a majority; and says nothing otherwise.
func TestStandingIsProvedWithTheAsker(t *testing.T) {
	all := openMembers(t, 3)
	leader, r := ledReplica(t, all, 0)
	var follower *Node
	for _, n := range all {
		if n != leader {
			follower = n
		}
	}
	number, term := r.group.Group(), r.group.Term()
	self, other := r.group.ID(), follower.Replica(number).ID()
	const counted, proves = true, true
	for name, c := range map[string]struct {
		asked           *Node
		asker           raft.ServerID
		term            uint64
		counted, proves bool
	}{
		"another voter":                {leader, other, term, counted, proves},
		"another voter, behind":        {leader, other, term - 1, counted, proves},
		"another voter, in later term": {leader, other, term + 1, counted, false},
		"the leader itself":            {leader, self, term, counted, false},
		"no member":                    {leader, "n9.00000000", term, false, false},
		"a replica that was there":     {leader, replica.RaftID(follower.cfg.NodeKey, 999), term, false, false},
		"a follower is asked":          {follower, self, term, counted, false},
	} {
		s := c.asked.prover.answerProbe(termProbe{group: number, term: c.term, asked: c.asked.Replica(number).Number()}, c.asker)
		if (s.term == term) != c.counted || (s.term == disagrees) == c.counted || (s.index > 0) != c.proves {
			t.Errorf("%s: %+v", name, s)
		}
	}
	for name, asked := range map[string]termProbe{
		"a group that is not here":          {group: 9999},
		"another replica of the asked node": {group: number, term: term, asked: 999},
	} {
		if s := leader.prover.answerProbe(asked, other); s.term != disagrees || s.index != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestTwoSuffice(t *testing.T) {
	for name, c := range map[string]struct {
		voters []raft.ServerID
		a, b   raft.ServerID
		want   bool
	}{
		"two of two":      {[]raft.ServerID{"a", "b"}, "a", "b", true},
		"two of three":    {[]raft.ServerID{"a", "b", "c"}, "c", "a", true},
		"two of four":     {[]raft.ServerID{"a", "b", "c", "d"}, "a", "b", false},
		"two of five":     {[]raft.ServerID{"a", "b", "c", "d", "e"}, "a", "b", false},
		"one of one":      {[]raft.ServerID{"a"}, "a", "b", false},
		"one twice":       {[]raft.ServerID{"a", "b", "c"}, "a", "a", false},
		"first no voter":  {[]raft.ServerID{"a", "b", "c"}, "d", "a", false},
		"second no voter": {[]raft.ServerID{"a", "b", "c"}, "a", "d", false},
		"no voters":       {nil, "a", "b", false},
	} {
		if got := replica.TwoSuffice(c.voters, c.a, c.b); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A leader continues to prove its leadership when the voter that it asks first is gone.
func TestLeaderAsksAnotherVoter(t *testing.T) {
	all := openMembers(t, 3)
	leader, r := ledReplica(t, all, 0)
	term := r.group.Term()
	other := all[0]
	if other == leader {
		other = all[1]
	}
	there := other.Replica(r.group.Group()).ID()
	others := []raft.ServerID{"n9.00000000", there} // the first is not known, and cannot be asked
	for round := range 3 {
		if agreed := leader.prover.agreeing(t.Context(), r.group, term, others, 1); agreed != 1 {
			t.Errorf("round %d: %d agreed", round, agreed)
		}
	}
	if agreed := leader.prover.agreeing(t.Context(), r.group, term, others, 2); agreed != 1 {
		t.Errorf("of two: %d agreed", agreed)
	}
	if agreed := leader.prover.agreeing(t.Context(), r.group, 0, others, 1); agreed != 0 {
		t.Errorf("for an earlier term: %d agreed", agreed)
	}
}
