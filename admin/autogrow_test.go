package admin

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
)

func newAutoGrowth(t *testing.T, a *Cluster, fixed ...string) (*AutoGrowth, *[]clientadmin.AuditEvent) {
	t.Helper()
	var events []clientadmin.AuditEvent
	g, err := NewAutoGrowth(a, func(keyspace string) bool { return slices.Contains(fixed, keyspace) },
		func(e clientadmin.AuditEvent) { events = append(events, e) }, prometheus.NewPedanticRegistry())
	must.Do(t, err)
	t.Cleanup(g.Close)
	return g, &events
}

// A keyspace should grow once one of its shards has been large for long enough. A leader that does not answer
// makes the wait neither shorter nor longer.
func TestAutoGrowthIsWanted(t *testing.T) {
	view := exampleCatalog()
	began := time.Unix(1_700_000_000, 0)
	report := func(change func(r *shard.ReplicaReport)) map[string]shard.NodeReport {
		large := shard.ReplicaReport{GroupStatus: shard.GroupStatus{ID: 2, Role: "leader", Term: 1}}
		small := shard.ReplicaReport{GroupStatus: shard.GroupStatus{ID: 1, Role: "leader", Term: 1, Rows: 7}}
		change(&large)
		return map[string]shard.NodeReport{"n1.a": {Replicas: []shard.ReplicaReport{small, large}}}
	}
	rows := func(n, cold uint64) map[string]shard.NodeReport {
		return report(func(r *shard.ReplicaReport) { r.Rows, r.ColdRows = n, cold })
	}
	of := autoBoundsDefault
	type look struct {
		after   time.Duration
		reports map[string]shard.NodeReport
		want    string // a part of the reason, or ""
	}
	for name, test := range map[string]struct {
		view  *catalog.View
		fixed string
		looks []look
	}{
		"rows": {looks: []look{
			{0, rows(of.rows, 0), ""}, {of.after - time.Second, rows(of.rows, 0), ""}, {of.after, rows(of.rows, 0), "shard 1 has 50000000 rows in memory"},
		}},
		"a row too few":     {looks: []look{{0, rows(of.rows-1, 0), ""}, {of.after, rows(of.rows-1, 0), ""}}},
		"cold rows":         {looks: []look{{0, rows(of.rows, 1), ""}, {of.after, rows(of.rows, 1), ""}}},
		"bytes":             {looks: []look{{0, report(func(r *shard.ReplicaReport) { r.Bytes = of.bytes }), ""}, {of.after, report(func(r *shard.ReplicaReport) { r.Bytes = of.bytes }), "take 1073741824 bytes"}}},
		"small in between":  {looks: []look{{0, rows(of.rows, 0), ""}, {1, rows(1, 0), ""}, {of.after, rows(of.rows, 0), ""}}},
		"silent in between": {looks: []look{{0, rows(of.rows, 0), ""}, {1, nil, ""}, {of.after, rows(of.rows, 0), "shard 1"}}},
		"silent now":        {looks: []look{{0, rows(of.rows, 0), ""}, {of.after, nil, ""}}},
		"by the settings":   {fixed: "posts", looks: []look{{0, rows(of.rows, 0), ""}, {of.after, rows(of.rows, 0), ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ := newAutoGrowth(t, nil, test.fixed)
			for _, l := range test.looks {
				got := g.wanted(view, l.reports, began.Add(l.after))
				if l.want == "" && len(got) > 0 || l.want != "" && (len(got) != 1 || got[0].keyspace != "posts" || !strings.Contains(got[0].reason, l.want)) {
					t.Errorf("after %v: %+v, want %q", l.after, got, l.want)
				}
			}
		})
	}
	g, _ := newAutoGrowth(t, nil)
	g.bounds.shardsMax = 3*len(view.Keyspaces["posts"].Groups) - 1
	g.wanted(view, rows(of.rows, 0), began)
	if got := g.wanted(view, rows(of.rows, 0), began.Add(of.after)); len(got) > 0 {
		t.Errorf("beyond the most shards: %+v", got)
	}
}

func valueOf(t *testing.T, metric prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	must.Do(t, metric.Write(&m))
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

// A large keyspace grows by itself while its node leads the catalog, and each reason to wait is logged once.
func TestAutoGrowth(t *testing.T) {
	t.Parallel()
	a, n := openCluster(t, 1)
	g, events := newAutoGrowth(t, a)
	g.bounds.rows = 3
	write(t, n, 1, 2)
	now := time.Now()
	g.look(now)
	g.look(now.Add(g.bounds.after))
	if len(g.large) > 0 || len(*events) > 0 {
		t.Fatalf("a small keyspace: large %v, events %+v", g.large, *events)
	}
	write(t, n, 3)
	g.look(now)
	hold := func(held bool) {
		_, err := n.Change(must.Context(t), &catalog.Command{HoldVersion: &catalog.HoldVersionEntry{Held: held}})
		must.Do(t, err)
	}
	hold(true)
	g.look(now.Add(g.bounds.after))
	if why := g.said["posts"]; !strings.Contains(why, "the cluster version is held") || valueOf(t, g.refused) != 1 {
		t.Errorf("while the version is held: %q, %v refused", why, valueOf(t, g.refused))
	}
	hold(false)
	g.look(now.Add(g.bounds.after))
	if valueOf(t, g.growths) != 1 || valueOf(t, g.refused) != 0 || len(*events) != 1 || !strings.Contains((*events)[0].Target, "posts to 3 shards: shard 0 has 3 rows in memory") {
		t.Fatalf("%v growths, %v refused, events %+v, said %q", valueOf(t, g.growths), valueOf(t, g.refused), *events, g.said)
	}
	must.Become(t, "posts has three shards", func() bool { k := n.Keyspace("posts"); return k.Shards == 3 && k.Growing == nil })
}
