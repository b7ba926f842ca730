package cluster

import (
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
)

// View is all that a plan is made from. Planning reads it and keeps nothing of
// it, so the same view has the same plan.
type View struct {
	Catalog *raftfsm.CatalogView
	// Dead says for how long nodes have not been heard of, by key. A node that
	// is not in it is alive.
	Dead map[string]time.Duration
	// Groups holds what the leader of each group says. A group is not in it
	// while it has no leader that is heard of.
	Groups   map[uint32]shard.GroupFacts
	Settings PlanSettings
}

// PlanSettings say what is wanted. All must be set.
type PlanSettings struct {
	Replicas     int           // voters of a group, as far as there are nodes; 1…raftfsm.ReplicasMax
	ReplaceAfter time.Duration // a node dead for so long is replaced
	MovesMax     int           // groups whose members change at a time: each copies a shard
}

// PlanSettingsDefault outlives any one node, sits out a reboot, and leaves most
// of the disks and the network to requests.
var PlanSettingsDefault = PlanSettings{Replicas: 3, ReplaceAfter: 10 * time.Minute, MovesMax: 2}

// Check says why nothing can be planned with s.
func (s PlanSettings) Check() error {
	if s.Replicas < 1 || s.Replicas > raftfsm.ReplicasMax {
		return fmt.Errorf("%d replicas are not in 1…%d", s.Replicas, raftfsm.ReplicasMax)
	}
	if s.ReplaceAfter <= 0 || s.MovesMax < 1 {
		return errors.New("time until a node is replaced, and moves at a time, are positive")
	}
	return nil
}

// Plan returns what to do next, in the order of its urgency, and nothing when
// all is as it should be. It is a pure function. Carrying out its steps brings
// the cluster, plan by plan, to a state of which it returns none:
//
//   - Each group has Replicas voters, or as many as there are nodes, in as many
//     zones as possible.
//   - Nodes that take replicas have equally many of shards (give or take one)
//     as far as zones allow, and lead equally many of each keyspace; and then of
//     all, as far as that allows.
//   - Nodes that leave hold nothing, and are removed.
//
// On the way no group is without the voters that it had: a target changes by one
// member, only where the group's configuration has reached the target before
// and most of its voters are alive. Nothing is moved off or to a node that is
// dead, for less than ReplaceAfter, and nothing at all while most nodes are.
func Plan(view View) []Step {
	p := newPlan(&view)
	if !p.mostDead() {
		p.declareLost()
		p.removeEmpty()
		p.mend()
		p.evenReplicas()
	}
	p.leaveLeaders()
	p.evenLeaders()
	p.raiseVersion()
	return p.steps
}

// mostDead reports whether the nodes that are heard of are no majority: then it
// is more likely that this node is cut off than that they are lost.
func (p *plan) mostDead() bool {
	staying, dead := 0, 0
	for _, key := range p.keys {
		if p.nodes[key].State == raftfsm.NodeLeaving {
			continue
		}
		staying++
		if !p.alive(key) {
			dead++
		}
	}
	return dead > 0 && 2*dead >= staying
}

// declareLost has nodes leave that have been dead for too long, if the others
// are enough to hold all replicas. With fewer, a group would only lose a voter
// that may come back.
func (p *plan) declareLost() {
	for _, key := range p.keys {
		dead := p.view.Dead[key]
		if p.alive(key) || dead < p.settings.ReplaceAfter || p.kept(key) != "" {
			continue
		}
		p.add(SetNodeState{Node: key, State: raftfsm.NodeLeaving, Reason: reason("it has been dead for %s", dead.Round(time.Second))})
	}
}

// kept returns why a dead node is not given up however long it is dead, or "".
func (p *plan) kept(key string) string {
	switch takers := len(p.takers()); {
	case p.nodes[key].State == raftfsm.NodeLeaving:
		return "it is leaving"
	case p.mostDead():
		return "half of the nodes or more are dead"
	case takers < p.settings.Replicas:
		return fmt.Sprintf("%d other nodes take replicas, a group has %d", takers, p.settings.Replicas)
	}
	return ""
}

// Kept returns why Plan does not give a dead node up, however long it is dead, as long as
// the view stays so; "" if it does after ReplaceAfter.
func Kept(view View, key string) string { return newPlan(&view).kept(key) }

// removeEmpty removes nodes that leave and are in no group. A group that nobody
// speaks for may still count one of them, so all are waited for.
func (p *plan) removeEmpty() {
	for _, key := range p.keys {
		if p.nodes[key].State == raftfsm.NodeLeaving && p.empty(key) {
			p.add(RemoveNode{Node: key, Reason: "it is leaving and holds no replica"})
		}
	}
}

func (p *plan) empty(key string) bool {
	for _, g := range p.groups {
		facts, known := p.view.Groups[g]
		if !known || contains(p.targets[g], key) || contains(facts.Voters, key) {
			return false
		}
		if !p.everywhere[g] && contains(facts.NonVoters, key) {
			return false // of some groups all nodes are members
		}
	}
	return true
}

func (p *plan) raiseVersion() {
	c := p.view.Catalog
	next := c.ClusterVersion + 1
	if !c.VersionHeld && c.VersionMax() >= next {
		p.add(RaiseVersion{Version: next, Reason: reason("all %d nodes speak it", len(c.Nodes))})
	}
}
