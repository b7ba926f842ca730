package replica

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// candidateStagger is the pause between the campaigns of two voters that miss their leader. Two
// campaigns at the same moment would split the vote. A voter that knows a leader refuses other
// candidates. The first candidate has forgotten its leader, so the second one can win with the vote
// of the first.
const candidateStagger = 150 * time.Millisecond

// DetectFailure makes the replica campaign if it is a voter, has not heard from its leader for too
// long, and could lead. It may be called at any time, and does nothing in a leader, a candidate, or
// a follower that knows no leader. It returns the time until the next check.
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

// patience returns how much longer this replica waits before it campaigns. silence is the time
// since it heard from the leader.
func (g *Replica) patience(leader string, silence time.Duration) time.Duration {
	after := g.cfg.Timing.DetectAfter()
	if silence < after {
		return after - silence
	}
	heirs := slices.DeleteFunc(g.Voters(), func(id raft.ServerID) bool { return NodeOf(id) == leader })
	slices.Sort(heirs) // every voter computes the same order
	rank := slices.Index(heirs, g.ID())
	if rank < 0 {
		return after // this replica has no vote
	}
	return max(after+time.Duration(rank)*candidateStagger-silence, 0)
}

// DetectAfter returns the silence of a leader after which followers campaign. It is a quarter
// longer than raft's minimum, so that a slightly late message causes no election.
func (t Timing) DetectAfter() time.Duration { return t.Heartbeat * 5 / 4 }
