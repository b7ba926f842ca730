package cluster

import (
	"errors"
	"fmt"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"time"
)

// View is the whole input of a plan. Planning reads it and keeps no reference, so the same
// view yields the same plan.
type View struct {
	Catalog *catalog.View
	// Dead holds for how long gossip has missed a node, by key. A node that is not in it is
	// alive.
	Dead map[string]time.Duration
	// Groups holds the report of each group's leader. A group whose leader does not answer
	// is not in it.
	Groups   map[uint32]shard.LeaderView
	Settings PlanSettings
}

// PlanSettings configure plans. All but NodesWanted must be set.
type PlanSettings struct {
	NodesWanted  int           // nodes of a new cluster that its first plan waits for; 0 for none
	Replicas     int           // voters of a group if there are enough nodes; 1…catalog.ReplicasMax
	ReplaceAfter time.Duration // how long a node is dead before it is replaced
	MovesMax     int           // groups that may move at a time: each move copies a shard
}

// PlanSettingsDefault survives the loss of any one node, does not react to a reboot, and leaves most of the disks and the network
// to requests.
var PlanSettingsDefault = PlanSettings{Replicas: 3, ReplaceAfter: 10 * time.Minute, MovesMax: 2}

// Check returns why s is not valid, or nil.
func (s PlanSettings) Check() error {
	if s.Replicas < 1 || s.Replicas > catalog.ReplicasMax {
		return fmt.Errorf("%d replicas are not in 1…%d", s.Replicas, catalog.ReplicasMax)
	}
	if s.ReplaceAfter <= 0 || s.MovesMax < 1 {
		return errors.New("time until a node is replaced, and moves at a time, are positive")
	}
	return nil
}

// Plan returns the next steps, the most urgent first, and none when nothing needs to change. It is a pure function. Carrying out
// its steps, plan after plan, leads to a state in which:
//
//   - Each group has Replicas voters, or one on each node if there are fewer nodes. The voters
//     are in as many zones as possible.
//   - Nodes that take replicas have the same number of replicas (give or take one) as
//     far as zones allow. They lead the same number of groups of each keyspace, and then
//     of all keyspaces as far as that allows.
//   - Nodes that leave hold nothing, and are removed.
//
// A target changes by one member at a time, so a group never loses two voters at once. Only a group with one voter gets several
// new ones together. A target changes only after the configuration has reached the previous target and most of its voters are
// alive. Plan moves nothing to a dead node. It moves a voter off a dead node only after ReplaceAfter, or if an operator removes
// the node. While most nodes are dead, it moves nothing at all.
func Plan(view View) []Step {
	p := newPlan(&view)
	if len(view.Catalog.Keyspaces) == 0 && !p.mayBegin() {
		return nil
	}
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

// mayBegin reports whether a new cluster may give votes: all nodes that it waits for are in its
// catalog, and enough of them are alive for all voters of the catalog. A catalog of two voters would
// stop when either is lost.
func (p *plan) mayBegin() bool {
	wanted := p.settings.NodesWanted
	return len(p.nodes) >= wanted && len(p.takers()) >= min(wanted, p.settings.Replicas)
}

// mostDead reports whether the living nodes are no majority. In that case this node is probably cut
// off, and the other nodes are not lost.
func (p *plan) mostDead() bool {
	staying, dead := 0, 0
	for _, key := range p.keys {
		if p.leaves(key) {
			continue
		}
		staying++
		if !p.alive(key) {
			dead++
		}
	}
	return dead > 0 && 2*dead >= staying
}

// declareLost sets nodes to leave that have been dead for too long, if the others can hold
// all replicas. With fewer nodes, a group would only lose a voter that may return.
func (p *plan) declareLost() {
	for _, key := range p.keys {
		dead := p.view.Dead[key]
		if p.alive(key) || dead < p.settings.ReplaceAfter || p.kept(key) != "" {
			continue
		}
		p.add(SetNodeState{Node: key, State: catalog.NodeLeaving, Reason: reason("it has been dead for %s", dead.Round(time.Second))})
	}
}

// kept returns why Plan does not give up a dead node now, however long it has been dead, or "" if it may.
func (p *plan) kept(key string) string {
	switch takers := len(p.takers()); {
	case p.leaves(key):
		return "it is leaving"
	case p.mostDead():
		return "half of the nodes or more are dead"
	case takers < p.settings.Replicas:
		return fmt.Sprintf("%d other nodes take replicas, a group has %d", takers, p.settings.Replicas)
	}
	return ""
}

// Kept returns why Plan never gives up a dead node while the view stays the same. It returns "" if
// Plan gives the node up after ReplaceAfter.
func Kept(view View, key string) string { return newPlan(&view).kept(key) }

// removeEmpty removes nodes that are leaving and are in no group. It waits for the report of
// every group, because a group that does not report may still have one of them as a member.
func (p *plan) removeEmpty() {
	for _, key := range p.keys {
		if p.leaves(key) && p.empty(key) {
			p.add(RemoveNode{Node: key, Reason: "it is leaving and holds no replica"})
		}
	}
}

func (p *plan) empty(key string) bool {
	for _, g := range p.groups {
		report, known := p.view.Groups[g]
		if !known || contains(p.targets[g], key) || contains(report.Voters, key) {
			return false
		}
		if !p.everywhere[g] && contains(report.NonVoters, key) {
			return false // all nodes are members of some groups
		}
	}
	return true
}

// raiseVersion raises the version by one. A cluster without keyspaces is only beginning: the
// catalog's leader gives it the highest version at once, as its first step.
func (p *plan) raiseVersion() {
	c := p.view.Catalog
	if len(c.Keyspaces) == 0 {
		return
	}
	next := c.ClusterVersion + 1
	if !c.VersionHeld && c.VersionMax() >= next {
		p.add(RaiseVersion{Version: next, Reason: reason("all %d nodes speak it", len(c.Nodes))})
	}
}
