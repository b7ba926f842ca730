package cluster

import (
	"fmt"
	"testing"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/leadership"
)

// largeCluster is a cluster in which nothing needs to change.
type largeCluster struct {
	catalog *catalog.Catalog
	View    // of catalog
}

// newLargeCluster makes a cluster as an operator would: nodes with or without zones, then the board and 30 keyspaces of
// 27 shards.
func newLargeCluster(t testing.TB, nodes, zones int) *largeCluster {
	v := &largeCluster{catalog: catalog.New()}
	v.Groups, v.Settings = map[uint32]leadership.LeaderView{}, PlanSettingsDefault
	for i := range nodes {
		v.apply(t, &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: largeNode(i, zones)}})
	}
	first := []string{largeNode(0, zones).Key, largeNode(1, zones).Key, largeNode(2, zones).Key}
	v.apply(t, &catalog.Command{Place: &catalog.PlaceEntry{Group: catalog.Group, Target: first}})
	create := func(name, kind string, shards int) {
		replicas, err := Initial(v.View, shards)
		if err != nil {
			t.Fatal(err)
		}
		keyspace := catalog.Keyspace{Name: name, Kind: kind, Columns: []string{"repost", "comment", "like", "view"}, Divisor: shards}
		v.apply(t, &catalog.Command{Create: &catalog.CreateEntry{Keyspace: keyspace, Replicas: replicas}})
	}
	create("board", "board", 1)
	for i := range 30 {
		create(fmt.Sprintf("keyspace-%d", i), "counters", 27)
	}
	for steps := Plan(v.View); len(steps) > 0; steps = Plan(v.View) {
		for _, step := range steps {
			v.carryOut(t, step)
		}
	}
	return v
}

// apply applies a command to the catalog. Then it makes the leaders of all groups report that the
// groups have reached their targets.
func (v *largeCluster) apply(t testing.TB, command *catalog.Command) {
	entry, err := catalog.AppendEntry(nil, command)
	if err != nil {
		t.Fatal(err)
	}
	if result := v.catalog.Apply(rafttest.Next(v.catalog, entry)).(*catalog.Result); result.Refused != "" {
		t.Fatal(result.Refused)
	}
	v.Catalog = v.catalog.View()
	for g, p := range v.Catalog.Groups {
		report, reported := v.Groups[g]
		if !reported || !contains(p.Target, report.Leader) {
			report.Leader = p.Target[0]
		}
		report.Group, report.Voters, report.CaughtUp = g, p.Target, without(p.Target, report.Leader)
		v.Groups[g] = report
	}
}

func (v *largeCluster) carryOut(t testing.TB, step Step) {
	switch step := step.(type) {
	case Transfer:
		report := v.Groups[step.Group]
		report.Leader, report.CaughtUp = step.To, without(report.Voters, step.To)
		v.Groups[step.Group] = report
	case Place:
		v.apply(t, &catalog.Command{Place: &catalog.PlaceEntry{Group: step.Group, Was: step.Was, Target: step.Target}})
	default:
		t.Fatal(step)
	}
}

func largeNode(i, zones int) catalog.Node {
	node := catalog.Node{
		Name: fmt.Sprintf("countd-%d", i), Version: "0.1.0", VersionMax: 1, State: catalog.NodeActive,
		GossipAddr: fmt.Sprintf("10.0.%d.%d:7402", i/256, i%256),
	}
	node.Key = fmt.Sprintf("%s.%08x", node.Name, i)
	host := node.Name + ".countd-nodes.counts.svc.cluster.local"
	node.HTTPAddr, node.ClusterAddr = host+":7400", host+":7401"
	if zones > 0 {
		node.Zone = fmt.Sprintf("eu-central-1%c", 'a'+i%zones)
	}
	return node
}

// BenchmarkLargeCluster measures the costs that grow with the number of nodes: see DESIGN.md.
func BenchmarkLargeCluster(b *testing.B) {
	for _, nodes := range []int{3, 100, 500} {
		for _, zones := range []int{0, 3} {
			v := newLargeCluster(b, nodes, zones)
			run := func(what string, f func(*testing.B)) {
				b.Run(fmt.Sprintf("%s/nodes=%d/zones=%d", what, nodes, zones), f)
			}
			run("snapshot", func(b *testing.B) {
				bytes := 0
				for b.Loop() {
					bytes = len(rafttest.Persisted(b, v.catalog))
				}
				b.ReportMetric(float64(bytes), "B/snapshot")
			})
			run("command", func(b *testing.B) {
				drain := &catalog.SetNodeStateEntry{Key: largeNode(1, zones).Key, State: catalog.NodeDraining}
				for b.Loop() {
					v.Catalog.After(&catalog.Command{SetNodeState: drain})
				}
			})
			run("create", func(b *testing.B) {
				for b.Loop() {
					if _, err := Initial(v.View, 27); err != nil {
						b.Fatal(err)
					}
				}
			})
			run("plan", func(b *testing.B) { benchmarkPlan(b, v.View, false) })
			v.apply(b, &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: largeNode(nodes, zones)}})
			run("join", func(b *testing.B) { benchmarkPlan(b, v.View, true) })
		}
	}
}

// benchmarkPlan measures Plan. steps reports whether the plan must have steps.
func benchmarkPlan(b *testing.B, v View, steps bool) {
	for b.Loop() {
		if made := Plan(v); steps != (len(made) > 0) {
			b.Fatal(made)
		}
	}
}

// The allocations of a plan do not grow with the square of the number of nodes, because the controller
// makes a plan each second.
func TestPlansOfALargeClusterAreCheap(t *testing.T) {
	const nodes, allocsMax = 200, 60_000
	for _, zones := range []int{0, 3} {
		v := newLargeCluster(t, nodes, zones)
		cheap := func(what string, f func()) {
			if n := testing.AllocsPerRun(1, f); n > allocsMax {
				t.Errorf("%s, %d zones: %.0f allocations, over %d", what, zones, n, allocsMax)
			}
		}
		cheap("a plan without steps", func() { Plan(v.View) })
		cheap("a keyspace", func() {
			if _, err := Initial(v.View, 27); err != nil {
				t.Error(err)
			}
		})
		v.apply(t, &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: largeNode(nodes, zones)}})
		cheap("a plan after a join", func() { Plan(v.View) })
	}
}
