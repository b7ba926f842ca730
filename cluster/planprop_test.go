package cluster

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/raftfsm/catalog"
)

// Nodes join, die, return, and are wiped, drained and removed. An operator switches full replication of a keyspace on
// and off. A keyspace grows. Meanwhile the test makes plans, and carries their steps out in any order, late, or not at all.
// 1. Each plan keeps its rules (see mustKeepRules). 2. Once events stop, plans soon have no steps.
// 3. The cluster is then in the state that the comment of Plan promises.
func TestPlanInAClusterWhereThingsHappen(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSim(rt)
		var first []string
		for range rapid.IntRange(1, 5).Draw(rt, "nodes") {
			first = append(first, s.join(rapid.SampledFrom([]string{"", "x", "y", "z"}).Draw(rt, "zone"), "", 2))
		}
		s.apply(&catalog.Command{Place: &catalog.PlaceEntry{Target: first[:min(3, len(first))]}})
		s.create("first", rapid.IntRange(1, 6).Draw(rt, "shards"))
		s.tick()
		for round := range rapid.IntRange(0, 40).Draw(rt, "rounds") {
			if s.chance(35, "something happens") {
				s.happen()
			}
			if round == 5 {
				s.create("second", rapid.IntRange(1, 4).Draw(rt, "shards"))
			}
			steps := s.planned()
			if s.chance(20, "the plan is late") {
				s.happen()
				s.tick()
			}
			for _, step := range rapid.Permutation(steps).Draw(rt, "order") {
				if !s.chance(25, "the step fails") {
					s.carryOut(step)
				}
			}
			s.tick()
		}
		s.calmDown()
		s.mustConverge()
		s.mustBeAsPromised()
	})
}

// planned returns a plan that keeps its rules. Planning twice yields the same plan.
func (s *sim) planned() []Step {
	view := s.view()
	steps := Plan(view)
	if again := Plan(s.view()); !slices.EqualFunc(steps, again, func(a, b Step) bool { return a.String() == b.String() }) {
		s.t.Fatalf("one view, two plans: %v and %v", steps, again)
	}
	s.mustKeepRules(steps, newPlan(&view))
	return steps
}

// mustKeepRules checks the steps of a plan against the present cluster. p is a new plan from the
// view that yielded the steps.
func (s *sim) mustKeepRules(steps []Step, p *plan) {
	transferred, placed := map[uint32]bool{}, map[uint32]bool{}
	moving := 0
	for _, group := range s.numbers() {
		moving += toInt(s.groups[group].leader != "" && !sameSet(s.groups[group].voters, p.targets[group]) && !s.waits(group))
	}
	begun := 0
	for _, step := range steps {
		no := func(what string) { s.t.Fatalf("%s: %s\n%s", step, what, s) }
		if step.Why() == "" {
			no("without a reason")
		}
		if _, ok := step.(Transfer); !ok && p.mostDead() {
			if _, ok := step.(RaiseVersion); !ok {
				no("while most nodes are dead")
			}
		}
		switch step := step.(type) {
		case Place:
			if placed[step.Group] {
				no("placed twice")
			}
			placed[step.Group] = true
			begun += toInt(!p.light[step.Group] && sameSet(s.groups[step.Group].voters, step.Was))
			s.mustPlaceWell(step, p, no)
		case Transfer:
			group := s.groups[step.Group]
			if transferred[step.Group] || group.leader != step.From || !contains(group.voters, step.To) || !p.takes(step.To) || group.behind[step.To] {
				no("not one that can be made")
			}
			transferred[step.Group] = true
		case SetNodeState:
			if step.State != catalog.NodeLeaving || p.view.Dead[step.Node] < s.settings.ReplaceAfter || p.nodes[step.Node].State == catalog.NodeLeaving {
				no("the node is not lost")
			}
		case RemoveNode:
			if p.nodes[step.Node].State != catalog.NodeLeaving {
				no("the node is not leaving")
			}
			for _, g := range s.numbers() {
				if contains(s.groups[g].voters, step.Node) || contains(p.targets[g], step.Node) {
					no("the node holds a replica")
				}
			}
		}
	}
	if begun > 0 && moving+begun > s.settings.MovesMax {
		s.t.Fatalf("%d groups move, %d more are to: %v\n%s", moving, begun, steps, s)
	}
}

func (s *sim) mustPlaceWell(step Place, p *plan, no func(string)) {
	group := s.groups[step.Group]
	in := slices.DeleteFunc(slices.Clone(step.Target), func(key string) bool { return contains(step.Was, key) })
	out := slices.DeleteFunc(slices.Clone(step.Was), func(key string) bool { return contains(step.Target, key) })
	if len(in) > 1 && (len(step.Was) > 1 || len(out) > 0) || len(out) > 1 || len(in)+len(out) == 0 || len(step.Target) == 0 {
		no("not a change of one member")
	}
	if p.view.Catalog.Frozen(step.Group) {
		no("the group is frozen")
	}
	if !slices.Equal(step.Was, p.targets[step.Group]) {
		no("not upon the present target")
	}
	if group.leader == "" || !s.quorum(group.voters) {
		no("the group has no leader or majority")
	}
	for _, key := range in {
		if !p.takes(key) {
			no("to a node that takes nothing")
		}
	}
	if !s.quorum(step.Target) {
		no("most of the target is dead")
	}
	settled := sameSet(group.voters, step.Was)
	for _, key := range out {
		leaving := p.nodes[key].State == catalog.NodeLeaving || !p.alive(key) && !contains(group.voters, key)
		if !leaving && !p.alive(key) {
			no("off a node that may come back")
		}
		if !settled && (!leaving || contains(group.voters, key) && p.alive(key)) {
			no("the group has not reached its target")
		}
		if !leaving && len(in) == 1 && p.crowding(step.Target) > p.crowding(step.Was) {
			no("into a crowded zone")
		}
		if !leaving && len(in) == 0 && len(step.Target) < p.want(step.Group) {
			no("too few voters are left")
		}
	}
	if len(out) == 0 && !settled {
		no("the group has not reached its target")
	}
	// If the step adds a node, no other node was in a less crowded zone.
	if len(in) == 1 {
		stay := slices.DeleteFunc(without(step.Target, in[0]), func(key string) bool { return p.nodes[key].State == catalog.NodeLeaving })
		for _, other := range p.takers {
			if !contains(step.Was, other) && p.crowding(append(slices.Clone(stay), other)) < p.crowding(append(slices.Clone(stay), in[0])) {
				no("a less crowded zone than that of " + other)
			}
		}
	}
}

// calmDown ends the events, and the splits that are under way. At most one node stays dead, and no group
// needs it.
func (s *sim) calmDown() {
	s.calm = true
	if k := s.catalog.Keyspaces["first"]; k.Growth != nil {
		for _, parent := range k.Groups {
			s.endSplit(k.Growth.Attempts[parent])
		}
	}
	s.begin()
	keys := slices.Sorted(maps.Keys(s.dead))
	last := ""
	if len(keys) > 0 && s.chance(50, "one stays dead") {
		last = s.pick(keys, "stays dead")
	}
	if contains(keys, s.wiped) {
		last = s.wiped
	}
	for _, key := range keys {
		if key != last {
			s.revive(key)
		}
	}
	for _, g := range s.numbers() {
		if last != "" && last != s.wiped && (!s.quorum(s.groups[g].voters) || !s.quorum(s.catalog.Groups[g].Target)) {
			s.revive(last)
			last = ""
		}
	}
	view := s.view()
	if p := newPlan(&view); len(p.takers) == 0 || p.mostDead() {
		if last != "" {
			s.revive(last)
		}
		s.join("x", "", 3)
	}
}

// mustConverge carries out plans until there are no steps and no moves for longer than ReplaceAfter.
func (s *sim) mustConverge() {
	idle := time.Duration(0)
	var last []Step
	for range 4000 {
		steps := s.planned()
		if len(steps) > 0 {
			idle, last = 0, steps
		}
		for _, step := range steps {
			s.carryOut(step)
		}
		if idle += time.Second; idle > 2*s.settings.ReplaceAfter && s.still() {
			return
		}
		s.tick()
	}
	s.t.Fatalf("no end of it; the last plan is %v\n%s", last, s)
}

// still reports whether every group matches its target, or waits for a dead node.
func (s *sim) still() bool {
	for _, g := range s.numbers() {
		group := s.groups[g]
		late := func(key string) bool { return s.alive(key) && group.behind[key] }
		reached := sameSet(group.voters, s.catalog.Groups[g].Target) || s.waits(g)
		if group.leader == "" || slices.ContainsFunc(group.voters, late) || !reached {
			return false
		}
	}
	return true
}

// waits reports whether a group waits for a dead node to join.
func (s *sim) waits(g uint32) bool {
	return slices.ContainsFunc(s.catalog.Groups[g].Target, func(key string) bool {
		return !contains(s.groups[g].voters, key) && !s.alive(key)
	})
}

func (s *sim) mustBeAsPromised() {
	view := s.view()
	p := newPlan(&view)
	no := func(format string, args ...any) {
		s.t.Helper()
		s.t.Fatalf(format+"\n%s", append(args, s)...)
	}
	for _, key := range p.keys {
		if !p.alive(key) && len(p.takers) >= s.settings.Replicas {
			no("node %s is not replaced", key)
		}
	}
	if len(s.dead) > 0 {
		return // the group waits for a node that may return
	}
	for _, key := range p.keys {
		if p.nodes[key].State == catalog.NodeLeaving {
			no("node %s has not left", key)
		}
	}
	for _, g := range p.groups {
		if len(p.targets[g]) != p.want(g) {
			no("group %d has %d voters of %d", g, len(p.targets[g]), p.want(g))
		}
		if !p.takes(p.leaders[g]) && slices.ContainsFunc(p.targets[g], p.takes) {
			no("group %d is led by %s", g, p.leaders[g])
		}
		for _, from := range p.targets[g] {
			for _, to := range p.takers {
				better := !contains(p.targets[g], to) && p.takes(from) && p.crowding(swapped(p.targets[g], from, to)) < p.crowding(p.targets[g])
				if better {
					no("group %d were better at %s than at %s", g, to, from)
				}
			}
		}
	}
	zones := map[string]bool{}
	for _, key := range p.keys {
		zones[p.nodes[key].Zone] = true
	}
	if takers := p.takers; len(zones) == 1 && uneven(takers, p.load) {
		no("replicas %v", p.load)
	}
	if c := view.Catalog; c.VersionMax() != c.ClusterVersion {
		no("cluster version %d, all speak %d", c.ClusterVersion, c.VersionMax())
	}
}
