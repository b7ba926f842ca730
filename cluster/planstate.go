package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/raftfsm/catalog"
)

// plan is a plan under construction. targets and leaders start with the present state and change
// with each step, so that every step takes the previous steps into account.
type plan struct {
	view       *View
	settings   PlanSettings
	nodes      map[string]catalog.Node
	keys       []string // keys of nodes, ascending
	takers     []string // keys of nodes that may receive replicas, ascending
	active     int      // number of active nodes, alive or not
	zones      int      // number of zones of all nodes
	groups     []uint32 // groups whose voters Plan chooses, ascending
	names      map[uint32]string
	everywhere map[uint32]bool // groups with all nodes as members
	light      map[uint32]bool // the groups of the catalog and the board
	weightless map[uint32]bool // groups whose replicas and leaders do not count as load: light groups, and children until the growth ends
	frozen     map[uint32]bool // groups whose shard is being split; the catalog refuses to change their targets

	targets map[uint32][]string
	leaders map[uint32]string // node of each group's leader, for groups whose leader answers
	load    map[string]int    // number of replicas of groups that are not weightless, by node
	leads   map[string]int    // number of such groups that a node leads, by node

	busy    map[uint32]bool // groups that have not reached their target, including targets of this plan
	moving  int             // number of groups that copy data now or will soon
	unheard int             // number of groups that have enough living voters for a leader, but sent no report
	steps   []Step
}

func newPlan(view *View) *plan {
	c := view.Catalog
	p := &plan{
		view: view, settings: view.Settings, nodes: c.Nodes, names: GroupNames(c),
		keys: slices.Sorted(maps.Keys(c.Nodes)), groups: slices.Sorted(maps.Keys(c.Groups)),
		targets: map[uint32][]string{}, leaders: map[uint32]string{},
		load: map[string]int{}, leads: map[string]int{}, busy: map[uint32]bool{}, everywhere: map[uint32]bool{}, light: map[uint32]bool{}, weightless: map[uint32]bool{}, frozen: map[uint32]bool{},
	}
	zones := map[string]bool{}
	for _, key := range p.keys {
		zones[p.nodes[key].Zone] = true
		p.active += toInt(p.nodes[key].State == catalog.NodeActive)
		if p.takes(key) {
			p.takers = append(p.takers, key)
		}
	}
	p.zones = len(zones)
	for _, k := range c.Keyspaces {
		for shard, g := range k.All() {
			p.weightless[g] = shard >= len(k.Groups)
		}
	}
	for _, g := range p.groups {
		p.everywhere[g], p.light[g], p.frozen[g] = c.EveryNode(g), c.Light(g), c.Frozen(g)
		p.weightless[g] = p.weightless[g] || p.light[g]
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

// GroupNames maps the number of a group to its name, such as posts/3.
func GroupNames(c *catalog.View) map[uint32]string {
	names := map[uint32]string{catalog.Group: "meta"}
	for _, k := range c.Keyspaces {
		for shard, group := range k.All() {
			names[group] = fmt.Sprintf("%s/%d", k.Name, shard)
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
	if !p.weightless[g] {
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
	if was := p.leaders[g]; was != "" && !p.weightless[g] {
		p.leads[was]--
	}
	if leader != "" && !p.weightless[g] {
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

// takes reports whether a node may receive replicas and leaderships.
func (p *plan) takes(key string) bool {
	return p.alive(key) && p.nodes[key].State == catalog.NodeActive
}

// fresh reports whether a voter of a group is alive and has nearly all of the group's log.
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

// moves reports whether a group's members are changing now, as far as this node knows.
func (p *plan) moves(g uint32) bool {
	report, known := p.view.Groups[g]
	if !known {
		// A majority of living voters elects a leader soon. Without a majority, the group cannot change.
		// The leader of a child may not answer until it has its part, and nothing moves until then.
		return !p.frozen[g] && p.majority(p.view.Catalog.Groups[g].Target, p.alive)
	}
	return !sameSet(report.Voters, p.view.Catalog.Groups[g].Target) ||
		!p.everywhere[g] && len(report.NonVoters) > 0
}

// waitsForDead reports whether a group's move waits for a dead joining node. The wait may be long
// and must not delay other moves.
func (p *plan) waitsForDead(g uint32) bool {
	report, known := p.view.Groups[g]
	return known && slices.ContainsFunc(p.targets[g], func(key string) bool {
		return !contains(report.Voters, key) && !p.alive(key)
	})
}

// settled reports whether a group may get another target: it is not frozen, has reached its present
// target, and most of its voters are fresh.
func (p *plan) settled(g uint32) bool {
	_, known := p.view.Groups[g]
	return known && !p.frozen[g] && !p.busy[g] && p.alive(p.leaders[g]) &&
		p.majority(p.targets[g], func(key string) bool { return p.fresh(g, key) })
}

// sound reports whether all voters of a group are fresh. shrink, spread and evenReplicas require a
// sound group. More urgent changes require only a settled one.
func (p *plan) sound(g uint32) bool {
	return p.settled(g) && !slices.ContainsFunc(p.targets[g], func(key string) bool { return !p.fresh(g, key) })
}

// crowding counts the pairs of nodes that share a zone.
func (p *plan) crowding(keys []string) int {
	pairs := 0
	for i, a := range keys {
		pairs += p.sharing(keys[:i], a, "")
	}
	return pairs
}

// sharing counts the nodes in keys that are in key's zone, except the node skip.
func (p *plan) sharing(keys []string, key, skip string) int {
	n, zone := 0, p.nodes[key].Zone
	for _, k := range keys {
		n += toInt(k != skip && p.nodes[k].Zone == zone)
	}
	return n
}

// leastCrowding returns the crowding of n nodes that are spread over all zones.
func (p *plan) leastCrowding(n int) int {
	each, more := n/p.zones, n%p.zones
	return p.zones*each*(each-1)/2 + more*each
}

// bestTaker returns the best node to add to a group whose other nodes are keys; "" if there is
// none. It prefers a node in the least crowded zone. Among these it prefers a voter of the group,
// and then the node with the fewest replicas.
func (p *plan) bestTaker(g uint32, keys []string) string {
	voters := p.view.Groups[g].Voters
	best := ""
	for _, a := range p.takers {
		if contains(p.targets[g], a) || contains(keys, a) {
			continue
		}
		if best == "" || cmp.Or(
			cmp.Compare(p.sharing(keys, a, ""), p.sharing(keys, best, "")),
			-cmp.Compare(toInt(contains(voters, a)), toInt(contains(voters, best))),
			cmp.Compare(p.load[a], p.load[best])) < 0 {
			best = a
		}
	}
	return best
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
