package cluster

import (
	"errors"
	"slices"
)

// ErrNoNodes is returned when no node can hold replicas.
var ErrNoNodes = errors.New("no node takes replicas")

// Initial chooses the nodes of each shard of a new keyspace, the intended leader first. It makes
// the loads of all nodes as even as the new shards allow. Dead nodes get replicas only if there are
// fewer than PlanSettings.Replicas other nodes.
func Initial(view View, shards int) ([][]string, error) {
	p := newPlan(&view)
	if len(p.takers) < view.Settings.Replicas {
		view.Dead = nil // use dead nodes too, because they may return soon
		p = newPlan(&view)
	}
	if len(p.takers) == 0 {
		return nil, ErrNoNodes
	}
	groups := make([]uint32, shards)
	for i := range groups {
		g := view.Catalog.NextGroup + uint32(i)
		groups[i] = g
		p.setTarget(g, p.firstVoters(g))
	}
	p.evenInitial(groups)
	replicas := make([][]string, shards)
	for i, g := range groups {
		leader := p.leaders[g]
		replicas[i] = append([]string{leader}, without(p.targets[g], leader)...)
	}
	return replicas, nil
}

func (p *plan) firstVoters(g uint32) []string {
	var voters []string
	for len(voters) < p.settings.Replicas {
		key := p.bestTaker(g, voters)
		if key == "" {
			break
		}
		voters = append(voters, key)
	}
	return voters
}

// evenInitial moves voters of the new groups until no move makes the loads more even, and then
// chooses the leaders.
func (p *plan) evenInitial(groups []uint32) {
	for {
		s, ok := nextShift(p.load, p.replicaEdges(groups))
		if !ok {
			break
		}
		p.setTarget(s.group, swapped(p.targets[s.group], s.from, s.to))
	}
	for _, g := range groups {
		p.setLeader(g, slices.MinFunc(p.targets[g], byFirst(func(key string) int { return p.leads[key] })))
	}
	for {
		s, ok := nextShift(p.leads, p.leaderPairs(groups, func(uint32, string) bool { return true }).edges(p.takers))
		if !ok {
			break
		}
		p.setLeader(s.group, s.to)
	}
}
