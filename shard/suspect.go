package shard

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// suspectEvery is how often a node looks at when it last heard of its groups'
	// leaders.
	suspectEvery = 50 * time.Millisecond
	// suspectStagger is between two voters that miss their leader. Raft's vote goes
	// to nobody while the one who is asked still has a leader, so the first to
	// miss it only loses it, and the second is elected; at the same moment they
	// would split the vote.
	suspectStagger = 150 * time.Millisecond
)

// runSuspect has followers look at their clocks when it is time to. By itself raft
// looks at random moments, each a heartbeat timeout or two after the one before,
// and all voters must have looked until one is elected: two to three times as late
// as they might know.
//
// Open starts it, Close stops and waits for it.
func (n *Node) runSuspect() {
	tick := time.NewTicker(suspectEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-n.stopping:
			return
		}
		for _, g := range n.replicas() {
			if err := g.suspect(); err != nil {
				n.cfg.Logger.Warn("a group's leader is missed", "group", g.cfg.Group, "err", err)
			}
		}
	}
}

// suspect has the group's replica here stand for election if it is a voter and has
// missed its leader for longer than it should have to, and could lead itself. It may be called at any
// time: who has lost its leader has none to miss.
func (g *group) suspect() error {
	leader := g.leader()
	if leader == "" || leader == g.cfg.NodeID || g.stuck() != nil {
		return nil
	}
	if !g.misses(leader, time.Since(g.raft.LastContact())) {
		return nil
	}
	return g.campaign()
}

// misses reports whether the replica here is to stand for election, having heard
// nothing of the leader for so long.
func (g *group) misses(leader string, silence time.Duration) bool {
	after := g.cfg.Timing.suspectAfter()
	if silence < after {
		return false
	}
	rank := slices.Index(g.heirs(leader), raft.ServerID(g.cfg.NodeID))
	return rank >= 0 && silence >= after+time.Duration(rank)*suspectStagger
}

// suspectAfter is a quarter more than raft waits for at least: a message that is
// late by less than that costs no election.
func (t groupTiming) suspectAfter() time.Duration { return t.Heartbeat * 5 / 4 }

// heirs returns the voters other than the leader, in an order that all of them
// agree on.
func (g *group) heirs(leader string) []raft.ServerID {
	heirs := slices.DeleteFunc(g.voters(), func(id raft.ServerID) bool { return string(id) == leader })
	slices.Sort(heirs)
	return heirs
}
