package replica

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// candidateStagger is the pause between the campaigns of two voters that miss their leader. A
// voter that still has a leader votes for nobody, and a campaign makes the candidate forget its
// own leader. So the second candidate wins with the vote of the first. Two campaigns at the same
// moment would split the vote.
const candidateStagger = 150 * time.Millisecond

// DetectFailure makes the replica campaign if it is a voter, has not heard from its leader for too
// long, and could lead. It may be called at any time: a candidate already campaigns, and a follower
// that knows no leader has nothing to suspect. It returns the time until the next check.
func (g *Replica) DetectFailure() (again time.Duration, err error) {
	leader := g.Leader()
	if leader == "" || leader == g.cfg.NodeID || g.raft.State() != raft.Follower || g.Stuck() != nil || g.applyHangs.Load() {
		return g.cfg.Timing.DetectAfter(), nil
	}
	again = g.patience(leader, time.Since(g.raft.LastContact()))
	if again > 0 {
		return again, nil
	}
	return 0, g.campaign()
}

// patience returns how long this replica should still wait before it campaigns, given the leader's
// silence.
func (g *Replica) patience(leader string, silence time.Duration) time.Duration {
	after := g.cfg.Timing.DetectAfter()
	if silence < after {
		return after - silence
	}
	heirs := slices.DeleteFunc(g.Voters(), func(id raft.ServerID) bool { return NodeOf(id) == leader })
	slices.Sort(heirs) // all of them compute the same order
	rank := slices.Index(heirs, g.ID())
	if rank < 0 {
		return after // this replica has no vote
	}
	return max(after+time.Duration(rank)*candidateStagger-silence, 0)
}

// DetectAfter is a quarter more than raft's minimum wait, so that a slightly late message causes
// no election.
func (t Timing) DetectAfter() time.Duration { return t.Heartbeat * 5 / 4 }
