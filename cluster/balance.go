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
	direct   bool // the load of from is at least two above the load of to
}

// edges maps a pair of nodes to the groups that can move load from the first node to the second.
type edges map[[2]string][]uint32

func (e edges) add(from, to string, g uint32) {
	e[[2]string{from, to}] = append(e[[2]string{from, to}], g)
}

// nextShift returns the shift that brings loads closer to each other, if there is one.
//
// A direct shift lowers the sum of the squares of the loads. If there is none, a chain of
// shifts may do so: from a high node through others to a low one. nextShift returns the last
// shift of the shortest such chain. That shift leaves the sum as it is and makes the chain
// shorter by one, so shifts end, whichever node plans the next one, and never go back. If
// there is no chain either, no sequence of such shifts makes the loads more even.
func nextShift(keys []string, load map[string]int, e edges) (shift, bool) {
	best, most := [2]string{}, 1
	for _, from := range keys {
		for _, to := range keys {
			if d := load[from] - load[to]; d > most && len(e[[2]string{from, to}]) > 0 {
				best, most = [2]string{from, to}, d
			}
		}
	}
	if most > 1 {
		return shift{best[0], best[1], e[best][0], true}, true
	}
	var chain []string
	for _, from := range keys {
		if c := shortestChain(from, keys, load, e); c != nil && (chain == nil || len(c) < len(chain)) {
			chain = c
		}
	}
	if chain == nil {
		return shift{}, false
	}
	last := [2]string(chain[len(chain)-2:])
	return shift{last[0], last[1], e[last][0], false}, true
}

// shortestChain returns the nodes of the shortest chain from a node to a node whose load is at
// least two lower, or nil.
func shortestChain(from string, keys []string, load map[string]int, e edges) []string {
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
		for _, next := range keys {
			if _, seen := before[next]; !seen && len(e[[2]string{at, next}]) > 0 {
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
	if len(keys) == 0 {
		return false
	}
	low, high := load[keys[0]], load[keys[0]]
	for _, key := range keys {
		low, high = min(low, load[key]), max(high, load[key])
	}
	return high-low > 1
}

// replicaEdges returns the moves of replicas that leave no zone more crowded. Groups whose
// leader would have to move as well come last.
func (p *plan) replicaEdges(groups []uint32) edges {
	e, led, takers := edges{}, edges{}, p.takers()
	for _, g := range groups {
		target := p.targets[g]
		crowding := p.crowding(target)
		for _, from := range target {
			if !p.takes(from) {
				continue
			}
			for _, to := range takers {
				switch {
				case contains(target, to) || p.crowding(swapped(target, from, to)) > crowding:
				case p.leaders[g] == from:
					led.add(from, to, g)
				default:
					e.add(from, to, g)
				}
			}
		}
	}
	for pair, groups := range led {
		e[pair] = append(e[pair], groups...)
	}
	return e
}

// leaderEdges are the transfers of leaderships of groups.
func (p *plan) leaderEdges(groups []uint32, may func(g uint32, to string) bool) edges {
	e := edges{}
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

// shards returns the groups of keyspaces for which match returns true.
func (p *plan) shards(match func(uint32) bool) []uint32 {
	return slices.DeleteFunc(slices.Clone(p.groups), func(g uint32) bool {
		return p.light[g] || !match(g)
	})
}

// evenReplicas moves replicas of shards from nodes with many to nodes with few. If a shift
// is part of a chain, it is the only shift of the plan, because it depends on where the
// other replicas are.
func (p *plan) evenReplicas() {
	takers := p.takers()
	for p.mayStartMove() && uneven(takers, p.load) {
		e := p.replicaEdges(p.shards(p.sound))
		s, ok := nextShift(takers, p.load, e)
		if !ok || !s.direct && p.moving > 0 {
			return
		}
		s.group = p.ofFullestKeyspace(e[[2]string{s.from, s.to}], s.from, s.to)
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

// ofFullestKeyspace compares how many replicas of each keyspace the two nodes hold. It takes
// the keyspace of which giver holds most replicas more than taker, and returns the first of the
// groups in that keyspace. One keyspace may carry all the load, and nodes can lead equally many of
// its shards only if they hold equally many.
func (p *plan) ofFullestKeyspace(groups []uint32, giver, taker string) uint32 {
	best, most := groups[0], math.MinInt
	for _, k := range p.view.Catalog.KeyspacesByName() {
		i := slices.IndexFunc(groups, func(g uint32) bool { return inKeyspace(k, g) })
		if i < 0 {
			continue
		}
		more := 0
		for g := k.FirstGroup; inKeyspace(k, g); g++ {
			more += toInt(contains(p.targets[g], giver)) - toInt(contains(p.targets[g], taker))
		}
		if more > most {
			best, most = groups[i], more
		}
	}
	return best
}

// transfer adds a Transfer.
func (p *plan) transfer(g uint32, to string, why Reason) {
	p.add(Transfer{Group: g, Name: p.names[g], From: p.leaders[g], To: to, Reason: why})
	p.setLeader(g, to)
}

// mayLead reports whether a node can be given the leadership of a group.
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

// evenLeaders moves leaderships of shards from nodes that lead many to nodes that lead few, at most
// MovesMax at a time. While the leader of a group sends no report, evenLeaders moves nothing,
// because the group will have a leader soon.
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
// because one keyspace may carry all the load. Once those are even, it evens out the leaders of all
// keyspaces. It then moves a leadership only from a node that leads more shards of the group's
// keyspace, so that the keyspace stays even. The transfers therefore end.
func (p *plan) leaderShift() (shift, Reason, bool) {
	takers, may := p.takers(), p.shards(p.mayTransfer)
	slices.SortFunc(takers, byFirst(func(key string) int { return p.leads[key] }))
	within := edges{}
	for _, k := range p.view.Catalog.KeyspacesByName() {
		leads := p.leadsOf(k)
		e := p.leaderEdges(slices.DeleteFunc(slices.Clone(may), func(g uint32) bool { return !inKeyspace(k, g) }), p.mayLead)
		if uneven(takers, leads) {
			if s, ok := nextShift(takers, leads, e); ok {
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
	s, ok := nextShift(takers, p.leads, within)
	return s, reason("%s leads %d shards, %s leads %d", s.from, p.leads[s.from], s.to, p.leads[s.to]), ok
}

// leadsOf counts the leaders of a keyspace's shards by node.
func (p *plan) leadsOf(k catalog.Keyspace) map[string]int {
	leads := map[string]int{}
	for g, leader := range p.leaders {
		if leader != "" && inKeyspace(k, g) {
			leads[leader]++
		}
	}
	return leads
}

func inKeyspace(k catalog.Keyspace, g uint32) bool {
	return k.FirstGroup <= g && g-k.FirstGroup < uint32(k.Shards)
}

// mayTransfer reports whether a group's leadership may move: it is settled, and
// this plan has not moved it yet.
func (p *plan) mayTransfer(g uint32) bool {
	return p.settled(g) && p.leaders[g] == p.view.Groups[g].Leader
}

// byFirst orders keys by the first measure in which they differ. Keys that differ in no measure are
// in ascending order.
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
