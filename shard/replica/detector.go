package replica

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// candidateStagger is the pause between the campaigns of two voters that miss their leader.
// A voter that still has a leader votes for nobody, and a campaign makes the candidate forget its own.
// So the second candidate wins, by the vote of the first; two at the same moment would split the vote.
const candidateStagger = 150 * time.Millisecond

// DetectFailure makes the replica campaign if it is a voter, has not heard from its leader
// for too long, and could lead itself. It may be called at any time: a candidate campaigns
// already, and a follower that knows no leader has nothing to suspect. It returns when to check again.
func (g *Replica) DetectFailure() (again time.Duration, err error) {
	leader := g.Leader()
	if leader == "" || leader == g.cfg.NodeID || g.raft.State() != raft.Follower || g.Stuck() != nil {
		return g.cfg.Timing.DetectAfter(), nil
	}
	again = g.patience(leader, time.Since(g.raft.LastContact()))
	if again > 0 {
		return again, nil
	}
	return 0, g.campaign()
}

// patience is how long the replica here is still to wait until it stands for
// election, having heard nothing of the leader for so long.
func (g *Replica) patience(leader string, silence time.Duration) time.Duration {
	after := g.cfg.Timing.DetectAfter()
	if silence < after {
		return after - silence
	}
	heirs := slices.DeleteFunc(g.Voters(), func(id raft.ServerID) bool { return NodeOf(id) == leader })
	slices.Sort(heirs) // all of them agree on this order
	rank := slices.Index(heirs, g.ID())
	if rank < 0 {
		return after // it has no vote
	}
	return max(after+time.Duration(rank)*candidateStagger-silence, 0)
}

// DetectAfter is a quarter more than raft waits for at least: a message that is
// late by less than that costs no election.
func (t Timing) DetectAfter() time.Duration { return t.Heartbeat * 5 / 4 }
