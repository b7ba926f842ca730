package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// clusterView is the state of the cluster that a node knows at one moment.
type clusterView struct {
	At     time.Time
	Nodes  []viewNode  // nodes in the catalog, in the order of log lines
	Groups []viewGroup // groups in the catalog, by number
	Disk   viewSpace   // disk of this node; if the disk is full, writes stop
	Memory viewSpace   // memory of this node; if the memory is full, writes create no new rows
	// VotersFull holds the names of the groups led by this node that refuse writes because
	// too few of their voters have free disk.
	VotersFull []string
	// Replaced returns the time at which the cluster gives up a dead node, or the reason why it
	// never does.
	Replaced func(key string) (at time.Time, never string)
}

// viewNode is a node of the catalog.
type viewNode struct {
	Key       string
	Name      string // unique among the nodes
	State     string // according to the catalog
	DeadSince time.Time
	Stopped   bool // the node is dead because it was stopped
}

func (n *viewNode) dead() bool { return !n.DeadSince.IsZero() }

// viewGroup is a Raft group.
type viewGroup struct {
	Name   string
	Here   bool     // this node has a replica, so it knows the leader
	Leader string   // key of the leader's node; "" if this node knows no leader that may serve
	Voters []string // keys of the nodes that should have a vote
}

// viewSpace is how much free disk or memory the node needs and has.
type viewSpace struct {
	Full                  bool
	NeededBytes, HasBytes uint64
}

// nameOf returns the name of a node, or the key of a node that is no longer in the catalog.
func (v *clusterView) nameOf(key string) string {
	if i := slices.IndexFunc(v.Nodes, func(n viewNode) bool { return n.Key == key }); i >= 0 {
		return v.Nodes[i].Name
	}
	return key
}

func (v *clusterView) deadKeys() map[string]bool {
	dead := map[string]bool{}
	for i := range v.Nodes {
		if v.Nodes[i].dead() {
			dead[v.Nodes[i].Key] = true
		}
	}
	return dead
}

// degraded returns the names of the groups with a voter on a dead node. stopped is how many of
// these groups have no living majority.
func (v *clusterView) degraded() (names []string, stopped int) {
	dead := v.deadKeys()
	for _, g := range v.Groups {
		lost := 0
		for _, key := range g.Voters {
			if dead[key] {
				lost++
			}
		}
		if lost > 0 {
			names = append(names, g.Name)
		}
		if 2*lost >= len(g.Voters) && lost > 0 {
			stopped++
		}
	}
	return names, stopped
}

// namesMax is how many groups a log line names if there are too many to name all.
const namesMax = 3

// few joins names for a log line. If there are more than namesMax+1, it lists the first namesMax
// and counts the others.
func few(names []string) string {
	if len(names) <= namesMax+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:namesMax], ", "), len(names)-namesMax)
}

// tally formats the number of groups by node, largest number first.
func (v *clusterView) tally(of map[string]int) string {
	var texts []string
	for _, key := range slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Or(cmp.Compare(of[b], of[a]), strings.Compare(v.nameOf(a), v.nameOf(b)))
	}) {
		if key != "" {
			texts = append(texts, fmt.Sprintf("%s %d", v.nameOf(key), of[key]))
		}
	}
	return strings.Join(texts, ", ")
}

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339) }

func length(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
