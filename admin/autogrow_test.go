package admin

import (
	"log/slog"
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
	t.Cleanup(func() { must.Do(t, g.Close(t.Context())) })
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
	busy := func(seconds float64) map[string]shard.NodeReport {
		return report(func(r *shard.ReplicaReport) { r.ApplySeconds = seconds })
	}
	elsewhere := func(seconds float64) map[string]shard.NodeReport {
		all := busy(seconds)
		r := all["n1.a"]
		r.Life = "another"
		return map[string]shard.NodeReport{"n1.a": r}
	}
	long := of.busyFor + of.after
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
		"busy": {looks: []look{
			{0, busy(100), ""}, {of.busyFor, busy(100 + 0.6*of.busyFor.Seconds()), ""},
			{long - 1, busy(100 + 0.7*long.Seconds()), ""}, {long, busy(101 + 0.7*long.Seconds()), "the leader of shard 1 applied entries for"},
		}},
		"not busy enough": {looks: []look{
			{0, busy(0), ""}, {of.busyFor, busy(0.59 * of.busyFor.Seconds()), ""}, {long, busy(0.59 * long.Seconds()), ""},
		}},
		"idle in between": {looks: []look{
			{0, busy(0), ""}, {of.busyFor, busy(of.busyFor.Seconds()), ""}, {of.busyFor + time.Minute, busy(of.busyFor.Seconds()), ""},
			{long, busy(long.Seconds()), ""},
		}},
		"busy and silent in between": {looks: []look{
			{0, busy(0), ""}, {of.busyFor, busy(of.busyFor.Seconds()), ""}, {of.busyFor + time.Minute, nil, ""}, {long, busy(long.Seconds()), "shard 1"},
		}},
		"another leader meanwhile": {looks: []look{
			{0, busy(0), ""}, {of.busyFor, busy(of.busyFor.Seconds()), ""}, {long - 1, elsewhere(long.Seconds()), ""}, {long, elsewhere(2 * long.Seconds()), ""},
		}},
		"by the settings": {fixed: "posts", looks: []look{{0, rows(of.rows, 0), ""}, {of.after, rows(of.rows, 0), ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ := newAutoGrowth(t, nil, test.fixed)
			for _, l := range test.looks {
				got := g.wanted(view, l.reports, began.Add(l.after))
				if l.want == "" && len(got) > 0 || l.want != "" && (len(got) != 1 || got[0].keyspace.Name != "posts" || !strings.Contains(got[0].reason, l.want)) {
					t.Errorf("after %v: %+v, want %q", l.after, got, l.want)
				}
			}
		})
	}
	g, _ := newAutoGrowth(t, nil)
	g.bounds.busyShardsMax = 3*len(view.Keyspaces["posts"].Groups) - 1
	g.wanted(view, busy(0), began)
	g.wanted(view, busy(of.busyFor.Seconds()), began.Add(of.busyFor))
	if got := g.wanted(view, busy(long.Seconds()), began.Add(long)); len(got) > 0 {
		t.Errorf("beyond the most shards for load: %+v", got)
	}
	g, _ = newAutoGrowth(t, nil)
	g.wanted(view, busy(0), began)
	g.wanted(view, busy(of.busyFor.Seconds()), began.Add(of.busyFor))
	grown := view.Keyspaces["posts"]
	during := grown
	during.Growth = &catalog.Growth{Shards: 6, Attempts: map[uint32]catalog.Attempt{1: {Number: 9}}}
	view.Keyspaces["posts"] = during
	g.wanted(view, busy(of.busyFor.Seconds()+60), began.Add(of.busyFor+time.Minute))
	view.Keyspaces["posts"] = grown
	g.wanted(view, busy(of.busyFor.Seconds()+120), began.Add(of.busyFor+2*time.Minute))
	if got := g.wanted(view, busy(long.Seconds()+120), began.Add(long+2*time.Minute)); len(got) > 0 {
		t.Errorf("by the load of before a growth: %+v", got)
	}
	g, _ = newAutoGrowth(t, nil)
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

// openAutoGrowth opens a cluster of one node, where three rows of posts are many.
func openAutoGrowth(t *testing.T) (*AutoGrowth, *shard.Node, *[]clientadmin.AuditEvent, *strings.Builder) {
	t.Helper()
	a, n := openCluster(t, 1)
	var log strings.Builder
	a.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	g, events := newAutoGrowth(t, a)
	g.bounds.rows = 3
	return g, n, events, &log
}

// A large keyspace grows by itself while its node leads the catalog, and each reason to wait is logged once.
func TestAutoGrowth(t *testing.T) {
	t.Parallel()
	g, n, events, log := openAutoGrowth(t)
	write(t, n, 1, 2)
	now := time.Now()
	g.look(now)
	g.look(now.Add(g.bounds.after))
	first := n.Keyspace("posts").FirstGroup
	if !g.of[first].large.IsZero() || len(*events) > 0 {
		t.Fatalf("a small keyspace: %+v, events %+v", g.of[first], *events)
	}
	write(t, n, 3)
	g.look(now)
	hold := func(held bool) {
		_, err := n.Change(must.Context(t), &catalog.Command{HoldVersion: &catalog.HoldVersionEntry{Held: held}})
		must.Do(t, err)
	}
	hold(true)
	g.look(now.Add(g.bounds.after))
	g.look(now.Add(g.bounds.after + autoSayEvery - 1))
	if got := strings.Count(log.String(), "the cluster version is held"); got != 1 || valueOf(t, g.refused) != 1 {
		t.Errorf("while the version is held: %v refused, log:\n%s", valueOf(t, g.refused), log)
	}
	hold(false)
	g.look(now.Add(g.bounds.after))
	if valueOf(t, g.growths) != 1 || valueOf(t, g.refused) != 0 || len(*events) != 1 || !strings.Contains((*events)[0].Target, "posts to 3 shards: shard 0 has 3 rows in memory") {
		t.Fatalf("%v growths, %v refused, events %+v, log:\n%s", valueOf(t, g.growths), valueOf(t, g.refused), *events, log)
	}
	must.Become(t, "posts has three shards", func() bool { k := n.Keyspace("posts"); return k.Shards == 3 && k.Growing == nil })
}

// A keyspace whose rows would all go to one part does not grow.
func TestAutoGrowthOfOneResidue(t *testing.T) {
	t.Parallel()
	g, n, events, log := openAutoGrowth(t)
	write(t, n, 3, 6, 9)
	now := time.Now()
	g.look(now)
	g.look(now.Add(g.bounds.after))
	if len(*events) > 0 || !strings.Contains(log.String(), "the largest shard would hold 3.00 times its even share") {
		t.Errorf("events %+v, log:\n%s", *events, log)
	}
}

// A growth that splits no shard is withdrawn, and then the keyspace waits longer. The same holds if an operator withdraws
// it.
func TestAutoGrowthIsWithdrawn(t *testing.T) {
	view := exampleCatalog()
	posts := view.Keyspaces["posts"]
	rows := map[string]shard.NodeReport{"n1.a": {Replicas: []shard.ReplicaReport{{GroupStatus: shard.GroupStatus{ID: 1, Role: "leader", Term: 1, Rows: autoBoundsDefault.rows}}, {GroupStatus: shard.GroupStatus{ID: 2, Role: "leader", Term: 1}}}}}
	put := func(growth *catalog.Growth) {
		k := posts
		k.Growth = growth
		view.Keyspaces["posts"] = k
	}
	g, _ := newAutoGrowth(t, nil)
	of, now := g.bounds, time.Unix(1_700_000_000, 0)
	wants := func(after time.Duration) []wantedGrowth {
		now = now.Add(after)
		return g.wanted(view, rows, now)
	}
	for round, wait := range []time.Duration{of.after, 6 * of.after, 36 * of.after, of.afterMax} {
		put(nil)
		wants(0)
		if got := wants(wait - 1); len(got) > 0 {
			t.Fatalf("round %d: wanted too early: %+v", round, got)
		}
		if got := wants(of.afterMax); len(got) != 1 || got[0].withdraw {
			t.Fatalf("round %d: %+v", round, got)
		}
		put(&catalog.Growth{Shards: 6, Auto: true, Attempts: map[uint32]catalog.Attempt{1: {Number: 9}}})
		if got := wants(0); len(got) > 0 {
			t.Fatalf("round %d: during an attempt: %+v", round, got)
		}
		if got := wants(of.withdraw); len(got) > 0 {
			t.Fatalf("round %d: during a late attempt: %+v", round, got)
		}
		put(&catalog.Growth{Shards: 6, Auto: true})
		if got := wants(0); len(got) != 1 || !got[0].withdraw {
			t.Fatalf("round %d: without an attempt: %+v", round, got)
		}
	}
	put(&catalog.Growth{Shards: 6})
	if got := wants(of.withdraw); len(got) > 0 {
		t.Errorf("an operator's growth: %+v", got)
	}
}
