package shard

import (
	"testing"
	"time"
)

// stands asks a follower whether it misses its leader, and tells whether it then
// stands for election. It fails the test if that comes too early.
func stands(t *testing.T, g *group) bool {
	t.Helper()
	before, heard := g.raft.ReloadableConfig().HeartbeatTimeout, g.raft.LastContact()
	mustDo(t, g.suspect())
	missed := time.Since(heard)
	stood := g.raft.ReloadableConfig().HeartbeatTimeout < before
	if stood && missed < g.cfg.Timing.suspectAfter() {
		t.Errorf("stands for election %v after it heard of a leader", missed)
	}
	return stood
}

// Followers that are asked all the time whether they miss their leader: 1. stand
// for no election while they hear of it; 2. do once they do not, unless raft has
// looked at its clock before.
func TestSuspectedLeaders(t *testing.T) {
	const losses = 10
	r := newReplicas(t, LogStoreBoltDB)
	r.add(t, 1, -1)
	stood := false
	for range losses {
		leader := r.leader(t, -1)
		followers := r.others(leader)
		for _, g := range followers {
			eventually(t, "it knows its leader", func() bool { return g.leader() != "" })
		}
		for end := time.Now().Add(2 * followers[0].cfg.Timing.suspectAfter()); time.Now().Before(end); time.Sleep(time.Millisecond) {
			stands(t, followers[0])
			stands(t, followers[1])
		}
		mustDo(t, r.groups[leader].close(t.Context(), false))
		eventually(t, "one of them leads", func() bool {
			first, second := stands(t, followers[0]), stands(t, followers[1])
			stood = stood || first || second
			return followers[0].ready() == nil || followers[1].ready() == nil
		})
		if stood {
			return
		}
		r.open(t, leader)
	}
	t.Errorf("raft was first in each of %d losses", losses)
}

// others returns all replicas but one.
func (r *replicas) others(but int) []*group {
	var others []*group
	for i, g := range r.groups {
		if i != but {
			others = append(others, g)
		}
	}
	return others
}
