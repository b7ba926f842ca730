package cluster

import (
	"slices"

	"github.com/countd/countd/raftfsm/catalog"
)

// mend adds missing voters to groups, removes surplus voters, and spreads voters over zones. It
// makes the most urgent changes first, and changes each group at most once. After each change, a
// majority of the target is alive. For that, mend may keep a living voter on a leaving node.
func (p *plan) mend() {
	for _, g := range p.groups {
		p.retarget(g)
	}
	for _, change := range []func(uint32) ([]string, Reason){p.replaceLost, p.replaceLeaving, p.grow, p.shrink, p.spread} {
		for _, g := range p.groups {
			// The light groups, of the catalog and the board, ignore MovesMax: they are small, and
			// a new node is ready only once it is a member of both. If a new node has the address
			// of a lost node, it becomes a member only after the lost node has left.
			if !p.settled(g) || !p.mayStartMove() && !p.light[g] {
				continue
			}
			if target, why := change(g); target != nil && p.majority(target, p.alive) {
				p.place(g, target, why)
			}
		}
	}
}

// retarget replaces the joining node of a move if that node dies, or starts to leave, before it is
// a voter. Otherwise the group would wait until that node returns. A plan may even choose a node
// that has just died, because gossip needs seconds to detect a death. retarget also replaces a
// voter of the target that is leaving and has died during the move. Without a replacement, the
// group may still need the voter that the move removes, and could not finish the move. A frozen
// group keeps its target.
func (p *plan) retarget(g uint32) {
	report, known := p.view.Groups[g]
	if !known || p.frozen[g] || !p.majority(report.Voters, func(key string) bool { return p.fresh(g, key) }) {
		return
	}
	for _, key := range p.targets[g] {
		var next []string
		why := "died"
		switch {
		case p.leaves(key) && (!contains(report.Voters, key) || !p.alive(key) && !sameSet(report.Voters, p.targets[g])):
			next, _ = p.replace(g, key)
			why = "is leaving"
		case !contains(report.Voters, key) && !p.alive(key):
			if to := p.bestTaker(g, without(p.staying(g), key)); to != "" {
				next = swapped(p.targets[g], key, to)
			}
		}
		if next != nil && p.majority(next, p.alive) {
			p.place(g, next, reason("%s %s while the group moves", key, why))
			return
		}
	}
}

func (p *plan) replaceLost(g uint32) ([]string, Reason) {
	for _, key := range p.targets[g] {
		if p.leaves(key) && !p.alive(key) {
			return p.replace(g, key)
		}
	}
	return nil, ""
}

func (p *plan) replaceLeaving(g uint32) ([]string, Reason) {
	for _, key := range p.targets[g] {
		if p.leaves(key) {
			return p.replace(g, key)
		}
	}
	return nil, ""
}

// staying returns the nodes of the target that are not leaving.
func (p *plan) staying(g uint32) []string {
	return slices.DeleteFunc(slices.Clone(p.targets[g]), p.leaves)
}

// replace returns the target without the node named by key, which is leaving. It adds a substitute
// unless the remaining nodes are enough.
func (p *plan) replace(g uint32, key string) ([]string, Reason) {
	target := p.targets[g]
	kept := p.staying(g)
	if len(kept) >= p.want(g) {
		if len(kept) == 0 { // a group needs at least one voter
			return nil, ""
		}
		return without(target, key), reason("%s is leaving, %d voters are enough", key, p.want(g))
	}
	if to := p.bestTaker(g, kept); to != "" {
		return swapped(target, key, to), reason("%s is leaving", key)
	}
	return nil, ""
}

// want returns the number of voters that a group should have: PlanSettings.Replicas, or fewer if
// there are not enough nodes. A draining node counts only for groups in which it is a voter.
func (p *plan) want(g uint32) int {
	n := p.active
	for _, key := range p.targets[g] {
		n += toInt(p.nodes[key].State == catalog.NodeDraining)
	}
	return min(n, p.settings.Replicas)
}

// grow adds a voter. To a group of one voter it adds all missing voters at once, because a group
// of two voters stops when it loses either.
func (p *plan) grow(g uint32) ([]string, Reason) {
	was := p.targets[g]
	target := slices.Clone(was)
	for len(target) < p.want(g) && (len(target) == len(was) || len(was) == 1) {
		to := p.bestTaker(g, target)
		if to == "" {
			break
		}
		target = append(target, to)
	}
	if len(target) == len(was) {
		return nil, ""
	}
	return target, reason("it has %d of %d voters", len(was), p.want(g))
}

// shrink removes a surplus voter. It prefers a voter on a draining node, and otherwise a voter in a
// crowded zone or on a node with many replicas.
func (p *plan) shrink(g uint32) ([]string, Reason) {
	target := p.targets[g]
	if len(target) <= p.want(g) || !p.sound(g) {
		return nil, ""
	}
	worst := slices.MinFunc(target, byFirst(
		func(key string) int { return -toInt(p.nodes[key].State == catalog.NodeDraining) },
		func(key string) int { return p.crowding(without(target, key)) },
		func(key string) int { return -p.load[key] },
		func(key string) int { return toInt(key == p.leaders[g]) },
	))
	return without(target, worst), reason("it has %d voters, %d are wanted", len(target), p.want(g))
}

// spread moves a voter out of a crowded zone.
func (p *plan) spread(g uint32) ([]string, Reason) {
	target := p.targets[g]
	if p.crowding(target) <= p.leastCrowding(len(target)) || !p.sound(g) {
		return nil, ""
	}
	from, to, least := "", "", p.crowding(target)
	for _, x := range target {
		if !p.takes(x) {
			continue // a voter on a draining node stays; replaceLeaving moves the voters of leaving nodes
		}
		y := p.bestTaker(g, without(target, x))
		if y == "" {
			continue
		}
		if c := p.crowding(swapped(target, x, y)); c < least || c == least && from != "" && p.load[x] > p.load[from] {
			from, to, least = x, y, c
		}
	}
	if from == "" {
		return nil, ""
	}
	return swapped(target, from, to), reason("%s is not the only voter in zone %q, zone %q has fewer", from, p.nodes[from].Zone, p.nodes[to].Zone)
}
