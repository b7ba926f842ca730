package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/leadership"
)

// abc returns a cluster in three zones. Each group has voters on a, b and c, and the three nodes
// lead the groups in turn.
func abc(nodes int, groups int) View {
	v := quiet([]string{"x", "y", "z", "x", "y", "z"}[:nodes], slices.Repeat([][]string{{"a", "b", "c"}}, groups))
	for i := range groups {
		settle(&v, uint32(i+1), []string{"a", "b", "c"}, nodeKey(i%3))
	}
	return v
}

// chained returns a placement where a has two replicas and d has none. Each group of a also has a
// replica in d's zone. So a replica of a can only move to c, and then a replica of c can move to d.
func chained() View {
	v := quiet([]string{"x", "y", "x", "y", "z", "y"}, [][]string{{"b", "a"}, {"c", "e"}, {"a", "f"}})
	v.Settings.Replicas = 2
	return v
}

func setNode(v *View, key string, change func(*catalog.Node)) {
	node := v.Catalog.Nodes[key]
	change(&node)
	v.Catalog.Nodes[key] = node
}

func in(state catalog.NodeState) func(*catalog.Node) {
	return func(n *catalog.Node) { n.State = state }
}

func TestPlan(t *testing.T) {
	const late = 2 * time.Minute // longer than ReplaceAfter
	for _, test := range []struct {
		name   string
		view   View
		change func(v *View)
		want   []string
	}{
		{"all is well", abc(3, 3), func(*View) {}, nil},
		{"a node dead for a while", abc(4, 1), func(v *View) { v.Dead["c"] = time.Second }, nil},
		{"a node dead for long", abc(4, 1), func(v *View) { v.Dead["c"] = late },
			[]string{"set node c to leaving: it has been dead for 2m0s"}},
		{"a drained node dead for long", abc(4, 1), func(v *View) { v.Dead["c"] = late; setNode(v, "c", in(catalog.NodeDraining)) },
			[]string{"set node c to leaving: it has been dead for 2m0s"}},
		{"a node dead for long that none could replace", abc(3, 1), func(v *View) { v.Dead["c"] = late }, nil},
		{"half of the nodes dead", abc(6, 1), func(v *View) { v.Dead["d"], v.Dead["e"], v.Dead["f"] = late, late, late }, nil},
		{"a lost node is replaced", abc(4, 1), func(v *View) { v.Dead["c"] = late; setNode(v, "c", in(catalog.NodeLeaving)) },
			[]string{"place group 1 (k/0) +d -c: c is leaving"}},
		{"in the zone that has none", abc(6, 1), func(v *View) { v.Dead["c"] = late; setNode(v, "c", in(catalog.NodeLeaving)) },
			[]string{"place group 1 (k/0) +f -c: c is leaving"}},
		{"a wiped node, the new one takes its place", abc(4, 1), func(v *View) {
			setNode(v, "d", func(n *catalog.Node) { n.Name, n.Zone = "c", "z" })
			setNode(v, "c", in(catalog.NodeLeaving))
			v.Dead["c"] = time.Second
		}, []string{"place group 1 (k/0) +d -c: c is leaving"}},
		{"a node is removed, its groups two at a time", abc(4, 3), func(v *View) { setNode(v, "b", in(catalog.NodeLeaving)) },
			[]string{
				"place group 1 (k/0) +d -b: b is leaving",
				"place group 2 (k/1) +d -b: b is leaving",
				"transfer group 2 (k/1) from b to a: b is leaving",
			}},
		{"no other in its place", abc(3, 1), func(v *View) { setNode(v, "c", in(catalog.NodeLeaving)) },
			[]string{"place group 1 (k/0) -c: c is leaving, 2 voters are enough"}},
		{"not if most of the rest is dead", abc(4, 1), func(v *View) {
			setNode(v, "c", in(catalog.NodeLeaving))
			setNode(v, "d", in(catalog.NodeDraining))
			v.Dead["b"] = time.Second
		}, nil},
		{"an empty node goes", abc(4, 1), func(v *View) { setNode(v, "d", in(catalog.NodeLeaving)) },
			[]string{"remove node d: it is leaving and holds no replica"}},
		{"not while a configuration has it", abc(4, 1), func(v *View) {
			setNode(v, "d", in(catalog.NodeLeaving))
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c", "d"}, CaughtUp: []string{"a", "b", "c", "d"}}
		}, nil},
		{"nor while one has it as non-voter", abc(4, 1), func(v *View) {
			setNode(v, "d", in(catalog.NodeLeaving))
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "b", "c"}}
		}, nil},
		{"but for the catalog's, which has all nodes", abc(4, 1), func(v *View) {
			setNode(v, "d", in(catalog.NodeLeaving))
			settle(v, catalog.Group, []string{"a", "b", "c"}, "a")
			v.Groups[catalog.Group] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "b", "c"}}
		}, []string{"remove node d: it is leaving and holds no replica"}},
		{"nor for the board's, which has all nodes and is no load", abc(4, 4), func(v *View) {
			setNode(v, "d", in(catalog.NodeLeaving))
			v.Catalog.Keyspaces["k"] = catalog.Keyspace{Name: "k", Kind: "board", Groups: groupsFrom(1, 4)}
			for g := range uint32(4) {
				v.Groups[g+1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "b", "c"}}
			}
		}, []string{"remove node d: it is leaving and holds no replica"}},
		{"nor for those of a keyspace that is everywhere", abc(4, 1), func(v *View) {
			setNode(v, "d", in(catalog.NodeLeaving))
			everywhere(v)
		}, []string{"remove node d: it is leaving and holds no replica"}},
		{"which are a load and evened all the same", abc(4, 4), func(v *View) {
			setNode(v, "d", func(n *catalog.Node) { n.Zone = "z" })
			everywhere(v)
		}, []string{
			"place group 1 (k/0) +d -c: c has 4 replicas, d has 0",
			"place group 2 (k/1) +d -c: c has 3 replicas, d has 1",
		}},
		{"not while a group is without a leader", abc(4, 2), func(v *View) {
			setNode(v, "d", in(catalog.NodeLeaving))
			delete(v.Groups, 2)
		}, nil},
		{"two nodes become three", quiet([]string{"", "", ""}, [][]string{{"a", "b"}}), func(*View) {},
			[]string{"place group 1 (k/0) +c: it has 2 of 3 voters"}},
		{"one voter gets two others at once", abc(3, 1), func(v *View) { settle(v, 1, []string{"b"}, "b") },
			[]string{"place group 1 (k/0) +a +c: it has 1 of 3 voters"}},
		{"a new cluster waits for its nodes", abc(2, 1), func(v *View) {
			settle(v, 1, []string{"b"}, "b")
			v.Catalog.Keyspaces, v.Settings.NodesWanted = nil, 3
		}, nil},
		{"and until all voters of its catalog are alive", abc(3, 1), func(v *View) {
			settle(v, 1, []string{"b"}, "b")
			v.Catalog.Keyspaces, v.Settings.NodesWanted = nil, 3
			v.Dead = map[string]time.Duration{"c": time.Second}
		}, nil},
		{"but for no further node", abc(4, 1), func(v *View) {
			settle(v, 1, []string{"b"}, "b")
			v.Catalog.Keyspaces, v.Settings.NodesWanted = nil, 4
			v.Dead = map[string]time.Duration{"d": time.Second}
		}, []string{"place group 1 () +a +c: it has 1 of 3 voters"}},
		{"too many voters", quiet([]string{"x", "y", "z", "x"}, [][]string{{"a", "b", "c", "d"}}), func(*View) {},
			[]string{"place group 1 (k/0) -d: it has 4 voters, 3 are wanted"}},
		{"a crowded zone", quiet([]string{"x", "x", "y", "z"}, [][]string{{"a", "b", "c"}}), func(*View) {},
			[]string{`place group 1 (k/0) +d -a: a is not the only voter in zone "x", zone "z" has fewer`}},
		{"not while a voter is behind", quiet([]string{"x", "x", "y", "z"}, [][]string{{"a", "b", "c"}}), func(v *View) {
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, CaughtUp: []string{"a", "b"}}
		}, nil},
		{"a crowded zone of the catalog", quiet([]string{"x", "x", "y", "z"}, nil), func(v *View) {
			settle(v, catalog.Group, []string{"a", "b", "c"}, "a")
			v.Groups[catalog.Group] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "b", "c"}}
		}, []string{`place group 0 (meta) +d -a: a is not the only voter in zone "x", zone "z" has fewer`}},
		{"replicas are evened", abc(4, 4), func(v *View) { setNode(v, "d", func(n *catalog.Node) { n.Zone = "z" }) },
			[]string{
				"place group 1 (k/0) +d -c: c has 4 replicas, d has 0",
				"place group 2 (k/1) +d -c: c has 3 replicas, d has 1",
			}},
		{"first those that lead elsewhere", abc(4, 4), func(v *View) {
			setNode(v, "d", func(n *catalog.Node) { n.Zone = "z" })
			for g, leader := range map[uint32]string{1: "c", 2: "c", 3: "a", 4: "b"} {
				settle(v, g, []string{"a", "b", "c"}, leader)
			}
		}, []string{
			"place group 3 (k/2) +d -c: c has 4 replicas, d has 0",
			"place group 4 (k/3) +d -c: c has 3 replicas, d has 1",
		}},
		{"replicas are evened over a third node", chained(), func(*View) {},
			[]string{"place group 2 (k/1) +d -c: c has 1 replicas, d has 0, which makes room for others"}},
		{"only while nothing else moves", chained(), func(v *View) {
			settle(v, catalog.Group, []string{"a", "e"}, "e")
			v.Groups[catalog.Group] = leadership.LeaderView{Leader: "e", Voters: []string{"c", "e"}, NonVoters: []string{"a"}, CaughtUp: []string{"c", "e"}}
		}, nil},
		{"leaders are evened over a third node", quiet([]string{"x", "y", "x"}, [][]string{{"a", "b"}, {"a", "b"}, {"b", "c"}}), func(v *View) {
			v.Settings.Replicas = 2
		}, []string{"transfer group 3 (k/2) from b to c: b leads 1 shards of k, c leads 0"}},
		{"not onto a node that is drained", abc(4, 4), func(v *View) { setNode(v, "d", in(catalog.NodeDraining)) }, nil},
		{"a drained node leads nothing and keeps its replicas", abc(4, 1), func(v *View) { setNode(v, "a", in(catalog.NodeDraining)) },
			[]string{"transfer group 1 (k/0) from a to b: a is draining"}},
		{"not to one that is behind", abc(4, 1), func(v *View) {
			setNode(v, "a", in(catalog.NodeDraining))
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, CaughtUp: []string{"c"}}
		}, []string{"transfer group 1 (k/0) from a to c: a is draining"}},
		{"leaders are evened", abc(3, 3), func(v *View) {
			for g := range uint32(3) {
				settle(v, g+1, []string{"a", "b", "c"}, "a")
			}
		}, []string{
			"transfer group 1 (k/0) from a to b: a leads 3 shards of k, b leads 0",
			"transfer group 2 (k/1) from a to c: a leads 2 shards of k, c leads 0",
		}},
		{"not while a group has no leader", abc(3, 4), func(v *View) {
			for g := range uint32(3) {
				settle(v, g+1, []string{"a", "b", "c"}, "a")
			}
			delete(v.Groups, 4)
		}, nil},
		{"a move goes on and nothing else in its group", quiet([]string{"x", "y", "z", "x"}, [][]string{{"a", "b", "d"}}), func(v *View) {
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "b", "c"}}
			setNode(v, "b", in(catalog.NodeLeaving))
		}, nil},
		{"a move to a node that leaves ends elsewhere", quiet([]string{"x", "y", "z", "x"}, [][]string{{"a", "b", "d"}}), func(v *View) {
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "b", "c"}}
			setNode(v, "d", in(catalog.NodeLeaving))
		}, []string{"place group 1 (k/0) +c -d: d is leaving while the group moves"}},
		{"best where it came from", quiet([]string{"x", "y", "z", "x", "z"}, [][]string{{"a", "b", "d"}}), func(v *View) {
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "e"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "b", "e"}}
			setNode(v, "d", in(catalog.NodeLeaving))
		}, []string{"place group 1 (k/0) +e -d: d is leaving while the group moves"}},
		{"a move to a node that dies ends elsewhere", quiet([]string{"x", "y", "z", "x", "z"}, [][]string{{"a", "b", "d"}}), func(v *View) {
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "b", "c"}}
			setNode(v, "c", in(catalog.NodeLeaving))
			v.Dead["d"] = time.Second
		}, []string{"place group 1 (k/0) +e -d: d died while the group moves"}},
		{"best back where it came from", quiet([]string{"x", "y", "z", "x", "z"}, [][]string{{"a", "b", "d"}}), func(v *View) {
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "e"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "b", "e"}}
			v.Dead["d"] = time.Second
		}, []string{"place group 1 (k/0) +e -d: d died while the group moves"}},
		{"or waits for it if there is no other", quiet([]string{"x", "y", "z", "x"}, [][]string{{"a", "b", "d"}}), func(v *View) {
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "b", "c"}}
			setNode(v, "c", in(catalog.NodeLeaving))
			v.Dead["d"] = time.Second
		}, nil},
		{"a voter that is lost in a move is replaced, as the other may be needed", quiet([]string{"x", "y", "z", "x", "z"}, [][]string{{"a", "b"}}), func(v *View) {
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, CaughtUp: []string{"a", "c"}}
			setNode(v, "b", in(catalog.NodeLeaving))
			setNode(v, "c", in(catalog.NodeLeaving))
			v.Dead["b"] = time.Second
		}, []string{"place group 1 (k/0) +e -b: b is leaving while the group moves"}},
		{"the catalog's group waits for no other", abc(4, 2), func(v *View) {
			v.Settings.MovesMax = 1
			settle(v, catalog.Group, []string{"a", "b", "c"}, "a")
			v.Catalog.Groups[1] = catalog.Placement{Target: []string{"a", "b", "d"}}
			setNode(v, "c", in(catalog.NodeLeaving))
			v.Dead["c"] = time.Second
		}, []string{"place group 0 (meta) +d -c: c is leaving"}},
		{"not if most of what is left is dead", quiet([]string{"x", "y", "z", "x", "z"}, [][]string{{"a", "b", "d"}}), func(v *View) {
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "c"}}
			v.Dead["b"] = time.Second
			setNode(v, "c", in(catalog.NodeDraining))
			setNode(v, "d", in(catalog.NodeLeaving))
			setNode(v, "e", in(catalog.NodeDraining))
		}, nil},
		{"a move that waits for a dead node holds up no other", abc(6, 3), func(v *View) {
			v.Settings.MovesMax = 1
			settle(v, 1, []string{"a", "c", "d"}, "a")
			v.Catalog.Groups[1] = catalog.Placement{Target: []string{"a", "d", "f"}}
			v.Dead["f"] = time.Second
			setNode(v, "b", in(catalog.NodeDraining))
			setNode(v, "e", in(catalog.NodeDraining))
			setNode(v, "c", in(catalog.NodeLeaving))
		}, []string{
			"place group 2 (k/1) +d -c: c is leaving",
			"transfer group 2 (k/1) from b to a: b is draining",
			"transfer group 3 (k/2) from c to a: c is leaving",
		}},
		{"a frozen group and its child keep their targets", abc(4, 2), func(v *View) {
			setNode(v, "c", in(catalog.NodeLeaving))
			v.Dead["c"] = time.Second
			splitting(v, 4)
		}, []string{"place group 2 (k/1) +d -c: c is leaving"}},
		{"even if the node that joins is dead", quiet([]string{"x", "y", "z", "x", "z"}, [][]string{{"a", "b", "d"}}), func(v *View) {
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "b", "c"}}
			v.Dead["d"] = time.Second
			splitting(v, 4)
		}, nil},
		{"a frozen group that moves holds up another move", quiet([]string{"x", "y", "z", "x"}, [][]string{{"a", "b", "d"}, {"b", "a", "c"}}), func(v *View) {
			v.Groups[1] = leadership.LeaderView{Leader: "a", Voters: []string{"a", "b", "c"}, NonVoters: []string{"d"}, CaughtUp: []string{"a", "b", "c"}}
			setNode(v, "c", in(catalog.NodeLeaving))
			v.Settings.MovesMax = 1
			splitting(v, 4)
		}, nil},
		{"a child without a leader does not", abc(4, 2), func(v *View) {
			setNode(v, "c", in(catalog.NodeLeaving))
			v.Settings.MovesMax = 1
			splitting(v, 4)
			delete(v.Groups, 4)
		}, []string{"place group 2 (k/1) +d -c: c is leaving"}},
		{"children are no load", quiet(make([]string, 6), [][]string{{"a", "b", "c"}, {"b", "c", "a"}, {"d", "e", "f"}, {"e", "f", "d"}}), func(v *View) {
			splitting(v, 6, 7, 8)
		}, nil},
		{"until the growth ends", quiet(make([]string, 6), [][]string{{"a", "b", "c"}, {"b", "c", "a"}, {"d", "e", "f"}, {"e", "f", "d"}}), func(v *View) {
			splitting(v, 6, 7, 8)
			v.Catalog.Keyspaces["k"].Growth.Attempts[1] = catalog.Attempt{Number: 5, Children: []uint32{6, 7, 8}}
		}, nil},
		{"a draining node hands frozen groups over", abc(3, 2), func(v *View) {
			setNode(v, "a", in(catalog.NodeDraining))
			splitting(v, 4)
		}, []string{
			"transfer group 1 (k/0) from a to c: a is draining",
			"transfer group 4 (k/2) from a to b: a is draining",
		}},
		{"all speak the next version", abc(3, 1), func(v *View) {
			for _, key := range []string{"a", "b", "c"} {
				setNode(v, key, func(n *catalog.Node) { n.VersionMax = 3 })
			}
		}, []string{"raise cluster version to 2: all 3 nodes speak it"}},
		{"the cluster has not begun", abc(3, 1), func(v *View) {
			for _, key := range []string{"a", "b", "c"} {
				setNode(v, key, func(n *catalog.Node) { n.VersionMax = 3 })
			}
			v.Catalog.Keyspaces, v.Catalog.Groups, v.Groups = nil, nil, nil
		}, nil},
		{"all but one do", abc(3, 1), func(v *View) {
			setNode(v, "a", func(n *catalog.Node) { n.VersionMax = 2 })
			setNode(v, "b", func(n *catalog.Node) { n.VersionMax = 2 })
		}, nil},
		{"the version is held", abc(1, 0), func(v *View) {
			setNode(v, "a", func(n *catalog.Node) { n.VersionMax = 2 })
			v.Catalog.VersionHeld = true
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.change(&test.view)
			var got []string
			for _, step := range Plan(test.view) {
				got = append(got, step.String())
				if !strings.HasSuffix(step.String(), ": "+step.Why()) {
					t.Errorf("%q does not say why: %q", step, step.Why())
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("planned\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(test.want, "\n  "))
			}
		})
	}
}

// splitting makes group 1 split.
func splitting(v *View, children ...uint32) {
	for _, child := range children {
		settle(v, child, v.Catalog.Groups[1].Target, v.Groups[1].Leader)
	}
	k := v.Catalog.Keyspaces["k"]
	a := catalog.Attempt{Number: children[0] - 1, Children: children, Pending: children}
	k.Growth = &catalog.Growth{Shards: len(k.Groups) * (1 + len(children)), Attempts: map[uint32]catalog.Attempt{1: a}}
	v.Catalog.Keyspaces["k"] = k
}

// everywhere makes all nodes members of the keyspace's groups. Nodes without a vote become non-voters.
func everywhere(v *View) {
	k := v.Catalog.Keyspaces["k"]
	k.Everywhere = true
	v.Catalog.Keyspaces["k"] = k
	for g, report := range v.Groups {
		for key := range v.Catalog.Nodes {
			if !contains(report.Voters, key) {
				report.NonVoters = append(report.NonVoters, key)
			}
		}
		v.Groups[g] = report
	}
}

func TestPlanReadsItsViewOnly(t *testing.T) {
	v := abc(6, 4)
	setNode(&v, "a", in(catalog.NodeLeaving))
	before := slices.Clone(v.Groups[1].Voters)
	first := Plan(v)
	if len(first) == 0 {
		t.Fatal("nothing is planned")
	}
	second := Plan(v)
	if !slices.EqualFunc(first, second, func(a, b Step) bool { return a.String() == b.String() }) ||
		!slices.Equal(before, v.Groups[1].Voters) || !slices.Equal(v.Catalog.Groups[1].Target, []string{"a", "b", "c"}) {
		t.Errorf("planned %v, then %v", first, second)
	}
}

func TestPlanSettings(t *testing.T) {
	if err := PlanSettingsDefault.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*PlanSettings){
		"no replicas":       func(s *PlanSettings) { s.Replicas = 0 },
		"too many replicas": func(s *PlanSettings) { s.Replicas = catalog.ReplicasMax + 1 },
		"no time":           func(s *PlanSettings) { s.ReplaceAfter = 0 },
		"no moves":          func(s *PlanSettings) { s.MovesMax = 0 },
	} {
		s := PlanSettingsDefault
		change(&s)
		if s.Check() == nil {
			t.Errorf("%s: %+v is taken", name, s)
		}
	}
	v := abc(1, 0)
	setNode(&v, "a", in(catalog.NodeDraining))
	if _, err := Initial(v, 1); !errors.Is(err, ErrNoNodes) {
		t.Errorf("told %v", err)
	}
}
