package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/raftfsm/catalog"
)

// plan is a plan under construction. targets and leaders start as they are and change with
// each step, so that every step takes the previous ones into account.
type plan struct {
	view       *View
	settings   PlanSettings
	nodes      map[string]catalog.Node
	keys       []string // of nodes, ascending
	groups     []uint32 // the groups that Plan places, ascending
	names      map[uint32]string
	everywhere map[uint32]bool // groups with all nodes as members
	light      map[uint32]bool // groups of everywhere whose replicas count as no load

	targets map[uint32][]string
	leaders map[uint32]string // of groups whose leader answers
	load    map[string]int    // replicas of shards, by node
	leads   map[string]int    // shards led, by node

	busy    map[uint32]bool // the group has not reached its target, or this plan has changed the target
	moving  int             // groups that copy data now or will soon
	unheard int             // groups that could have a leader but sent no report
	steps   []Step
}

func newPlan(view *View) *plan {
	c := view.Catalog
	p := &plan{
		view: view, settings: view.Settings, nodes: c.Nodes, names: GroupNames(c),
		keys: slices.Sorted(maps.Keys(c.Nodes)), groups: slices.Sorted(maps.Keys(c.Groups)),
		targets: map[uint32][]string{}, leaders: map[uint32]string{},
		load: map[string]int{}, leads: map[string]int{}, busy: map[uint32]bool{}, everywhere: map[uint32]bool{}, light: map[uint32]bool{},
	}
	for _, g := range p.groups {
		p.everywhere[g], p.light[g] = c.EveryNode(g), c.Light(g)
		p.setTarget(g, c.Groups[g].Target)
		report, known := view.Groups[g]
		if known {
			p.setLeader(g, report.Leader)
		} else if p.majority(c.Groups[g].Target, p.alive) {
			p.unheard++
		}
		if p.busy[g] = p.moves(g); p.busy[g] && !p.waitsForDead(g) {
			p.moving++
		}
	}
	return p
}

// GroupNames returns the names of groups, such as posts/3, by number.
func GroupNames(c *catalog.View) map[uint32]string {
	names := map[uint32]string{catalog.Group: "meta"}
	for _, k := range c.Keyspaces {
		for shard := range k.Shards {
			names[k.FirstGroup+uint32(shard)] = fmt.Sprintf("%s/%d", k.Name, shard)
		}
	}
	return names
}

func (p *plan) add(s Step) { p.steps = append(p.steps, s) }

func reason(format string, args ...any) Reason { return Reason(fmt.Sprintf(format, args...)) }

func contains(keys []string, key string) bool { return slices.Contains(keys, key) }

func without(keys []string, key string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k == key })
}

// swapped returns keys with replacement in the place of old.
func swapped(keys []string, old, replacement string) []string {
	keys = slices.Clone(keys)
	keys[slices.Index(keys, old)] = replacement
	return keys
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func (p *plan) setTarget(g uint32, target []string) {
	if !p.light[g] {
		for _, key := range p.targets[g] {
			p.load[key]--
		}
		for _, key := range target {
			p.load[key]++
		}
	}
	p.targets[g] = target
}

func (p *plan) setLeader(g uint32, leader string) {
	if was := p.leaders[g]; was != "" && !p.light[g] {
		p.leads[was]--
	}
	if leader != "" && !p.light[g] {
		p.leads[leader]++
	}
	p.leaders[g] = leader
}

func (p *plan) place(g uint32, target []string, why Reason) {
	p.add(Place{Group: g, Name: p.names[g], Was: p.targets[g], Target: target, Reason: why})
	p.setTarget(g, target)
	p.busy[g] = true
	p.moving++
}

// mayStartMove reports whether one more group may move.
func (p *plan) mayStartMove() bool { return p.moving < p.settings.MovesMax }

func (p *plan) alive(key string) bool {
	_, dead := p.view.Dead[key]
	_, known := p.nodes[key]
	return known && !dead
}

// leaves reports whether a node is leaving the cluster.
func (p *plan) leaves(key string) bool { return p.nodes[key].State == catalog.NodeLeaving }

// takes reports whether a node may get replicas and leaderships.
func (p *plan) takes(key string) bool {
	return p.alive(key) && p.nodes[key].State == catalog.NodeActive
}

// takers returns the nodes that may be given replicas, by key.
func (p *plan) takers() []string {
	return slices.DeleteFunc(slices.Clone(p.keys), func(key string) bool { return !p.takes(key) })
}

// fresh reports whether a voter of a group is alive and has nearly all of its log.
func (p *plan) fresh(g uint32, key string) bool {
	report := p.view.Groups[g]
	return p.alive(key) && (key == report.Leader || contains(report.CaughtUp, key))
}

func (p *plan) majority(keys []string, is func(string) bool) bool {
	n := 0
	for _, key := range keys {
		if is(key) {
			n++
		}
	}
	return 2*n > len(keys)
}

// moves reports whether a group's members are changing now, as far as known.
func (p *plan) moves(g uint32) bool {
	report, known := p.view.Groups[g]
	if !known { // a majority elects a leader soon; without a majority nothing moves
		return p.majority(p.view.Catalog.Groups[g].Target, p.alive)
	}
	return !sameSet(report.Voters, p.view.Catalog.Groups[g].Target) ||
		!p.everywhere[g] && len(report.NonVoters) > 0
}

// waitsForDead reports whether a group's move waits because the joining node is dead. The
// wait may be long and must not delay other moves.
func (p *plan) waitsForDead(g uint32) bool {
	report, known := p.view.Groups[g]
	return known && slices.ContainsFunc(p.targets[g], func(key string) bool {
		return !contains(report.Voters, key) && !p.alive(key)
	})
}

// settled reports whether a group may get another target: it has reached its present one,
// and most of its voters are fresh.
func (p *plan) settled(g uint32) bool {
	_, known := p.view.Groups[g]
	return known && !p.busy[g] && p.alive(p.leaders[g]) &&
		p.majority(p.targets[g], func(key string) bool { return p.fresh(g, key) })
}

// sound reports whether all voters of a group are fresh. Only then may the group get another target
// while its present target still works.
func (p *plan) sound(g uint32) bool {
	return p.settled(g) && !slices.ContainsFunc(p.targets[g], func(key string) bool { return !p.fresh(g, key) })
}

// crowding counts the pairs of nodes that share a zone.
func (p *plan) crowding(keys []string) int {
	pairs := 0
	for i, a := range keys {
		for _, b := range keys[:i] {
			if p.nodes[a].Zone == p.nodes[b].Zone {
				pairs++
			}
		}
	}
	return pairs
}

// bestTaker returns the best node to join keys, the other nodes of a group; "" if there is none. It
// prefers the least crowded zone, then a voter of the group, then the node with the fewest replicas.
func (p *plan) bestTaker(g uint32, keys []string) string {
	takers := slices.DeleteFunc(p.takers(), func(key string) bool { return contains(p.targets[g], key) || contains(keys, key) })
	if len(takers) == 0 {
		return ""
	}
	voters := p.view.Groups[g].Voters
	return slices.MinFunc(takers, func(a, b string) int {
		return cmp.Or(
			cmp.Compare(p.crowding(append(slices.Clone(keys), a)), p.crowding(append(slices.Clone(keys), b))),
			-cmp.Compare(toInt(contains(voters, a)), toInt(contains(voters, b))),
			cmp.Compare(p.load[a], p.load[b]),
			cmp.Compare(a, b))
	})
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
