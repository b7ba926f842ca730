package shard

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// suspectStagger is between two voters that miss their leader. Raft's vote goes
// to nobody while the one who is asked still has a leader, so the first to
// miss it only loses it, and the second is elected; at the same moment they
// would split the vote.
const suspectStagger = 150 * time.Millisecond

// suspect has the group's replica here stand for election if it is a voter and has
// missed its leader for longer than it should have to, and could lead itself. It
// may be called at any time: who has lost its leader has none to miss. It returns
// when to look again, unless somebody is heard of before.
func (g *group) suspect() (again time.Duration, err error) {
	leader := g.leader()
	if leader == "" || leader == g.cfg.NodeID || g.stuck() != nil {
		return g.cfg.Timing.suspectAfter(), nil
	}
	again = g.patience(leader, time.Since(g.raft.LastContact()))
	if again > 0 {
		return again, nil
	}
	return 0, g.campaign()
}

// patience is how long the replica here is still to wait until it stands for
// election, having heard nothing of the leader for so long.
func (g *group) patience(leader string, silence time.Duration) time.Duration {
	after := g.cfg.Timing.suspectAfter()
	if silence < after {
		return after - silence
	}
	rank := slices.Index(g.heirs(leader), g.id())
	if rank < 0 {
		return after // it has no vote
	}
	return max(after+time.Duration(rank)*suspectStagger-silence, 0)
}

// suspectAfter is a quarter more than raft waits for at least: a message that is
// late by less than that costs no election.
func (t groupTiming) suspectAfter() time.Duration { return t.Heartbeat * 5 / 4 }

// heirs returns the voters other than the leader, in an order that all of them
// agree on.
func (g *group) heirs(leader string) []raft.ServerID {
	heirs := slices.DeleteFunc(g.voters(), func(id raft.ServerID) bool { return nodeOf(id) == leader })
	slices.Sort(heirs)
	return heirs
}
