package replica

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

// stands runs a follower's failure detector and reports whether the follower then
// campaigns. It fails the test if that is too early.
func stands(t *testing.T, g *Replica) bool {
	t.Helper()
	before, heard := g.raft.ReloadableConfig().HeartbeatTimeout, g.raft.LastContact()
	_, err := g.DetectFailure()
	mustDo(t, err)
	missed := time.Since(heard)
	stood := g.raft.ReloadableConfig().HeartbeatTimeout < before
	if stood && missed < g.cfg.Timing.DetectAfter() {
		t.Errorf("stands for election %v after it heard of a leader", missed)
	}
	return stood
}

// Followers whose failure detector runs all the time:
//
//  1. do not campaign while they hear from their leader;
//  2. campaign once they no longer hear from it, unless raft's own timer fired before.
func TestSuspectedLeaders(t *testing.T) {
	const losses = 10
	r := newReplicas(t, storage.LogStoreBoltDB)
	r.add(t, 1, -1)
	stood := false
	for range losses {
		leader := r.leader(t, -1)
		followers := r.others(leader)
		for _, g := range followers {
			eventually(t, "it knows its leader", func() bool { return g.Leader() != "" })
		}
		for end := time.Now().Add(2 * followers[0].cfg.Timing.DetectAfter()); time.Now().Before(end); time.Sleep(time.Millisecond) {
			stands(t, followers[0])
			stands(t, followers[1])
		}
		mustDo(t, r.groups[leader].Close(t.Context(), false))
		eventually(t, "one of them leads", func() bool {
			first, second := stands(t, followers[0]), stands(t, followers[1])
			stood = stood || first || second
			return followers[0].Ready() == nil || followers[1].Ready() == nil
		})
		if stood {
			return
		}
		r.open(t, leader)
	}
	t.Errorf("raft was first in each of %d losses", losses)
}

// The voters that no longer hear from their leader campaign one after the other. No other replica
// campaigns.
func TestVotersStandInTurn(t *testing.T) {
	r := newReplicas(t, storage.LogStoreBoltDB)
	leader := r.leader(t, -1)
	key := r.cfgs[leader].NodeID
	r.mustKnowVoters(t, 3)
	at := r.cfgs[leader].Timing.DetectAfter()
	mustBe := func(who string, g *Replica, silence time.Duration, want bool) {
		t.Helper()
		if left := g.patience(key, silence); (left == 0) != want {
			t.Errorf("%s misses its leader after %v: %v", who, silence, !want)
		}
	}
	followers := r.others(leader) // ordered by key
	mustBe("the first", followers[0], at-1, false)
	mustBe("the first", followers[0], at, true)
	mustBe("the second", followers[1], at+candidateStagger-1, false)
	mustBe("the second", followers[1], at+candidateStagger, true)
	mustBe("the leader", r.groups[leader], time.Hour, false)

	eventually(t, "the first has no vote", func() bool { // the leader may have changed
		return r.groups[r.leader(t, -1)].raft.DemoteVoter(raft.ServerID(followers[0].cfg.NodeID), 0, time.Second).Error() == nil
	})
	r.mustKnowVoters(t, 2)
	mustBe("who has no vote", followers[0], time.Hour, false)
	mustBe("who is the first now", followers[1], at, true)
}

func TestSettingsChangeAtOnce(t *testing.T) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.Initial = aloneIn(cfg)
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	const each = 20_000
	before := g.raft.ReloadableConfig().HeartbeatTimeout
	var wg sync.WaitGroup
	for range 2 {
		for _, change := range []func() error{g.campaign, func() error { return g.snapshotter.setTrailing(0, 0) }} {
			wg.Go(func() {
				for range each {
					if err := change(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if got := before - g.raft.ReloadableConfig().HeartbeatTimeout; got != 2*each {
		t.Errorf("%d of %d changes are there", got, 2*each)
	}
}

// mustKnowVoters waits until each replica knows the given number of voters.
func (r *replicas) mustKnowVoters(t *testing.T, voters int) {
	t.Helper()
	eventually(t, "all know the voters", func() bool {
		return !slices.ContainsFunc(r.groups, func(g *Replica) bool { return len(g.Voters()) != voters })
	})
}

// others returns all replicas but the one with the index except.
func (r *replicas) others(except int) []*Replica {
	var others []*Replica
	for i, g := range r.groups {
		if i != except {
			others = append(others, g)
		}
	}
	return others
}
