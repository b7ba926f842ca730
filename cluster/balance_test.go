package cluster

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/leadership"
)

// quiet returns a healthy cluster: all nodes are alive and active, and each group matches its target, whose first node
// is the leader.
func quiet(zones []string, targets [][]string) View {
	c := &catalog.View{
		NextGroup: uint32(len(targets) + 1), ClusterVersion: 1,
		Keyspaces: map[string]catalog.Keyspace{"k": {Name: "k", Groups: groupsFrom(1, len(targets))}},
		Nodes:     map[string]catalog.Node{}, Groups: map[uint32]catalog.Placement{},
	}
	for i, zone := range zones {
		key := nodeKey(i)
		c.Nodes[key] = catalog.Node{Key: key, Name: key, Zone: zone, VersionMax: 1, State: catalog.NodeActive}
	}
	v := View{
		Catalog: c, Dead: map[string]time.Duration{}, Groups: map[uint32]leadership.LeaderView{},
		Settings: PlanSettings{Replicas: 3, ReplaceAfter: time.Minute, MovesMax: 2},
	}
	for i, target := range targets {
		settle(&v, uint32(i+1), target, target[0])
	}
	return v
}

// groupsFrom returns n consecutive group numbers.
func groupsFrom(first uint32, n int) []uint32 {
	groups := make([]uint32, n)
	for i := range groups {
		groups[i] = first + uint32(i)
	}
	return groups
}

func nodeKey(i int) string { return string(rune('a' + i)) }

// settle puts a group on the nodes of target, all voters caught up.
func settle(v *View, g uint32, target []string, leader string) {
	v.Catalog.Groups[g] = catalog.Placement{Initial: target, Target: target}
	v.Groups[g] = leadership.LeaderView{Leader: leader, Voters: target, CaughtUp: target}
}

// enact carries out steps completely.
func enact(v *View, steps []Step) {
	for _, step := range steps {
		switch step := step.(type) {
		case Place:
			leader := v.Groups[step.Group].Leader
			if !contains(step.Target, leader) {
				leader = step.Target[0]
			}
			settle(v, step.Group, step.Target, leader)
		case Transfer:
			settle(v, step.Group, v.Catalog.Groups[step.Group].Target, step.To)
		case SetNodeState:
			node := v.Catalog.Nodes[step.Node]
			node.State = step.State
			v.Catalog.Nodes[step.Node] = node
		case RemoveNode:
			delete(v.Catalog.Nodes, step.Node)
		case RaiseVersion:
			v.Catalog.ClusterVersion = step.Version
		}
	}
}

// planOut plans and enacts until a plan is empty, and returns all steps.
func planOut(t rapid.TB, v *View) []Step {
	t.Helper()
	var all []Step
	for range 1000 {
		steps := Plan(*v)
		if len(steps) == 0 {
			return all
		}
		all = append(all, steps...)
		enact(v, steps)
	}
	t.Fatalf("no end of it: %v", all[len(all)-10:])
	return nil
}

func squares(load map[string]int) int {
	sum := 0
	for _, n := range load {
		sum += n * n
	}
	return sum
}

// subsets returns all sets of n keys.
func subsets(keys []string, n int) [][]string {
	if n == 0 {
		return [][]string{nil}
	}
	var all [][]string
	for i, key := range keys {
		for _, rest := range subsets(keys[i+1:], n-1) {
			all = append(all, append([]string{key}, rest...))
		}
	}
	return all
}

// leastSquares tries every choice of one option for each group, and returns the least sum of squared loads. Each option adds one
// to the load of its nodes.
func leastSquares(options [][][]string, load map[string]int) int {
	if len(options) == 0 {
		return squares(load)
	}
	best := 1 << 30
	for _, option := range options[0] {
		for _, key := range option {
			load[key]++
		}
		best = min(best, leastSquares(options[1:], load))
		for _, key := range option {
			load[key]--
		}
	}
	return best
}

// Plans reach an optimum from any placement. The test tries all placements to verify that 1. each
// group is in as many zones as possible; 2. given that, replicas are as even as possible;
// 3. given that placement, leaderships are as even as possible.
func TestPlansReachTheBestThereIs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		zones := rapid.SliceOfN(rapid.SampledFrom([]string{"x", "x", "y", "z"}), 3, 5).Draw(rt, "zones")
		keys := make([]string, len(zones))
		for i := range keys {
			keys[i] = nodeKey(i)
		}
		target := rapid.Custom(func(t *rapid.T) []string { return rapid.Permutation(keys).Draw(t, "keys")[:3] })
		v := quiet(zones, rapid.SliceOfN(target, 1, 4).Draw(rt, "targets"))
		planOut(rt, &v)

		p := newPlan(&v)
		all := subsets(keys, 3)
		least := p.crowding(slices.MinFunc(all, func(a, b []string) int { return p.crowding(a) - p.crowding(b) }))
		spread := slices.DeleteFunc(all, func(keys []string) bool { return p.crowding(keys) > least })
		for _, g := range p.groups {
			if p.crowding(p.targets[g]) > least {
				rt.Fatalf("group %d is at %v in zones %v", g, p.targets[g], zones)
			}
		}
		if best := leastSquares(slices.Repeat([][][]string{spread}, len(p.groups)), map[string]int{}); squares(p.load) > best {
			rt.Fatalf("replicas %v in zones %v: squares %d, the best are %d", p.load, zones, squares(p.load), best)
		}
		var leaders [][][]string
		for _, g := range p.groups {
			leaders = append(leaders, subsets(p.targets[g], 1))
		}
		if best := leastSquares(leaders, map[string]int{}); squares(p.leads) > best {
			rt.Fatalf("leaders %v of %v: squares %d, the best are %d", p.leads, p.targets, squares(p.leads), best)
		}
	})
}

// On three nodes, the leaders of each keyspace become even, and then the leaders of all keyspaces
// together. No transfer makes a keyspace less even. A transfer that leaves its keyspace as even as
// it was makes all keyspaces together more even.
func TestLeadersAreEvenInEachKeyspace(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		keys := []string{"a", "b", "c"}
		v := quiet([]string{"", "", ""}, nil)
		v.Catalog.Keyspaces = map[string]catalog.Keyspace{}
		groups := rapid.Permutation(groupsFrom(1, 32)).Draw(rt, "groups") // the groups of one keyspace need not have consecutive numbers
		for i := range rapid.IntRange(1, 4).Draw(rt, "keyspaces") {
			k := catalog.Keyspace{Name: fmt.Sprintf("k%d", i)}
			shards := rapid.IntRange(1, 8).Draw(rt, k.Name)
			k.Groups, groups = groups[:shards], groups[shards:]
			for _, g := range k.Groups {
				settle(&v, g, keys, rapid.SampledFrom(keys).Draw(rt, "leader"))
			}
			v.Catalog.Keyspaces[k.Name] = k
		}
		for _, step := range planOut(rt, clonedLeaders(v)) {
			transfer, ok := step.(Transfer)
			if !ok {
				rt.Fatalf("not only transfers: %v", step)
			}
			before := newPlan(&v)
			enact(&v, []Step{step})
			after := newPlan(&v)
			within := 0
			for _, k := range v.Catalog.Keyspaces {
				within += squares(after.leadsOf(k)) - squares(before.leadsOf(k))
			}
			if within > 0 || within == 0 && squares(after.leads) >= squares(before.leads) {
				rt.Fatalf("%s: squares of keyspaces %+d, leaders %v before, %v after", transfer, within, before.leads, after.leads)
			}
		}
		p := newPlan(&v)
		for _, k := range v.Catalog.Keyspaces {
			if leads := p.leadsOf(k); uneven(keys, leads) {
				rt.Fatalf("leaders of %s: %v", k.Name, leads)
			}
		}
		if uneven(keys, p.leads) {
			rt.Fatalf("leaders of all: %v", p.leads)
		}
	})
}

// clonedLeaders returns a view whose leaders may change without changing v.
func clonedLeaders(v View) *View {
	v.Groups = maps.Clone(v.Groups)
	return &v
}

// After Initial has placed the first keyspace, a plan has no steps, whatever the zones. After it
// has placed later keyspaces on nodes without zones, no replica has to move, but leaderships of
// older shards may move.
func TestInitialLeavesNothingToDo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		zones := rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", "z"}), 1, 7).Draw(rt, "zones")
		if rapid.Bool().Draw(rt, "one zone") {
			zones = make([]string, len(zones))
		}
		v := quiet(zones, nil)
		for range rapid.IntRange(1, 3).Draw(rt, "keyspaces") {
			replicas, err := Initial(v, rapid.IntRange(1, 16).Draw(rt, "shards"))
			if err != nil {
				rt.Fatal(err)
			}
			first := v.Catalog.NextGroup
			for i, keys := range replicas {
				if len(keys) != min(3, len(zones)) {
					rt.Fatalf("shard %d is at %v", i, keys)
				}
				settle(&v, first+uint32(i), keys, keys[0])
			}
			v.Catalog.NextGroup += uint32(len(replicas))
			name := fmt.Sprintf("k%d", first)
			v.Catalog.Keyspaces[name] = catalog.Keyspace{Name: name, Groups: groupsFrom(first, len(replicas))}
			steps := planOut(rt, &v)
			places := slices.ContainsFunc(steps, func(s Step) bool { _, is := s.(Place); return is })
			if len(steps) > 0 && first == 1 || places && zones[0] == "" {
				rt.Fatalf("left to do: %v", steps)
			}
		}
	})
}

func TestInitialOnNodesThatTakeReplicas(t *testing.T) {
	v := quiet([]string{"x", "y", "z", "x", "y"}, nil)
	v.Dead["a"] = time.Second
	setNode(&v, "b", in(catalog.NodeDraining))
	setNode(&v, "c", in(catalog.NodeLeaving))
	for replicas, want := range map[int][]string{2: {"d", "e"}, 3: {"a", "d", "e"}} { // three replicas need node a, which is dead but may return soon
		v.Settings.Replicas = replicas
		got, err := Initial(v, 3)
		if err != nil || len(got) != 3 {
			t.Fatalf("%v, %v", got, err)
		}
		for _, keys := range got {
			if !sameSet(keys, want) {
				t.Errorf("a shard at %v, not %v", keys, want)
			}
		}
	}
	for _, key := range []string{"a", "d", "e"} {
		setNode(&v, key, in(catalog.NodeDraining))
	}
	if got, err := Initial(v, 3); err == nil {
		t.Errorf("shards at %v, where nobody is", got)
	}
}

// A joining node gets its share with the fewest possible moves, and the other nodes exchange nothing among themselves.
func TestAJoinMovesNoMoreThanItsShare(t *testing.T) {
	for _, nodes := range []int{3, 4, 5} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			v := quiet(slices.Repeat([]string{""}, nodes), nil)
			const shards = 20
			replicas, err := Initial(v, shards)
			if err != nil {
				t.Fatal(err)
			}
			for i, keys := range replicas {
				settle(&v, uint32(i+1), keys, keys[0])
			}
			v.Catalog.Keyspaces["k"] = catalog.Keyspace{Name: "k", Groups: groupsFrom(1, shards)}
			joined := nodeKey(nodes)
			v.Catalog.Nodes[joined] = catalog.Node{Key: joined, Name: joined, VersionMax: 1, State: catalog.NodeActive}
			moves := 0
			for _, step := range planOut(t, &v) {
				if s, ok := step.(Place); ok {
					moves++
					if !contains(s.Target, joined) || contains(s.Was, joined) {
						t.Errorf("%s", s)
					}
				}
			}
			if share := 3 * shards / (nodes + 1); moves != share {
				t.Errorf("%d moves, the share is %d", moves, share)
			}
		})
	}
}

// A joining node gets its share of the replicas and of the leaders of each keyspace.
func TestAJoinTakesItsShareOfEachKeyspace(t *testing.T) {
	keys, joined := []string{"a", "b", "c"}, "d"
	v := quiet(slices.Repeat([]string{""}, len(keys)), nil)
	v.Catalog.Keyspaces = map[string]catalog.Keyspace{}
	for i, name := range []string{"feed", "posts", "unread", "users"} {
		k := catalog.Keyspace{Name: name}
		for shard := range 7 {
			k.Groups = append(k.Groups, uint32(1+4*shard+i)) // not consecutive
			settle(&v, k.Groups[shard], keys, keys[shard%3])
		}
		v.Catalog.Keyspaces[name] = k
	}
	v.Catalog.Nodes[joined] = catalog.Node{Key: joined, Name: joined, VersionMax: 1, State: catalog.NodeActive}
	planOut(t, &v)

	keys = append(keys, joined)
	p := newPlan(&v)
	for _, k := range v.Catalog.Keyspaces {
		held := map[string]int{}
		for _, g := range k.Groups {
			for _, key := range p.targets[g] {
				held[key]++
			}
		}
		if leads := p.leadsOf(k); uneven(keys, held) || uneven(keys, leads) {
			t.Errorf("%s: replicas %v, leaders %v", k.Name, held, leads)
		}
	}
	if uneven(keys, p.load) || uneven(keys, p.leads) {
		t.Errorf("of all keyspaces: replicas %v, leaders %v", p.load, p.leads)
	}
}

// A chain: node a has three replicas, and node b has one. No group can move from a to b directly,
// because each group of a already has a replica on b or in b's zone. So one replica moves from a to
// c, and another from c to b.
func TestReplicasMoveOverAThirdNode(t *testing.T) {
	load := map[string]int{"a": 3, "b": 1, "c": 2}
	e := pairs{}
	e.add("a", "c", 1)
	e.add("c", "b", 2)
	keys := slices.Sorted(maps.Keys(load))
	var moved []shift
	for range 10 {
		s, ok := nextShift(load, e.edges(keys))
		if !ok {
			break
		}
		moved = append(moved, s)
		load[s.from]--
		load[s.to]++
		delete(e, [2]string{s.from, s.to})
	}
	want := []shift{{"c", "b", 2, false}, {"a", "c", 1, true}}
	if !slices.Equal(moved, want) {
		t.Errorf("shifts %v, want %v", moved, want)
	}
}
