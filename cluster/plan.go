package cluster

import (
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/leadership"
)

// View is the whole input of a plan: equal views yield equal plans. Planning only reads it, and
// keeps no reference.
type View struct {
	Catalog *catalog.View
	// Dead maps the key of a dead node to the time since its death. Nodes without an entry are
	// alive.
	Dead map[string]time.Duration
	// Groups maps a group to the report of its leader. Groups whose leaders do not answer have no
	// entry.
	Groups   map[uint32]leadership.LeaderView
	Settings PlanSettings
}

// PlanSettings configure plans. All but NodesWanted must be set.
type PlanSettings struct {
	NodesWanted  int           // number of nodes for which the first plan of a new cluster waits; 0 for none
	Replicas     int           // voters of a group if there are enough nodes; 1…catalog.ReplicasMax
	ReplaceAfter time.Duration // time for which a node must be dead before it is replaced
	MovesMax     int           // number of groups that may move at a time; each move copies a shard
}

// With PlanSettingsDefault, a cluster survives the loss of any one node, does not replace a node
// that reboots, and leaves most of the disks and the network to requests.
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

// Plan returns the next steps, the most urgent first, or none if nothing needs to change. It is a
// pure function. If the controller carries out the steps of each plan, the cluster reaches a state
// in which:
//
//   - Each group has Replicas voters, or one on each node if there are fewer nodes. The voters
//     are in as many zones as possible.
//   - Nodes that may hold replicas have equal numbers of replicas (give or take one), as far as
//     zones allow. Given that, they lead equal numbers of groups of each keyspace. Given both, the
//     total numbers of groups that they lead are equal, too. The children of a growth count once
//     the growth has ended, because until then they share the rows of their parents.
//   - Leaving nodes hold no replica, and are removed.
//
// The target of a group is the set of nodes that should have its replicas. It changes by one member
// at a time, so a group never loses two voters at once. Only a group with one voter gets several
// new voters together. A target changes only after the group has reached the previous target and
// most of its voters are alive. The exceptions are in retarget. Plan moves no replica to a dead
// node. It moves a voter off a dead node only after ReplaceAfter, or if an operator removes the
// node. While half of the nodes or more are dead, it moves no voter.
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

// mayBegin reports whether a new cluster may add voters to its groups. NodesWanted nodes must be in
// the catalog, and enough of them must be alive to be all voters of the catalog's group. With only
// two voters, that group would stop when it loses either.
func (p *plan) mayBegin() bool {
	wanted := p.settings.NodesWanted
	return len(p.nodes) >= wanted && len(p.takers) >= min(wanted, p.settings.Replicas)
}

// mostDead reports whether at least half of the nodes seem dead. If so, they are probably alive,
// and this node is cut off from them.
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

// declareLost gives up nodes that have been dead for too long, if enough other nodes can hold
// replicas. If there are too few, giving a node up would only cost groups a voter that may return.
func (p *plan) declareLost() {
	for _, key := range p.keys {
		dead := p.view.Dead[key]
		if p.alive(key) || dead < p.settings.ReplaceAfter || p.kept(key) != "" {
			continue
		}
		p.add(SetNodeState{Node: key, State: catalog.NodeLeaving, Reason: reason("it has been dead for %s", dead.Round(time.Second))})
	}
}

// kept returns why Plan does not give up a dead node, however long it has been dead. It returns ""
// if Plan may give the node up.
func (p *plan) kept(key string) string {
	switch takers := len(p.takers); {
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

// removeEmpty removes nodes that are leaving and are in no group. It waits for the report of every
// group, because a group without a report may still have such a node as a member.
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
			return false // with full replication, every node is a member, even a leaving one
		}
	}
	return true
}

// raiseVersion raises the cluster version by one, if all nodes support the next version and
// VersionHeld is not set. It skips a cluster without keyspaces: the leader of its catalog sets the
// highest version at once.
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
