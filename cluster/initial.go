package cluster

import (
	"errors"
	"slices"
)

// ErrNoNodes is returned when no node that is alive can hold replicas.
var ErrNoNodes = errors.New("no node takes replicas")

// Initial returns the nodes of each shard of a new keyspace, the intended leader first. It makes
// the loads of all nodes as even as the new shards allow. A dead node gets no replica if there are
// Replicas other nodes. Initial returns ErrNoNodes if no node can hold replicas.
func Initial(view View, shards int) ([][]string, error) {
	p := newPlan(&view)
	if len(p.takers()) < view.Settings.Replicas {
		view.Dead = nil // the dead nodes may be back soon
		p = newPlan(&view)
	}
	if len(p.takers()) == 0 {
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

// firstVoters chooses the nodes of a new group.
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

// evenInitial moves the voters of new groups until no move makes loads more even, and then
// chooses the leaders.
func (p *plan) evenInitial(groups []uint32) {
	takers := p.takers()
	for {
		s, ok := nextShift(takers, p.load, p.replicaEdges(groups))
		if !ok {
			break
		}
		p.setTarget(s.group, swapped(p.targets[s.group], s.from, s.to))
	}
	for _, g := range groups {
		p.setLeader(g, slices.MinFunc(p.targets[g], byFirst(func(key string) int { return p.leads[key] })))
	}
	for {
		s, ok := nextShift(takers, p.leads, p.leaderEdges(groups, func(uint32, string) bool { return true }))
		if !ok {
			break
		}
		p.setLeader(s.group, s.to)
	}
}
