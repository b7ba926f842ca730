package cluster

import (
	"cmp"
	"math"
	"slices"

	"github.com/countd/countd/raftfsm/catalog"
)

// shift moves a unit of load, a replica or a leadership, between two nodes.
type shift struct {
	from, to string
	group    uint32
	direct   bool // the load of from exceeds the load of to by two or more
}

// edges are the possible shifts.
type edges struct {
	keys []string // the nodes between which load may move
	// groups returns the groups that can move load from one node to another.
	groups func(from, to string) []uint32
	next   map[string][]string // results of successors, by node
}

// pairs maps a pair of nodes to the groups that can move load from the first node to the second.
type pairs map[[2]string][]uint32

func (p pairs) add(from, to string, g uint32) {
	p[[2]string{from, to}] = append(p[[2]string{from, to}], g)
}

// edges returns the shifts of p among the nodes in keys.
func (p pairs) edges(keys []string) *edges {
	return newEdges(keys, func(from, to string) []uint32 { return p[[2]string{from, to}] })
}

func newEdges(keys []string, groups func(from, to string) []uint32) *edges {
	return &edges{keys: keys, groups: groups, next: map[string][]string{}}
}

// successors returns the nodes to which the node from can move load.
func (e *edges) successors(from string) []string {
	next, known := e.next[from]
	if !known {
		next = slices.DeleteFunc(slices.Clone(e.keys), func(to string) bool { return len(e.groups(from, to)) == 0 })
		e.next[from] = next
	}
	return next
}

// nextShift returns a shift that makes the loads more even, directly or together with later
// shifts.
//
// A direct shift lowers the sum of the squares of the loads. If there is none, a chain of shifts
// may do so: from a node with a high load through others to a node with a low load. nextShift
// returns the last shift of the shortest such chain. That shift keeps the sum and makes the
// remaining chain shorter by one. So repeated shifts come to an end, even if different nodes plan
// them. If there is no chain either, no sequence of shifts makes the loads more even.
//
// 500 nodes have 250,000 pairs. So nextShift asks for the groups of a pair only if the loads of
// the two nodes differ enough.
func nextShift(load map[string]int, e *edges) (shift, bool) {
	best, most := shift{}, 1
	low, _ := bounds(e.keys, load)
	for _, from := range e.keys {
		high := load[from]
		if high-low <= most {
			continue
		}
		for _, to := range e.keys {
			if d := high - load[to]; d > most {
				if groups := e.groups(from, to); len(groups) > 0 {
					best, most = shift{from: from, to: to, group: groups[0], direct: true}, d
				}
			}
		}
	}
	if most > 1 {
		return best, true
	}
	var chain []string
	for _, from := range e.keys {
		if load[from]-low < 2 {
			continue
		}
		if c := shortestChain(from, load, e); c != nil && (chain == nil || len(c) < len(chain)) {
			chain = c
		}
	}
	if chain == nil {
		return shift{}, false
	}
	from, to := chain[len(chain)-2], chain[len(chain)-1]
	return shift{from: from, to: to, group: e.groups(from, to)[0], direct: false}, true
}

// shortestChain returns the nodes of the shortest chain from the node from to a node whose load is
// at least two lower. It returns nil if there is no such chain.
func shortestChain(from string, load map[string]int, e *edges) []string {
	before := map[string]string{from: from}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if load[from]-load[at] >= 2 {
			chain := []string{at}
			for ; at != from; at = before[at] {
				chain = append(chain, before[at])
			}
			slices.Reverse(chain)
			return chain
		}
		for _, next := range e.successors(at) {
			if _, seen := before[next]; !seen {
				before[next] = at
				queue = append(queue, next)
			}
		}
	}
	return nil
}

// uneven reports whether two of the nodes have loads that differ by more than
// one.
func uneven(keys []string, load map[string]int) bool {
	low, high := bounds(keys, load)
	return high-low > 1
}

// bounds returns the lowest and the highest load of the nodes; 0 for no nodes.
func bounds(keys []string, load map[string]int) (low, high int) {
	for i, key := range keys {
		if n := load[key]; i == 0 {
			low, high = n, n
		} else {
			low, high = min(low, n), max(high, n)
		}
	}
	return low, high
}

// replicaEdges returns the moves of replicas that make no zone more crowded. Groups that the node
// from leads come last, because their leadership would have to move too.
func (p *plan) replicaEdges(groups []uint32) *edges {
	led, others := map[string][]uint32{}, map[string][]uint32{} // by node, the groups with a voter on the node: led by the node, and led by others
	for _, g := range groups {
		for _, from := range p.targets[g] {
			switch {
			case !p.takes(from):
			case p.leaders[g] == from:
				led[from] = append(led[from], g)
			default:
				others[from] = append(others[from], g)
			}
		}
	}
	return newEdges(p.takers, func(from, to string) []uint32 {
		var may []uint32
		for _, of := range [][]uint32{others[from], led[from]} {
			for _, g := range of {
				kept := p.targets[g]
				if !contains(kept, to) && p.sharing(kept, to, from) <= p.sharing(kept, from, from) {
					may = append(may, g)
				}
			}
		}
		return may
	})
}

// leaderPairs returns the possible transfers of leadership.
func (p *plan) leaderPairs(groups []uint32, may func(g uint32, to string) bool) pairs {
	e := pairs{}
	for _, g := range groups {
		from := p.leaders[g]
		for _, to := range p.targets[g] {
			if to != from && p.takes(from) && may(g, to) {
				e.add(from, to, g)
			}
		}
	}
	return e
}

// shards returns the groups that count as load and for which match returns true.
func (p *plan) shards(match func(uint32) bool) []uint32 {
	return slices.DeleteFunc(slices.Clone(p.groups), func(g uint32) bool {
		return p.weightless[g] || !match(g)
	})
}

// evenReplicas moves replicas of shards from nodes with many to nodes with few. After a shift that
// is part of a chain, evenReplicas plans no other shift, because the chain depends on the nodes of
// the other replicas.
func (p *plan) evenReplicas() {
	for p.mayStartMove() && uneven(p.takers, p.load) {
		e := p.replicaEdges(p.shards(p.sound))
		s, ok := nextShift(p.load, e)
		if !ok || !s.direct && p.moving > 0 {
			return
		}
		s.group = p.ofFullestKeyspace(e.groups(s.from, s.to), s.from, s.to)
		why := reason("%s has %d replicas, %s has %d", s.from, p.load[s.from], s.to, p.load[s.to])
		if !s.direct {
			why += ", which makes room for others"
		}
		p.place(s.group, swapped(p.targets[s.group], s.from, s.to), why)
		if !s.direct {
			return
		}
	}
}

// ofFullestKeyspace returns one of groups: the first of the keyspace in which giver's replicas
// outnumber taker's the most. One keyspace may carry all the load, so its leaders should be spread
// evenly. That is possible only if its replicas are spread evenly.
func (p *plan) ofFullestKeyspace(groups []uint32, giver, taker string) uint32 {
	best, most := groups[0], math.MinInt
	for _, k := range p.view.Catalog.KeyspacesByName() {
		i := slices.IndexFunc(groups, func(g uint32) bool { return slices.Contains(k.Groups, g) })
		if i < 0 {
			continue
		}
		more := 0
		for _, g := range k.Groups {
			more += toInt(contains(p.targets[g], giver)) - toInt(contains(p.targets[g], taker))
		}
		if more > most {
			best, most = groups[i], more
		}
	}
	return best
}

// transfer adds a Transfer to the plan.
func (p *plan) transfer(g uint32, to string, why Reason) {
	p.add(Transfer{Group: g, Name: p.names[g], From: p.leaders[g], To: to, Reason: why})
	p.setLeader(g, to)
}

// mayLead reports whether a group's leadership may move to a node.
func (p *plan) mayLead(g uint32, key string) bool {
	return p.takes(key) && contains(p.view.Groups[g].Voters, key) && p.fresh(g, key)
}

// leaveLeaders moves leaderships off nodes that are drained or leaving.
func (p *plan) leaveLeaders() {
	for _, g := range p.groups {
		leader := p.leaders[g]
		if !p.alive(leader) || p.takes(leader) {
			continue
		}
		to := slices.DeleteFunc(slices.Clone(p.targets[g]), func(key string) bool { return !p.mayLead(g, key) })
		if len(to) > 0 {
			least := slices.MinFunc(to, byFirst(func(key string) int { return p.leads[key] }))
			p.transfer(g, least, reason("%s is %s", leader, p.nodes[leader].State))
		}
	}
}

// evenLeaders moves leaderships of shards from nodes that lead many to nodes that lead few, at
// most MovesMax at a time. While any group that can have a leader sends no report, evenLeaders
// moves nothing, because the group's next leader is unknown.
func (p *plan) evenLeaders() {
	for range p.settings.MovesMax {
		if p.unheard > 0 {
			return
		}
		s, why, ok := p.leaderShift()
		if !ok || !s.direct && (p.moving > 0 || len(p.steps) > 0) {
			return
		}
		p.transfer(s.group, s.to, why)
		if !s.direct {
			return
		}
	}
}

// leaderShift returns the next transfer. First it evens out the leaders within each keyspace,
// because one keyspace may carry all the load. Then it evens out the leaders of all keyspaces
// together. In this second phase, it moves a leadership only if the old leader leads more shards of
// the group's keyspace than the new leader. So the keyspace stays even, and the transfers come to
// an end.
func (p *plan) leaderShift() (shift, Reason, bool) {
	takers := slices.Clone(p.takers)
	slices.SortFunc(takers, byFirst(func(key string) int { return p.leads[key] }))
	within := pairs{}
	for _, k := range p.view.Catalog.KeyspacesByName() {
		leads := p.leadsOf(k)
		e := p.leaderPairs(slices.DeleteFunc(slices.Clone(k.Groups), func(g uint32) bool { return p.weightless[g] || !p.mayTransfer(g) }), p.mayLead)
		if uneven(takers, leads) {
			if s, ok := nextShift(leads, e.edges(takers)); ok {
				return s, reason("%s leads %d shards of %s, %s leads %d", s.from, leads[s.from], k.Name, s.to, leads[s.to]), true
			}
		}
		for pair, groups := range e {
			if leads[pair[0]] > leads[pair[1]] {
				within[pair] = append(within[pair], groups...)
			}
		}
	}
	if !uneven(takers, p.leads) {
		return shift{}, "", false
	}
	s, ok := nextShift(p.leads, within.edges(takers))
	return s, reason("%s leads %d shards, %s leads %d", s.from, p.leads[s.from], s.to, p.leads[s.to]), ok
}

// leadsOf returns the number of a keyspace's shards that each node leads.
func (p *plan) leadsOf(k catalog.Keyspace) map[string]int {
	leads := map[string]int{}
	for _, g := range k.Groups {
		if leader := p.leaders[g]; leader != "" {
			leads[leader]++
		}
	}
	return leads
}

// mayTransfer reports whether a group is settled and this plan has not moved its leadership yet.
func (p *plan) mayTransfer(g uint32) bool {
	return p.settled(g) && p.leaders[g] == p.view.Groups[g].Leader
}

// byFirst returns a comparison of keys by the first measure in which they differ. Keys with equal
// measures are in ascending order.
func byFirst(measures ...func(string) int) func(a, b string) int {
	return func(a, b string) int {
		for _, m := range measures {
			if c := cmp.Compare(m(a), m(b)); c != 0 {
				return c
			}
		}
		return cmp.Compare(a, b)
	}
}
