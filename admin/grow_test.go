package admin

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// Each reason that the catalog cannot know refuses a growth, and the refusal says what is wrong.
func TestGrowthIsRefused(t *testing.T) {
	view := func() *catalog.View {
		v := exampleCatalog()
		v.ClusterVersion = 2
		v.Nodes["n2.c"] = catalog.Node{Key: "n2.c", Name: "n2", State: catalog.NodeActive, VersionMax: 3}
		v.Nodes["n4.e"] = catalog.Node{Key: "n4.e", Name: "n4", State: catalog.NodeActive, VersionMax: 2}
		delete(v.Nodes, "n2.b")
		v.Groups[2] = catalog.Placement{Target: []string{"n1.a", "n2.c"}}
		return v
	}
	type reports = map[string]shard.NodeReport
	members := []shard.MemberStatus{{Key: "n1.a", Voter: true}, {Key: "n2.c", Voter: true}, {Key: "n3.d"}}
	replica := func(group uint32, role string) shard.ReplicaReport {
		r := shard.ReplicaReport{GroupStatus: shard.GroupStatus{ID: group, Role: role, Term: 1, Members: members}}
		if group == 1 {
			r.Members = append(slices.Clone(members[:2]), shard.MemberStatus{Key: "n3.d", Voter: true})
		}
		return r
	}
	for name, test := range map[string]struct {
		change func(v *catalog.View, r reports)
		dead   string
		want   string // a part of each reason, separated by |
	}{
		"nothing":                {want: ""},
		"the cluster's version":  {change: func(v *catalog.View, _ reports) { v.ClusterVersion = 1 }, want: "the cluster's version is 1; growth needs 2"},
		"a restore elsewhere":    {change: func(_ *catalog.View, r reports) { r["n4.e"] = shard.NodeReport{Restoring: "users"} }, want: "node n4 restores keyspace users: wait"},
		"a silent node":          {change: func(_ *catalog.View, r reports) { delete(r, "n4.e") }, want: "node n4 did not answer within a second, so it may be restoring"},
		"a dead voter":           {change: func(_ *catalog.View, r reports) { delete(r, "n3.d") }, dead: "n3.d", want: "shard 0: node n3, which has a vote, is dead: start it again, or remove it"},
		"a silent voter":         {change: func(_ *catalog.View, r reports) { delete(r, "n3.d") }, want: "node n3 did not answer|shard 0: node n3, which has a vote, did not answer"},
		"a dead node of no vote": {change: func(_ *catalog.View, r reports) { delete(r, "n4.e") }, dead: "n4.e", want: ""},
		"no leader":              {change: func(_ *catalog.View, r reports) { r["n1.a"].Replicas[1].Role = "follower" }, want: "shard 1: no leader answers"},
		"a large shard":          {change: func(_ *catalog.View, r reports) { r["n1.a"].Replicas[0].NoSplit = "the shard is too large to split: 7" }, want: "shard 0: the replica on n1: the shard is too large to split: 7"},
		"a large follower":       {change: func(_ *catalog.View, r reports) { r["n2.c"].Replicas[0].NoSplit = "too large" }, want: "shard 0: the replica on n2: too large"},
		"an earlier growth":      {change: func(_ *catalog.View, r reports) { r["n2.c"].Replicas[1].Unsettled = "it keeps a snapshot" }, want: "shard 1: the replica on n2 has not finished the last growth: it keeps a snapshot"},
		"a move":                 {change: func(v *catalog.View, _ reports) { v.Groups[2] = catalog.Placement{Target: []string{"n1.a", "n3.d"}} }, want: "shard 1: its replicas move from n1, n2 to n1, n3"},
		"everything at once": {
			change: func(v *catalog.View, r reports) {
				v.ClusterVersion = 1
				r["n1.a"].Replicas[0].NoSplit = "too large"
				r["n1.a"].Replicas[1].Role = "follower"
				r["n4.e"] = shard.NodeReport{Restoring: "posts"}
			},
			want: "growth needs 2|restores|shard 0: the replica on n1: too large|shard 1: no leader",
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := view()
			r := reports{
				"n1.a": {Replicas: []shard.ReplicaReport{replica(1, "leader"), replica(2, "leader")}},
				"n2.c": {Replicas: []shard.ReplicaReport{replica(1, "follower"), replica(2, "follower")}},
				"n3.d": {Replicas: []shard.ReplicaReport{replica(1, "follower"), replica(2, "follower")}},
				"n4.e": {},
			}
			if test.change != nil {
				test.change(v, r)
			}
			k := v.Keyspaces["posts"]
			w := &wish{alive: func(key string) bool { return key != test.dead }, catalog: v, k: &k, to: 6, reports: r, groups: groupViews(v, r)}
			got, want := w.refusals(), strings.Split(test.want, "|")
			if test.want == "" {
				want = nil
			}
			if len(got) != len(want) {
				t.Fatalf("refused: %q, want %q", got, want)
			}
			for i := range want {
				if !strings.Contains(got[i], want[i]) {
					t.Errorf("refused: %q, want %q", got[i], want[i])
				}
			}
		})
	}
}

// openCluster opens a cluster of one node with the keyspace posts of some shards.
func openCluster(t *testing.T, shards int) (*Cluster, *shard.Node) {
	t.Helper()
	return openShards(t, map[string]int{"posts": shards, "users": 1})
}

// openShards opens a cluster of one node whose built-in keyspaces have the given numbers of shards.
func openShards(t *testing.T, shards map[string]int) (*Cluster, *shard.Node) {
	t.Helper()
	return openWith(t, func(a *Cluster, cfg *shard.Config) {
		cfg.Shards, cfg.Streams = shards, map[string]shard.StreamHandler{SnapshotCall: a.SendSnapshot}
	})
}

// openAnswering opens a cluster of one node, which answers SnapshotCall by a function.
func openAnswering(t *testing.T, answer shard.StreamHandler) (*Cluster, *shard.Node) {
	t.Helper()
	return openWith(t, func(_ *Cluster, cfg *shard.Config) {
		cfg.Streams = map[string]shard.StreamHandler{SnapshotCall: answer}
	})
}

// openWith opens a cluster of one node with some settings of its own.
func openWith(t *testing.T, change func(*Cluster, *shard.Config)) (*Cluster, *shard.Node) {
	t.Helper()
	var n *shard.Node
	a := New(Config{
		Node:  func() (*shard.Node, error) { return n, nil },
		Alive: func(string) bool { return true }, Logger: slog.New(slog.DiscardHandler),
	})
	cfg := shard.Config{
		Report: func(r *shard.NodeReport) { r.Restoring = a.Restoring() },
		Dir:    t.TempDir(), NodeKey: "n1.a", NodeName: "n1", Bootstrap: true, ClusterID: strings.Repeat("5", 32), ClusterAddr: "127.0.0.1:0",
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	}
	change(a, &cfg)
	var err error
	n, err = shard.Open(cfg)
	must.Do(t, err)
	t.Cleanup(func() { must.Do(t, n.Close(must.Context(t))) })
	must.Do(t, n.WaitReady(must.Context(t)))
	return a, n
}

// pass makes restorePause end.
func (r *restores) pass() {
	r.Lock()
	defer r.Unlock()
	r.ended = time.Time{}
}

func write(t *testing.T, n *shard.Node, ids ...uint64) {
	t.Helper()
	var ops counters.Ops
	for _, id := range ids {
		ops = append(ops, engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 1, Value: 1}}})
	}
	must.Do(t, n.Write(n.Keyspace("posts"), &shard.Write{Ops: &ops, Deadline: time.Now().Add(10 * time.Second)}))
}

// An order makes a keyspace grow once, its dry run changes nothing, and a withdrawal ends the growth.
func TestGrow(t *testing.T) {
	t.Parallel()
	a, n := openCluster(t, 1)
	write(t, n, 1, 2, 3)
	refusedWith := func(want string, o GrowOrder) {
		t.Helper()
		_, err := a.Grow(must.Context(t), o)
		if refused, is := errors.AsType[*catalog.RefusedError](err); !is || !strings.Contains(refused.Reason, want) {
			t.Errorf("%+v: %v, want a refusal with %q", o, err, want)
		}
	}
	grows := func(o GrowOrder, state string, to int) *clientadmin.Growth {
		t.Helper()
		g, err := a.Grow(must.Context(t), o)
		must.Do(t, err)
		if g.Keyspace != "posts" || g.Shards != 1 || g.State != state || g.To != to || (g.Growing != nil) != (state == clientadmin.Growing) {
			t.Errorf("%+v: %+v, want %s to %d", o, g, state, to)
		}
		return g
	}
	if g := grows(GrowOrder{Keyspace: "posts", DryRun: true}, clientadmin.NotGrowing, 3); len(g.Refused) > 0 || !slices.Equal(g.Rows, []uint64{1, 1, 1}) {
		t.Errorf("a dry run: %+v", g)
	}
	if _, err := a.Grow(must.Context(t), GrowOrder{Keyspace: "nothing"}); !errors.Is(err, errs.ErrUnknownKeyspace) {
		t.Errorf("a keyspace that is not there: %v", err)
	}
	k := n.Catalog().Keyspaces["posts"]
	if why := strings.Join(a.wish(must.Context(t), n, n.Catalog(), &k, 65).refusals(), ";"); !strings.Contains(why, "would have 65 shards, and the most are 64") {
		t.Errorf("too many shards: %s", why)
	}
	for _, by := range []int{1, -3, 10} {
		if bad, is := errors.AsType[*errs.ArgumentError](func() error { _, err := a.Grow(must.Context(t), GrowOrder{Keyspace: "posts", By: by}); return err }()); !is || bad.Field != "by" {
			t.Errorf("by %d: %v", by, bad)
		}
	}
	refusedWith("has 1 shards, not 3", GrowOrder{Keyspace: "posts", From: 3})
	refusedWith("always has one shard", GrowOrder{Keyspace: "board"})
	end := a.restores.begin("users")
	refusedWith("node n1 restores keyspace users", GrowOrder{Keyspace: "posts"})
	end()
	refusedWith("node n1 restores keyspace users", GrowOrder{Keyspace: "posts"}) // the next shard may follow
	a.restores.pass()
	grows(GrowOrder{Keyspace: "posts", Withdraw: true}, clientadmin.NotGrowing, 1)
	if g := grows(GrowOrder{Keyspace: "posts", DryRun: true}, clientadmin.NotGrowing, 3); len(g.Refused) > 0 {
		t.Errorf("a dry run: %+v", g)
	}
	// A shard that a restore has closed does not split, so its growth waits.
	group := n.Keyspace("posts").FirstGroup
	taken, err := n.OpenSnapshot(must.Context(t), group)
	must.Do(t, err)
	backup, err := io.ReadAll(taken)
	must.Do(t, errors.Join(err, taken.Close()))
	restore := func(stream []byte) error {
		_, err := a.RestoreShard(must.Context(t), group, bytes.NewReader(stream), RestoreOptions{Force: true})
		return err
	}
	if err := restore(backup[:len(backup)-1]); !errors.Is(err, ErrBadSnapshot) {
		t.Fatalf("a restore of a snapshot that is cut: %v", err)
	}
	a.restores.pass()
	refusedWith("shard 0: the replica on n1: a restore has closed the shard", GrowOrder{Keyspace: "posts"})
	k = n.Catalog().Keyspaces["posts"]
	_, err = n.Change(must.Context(t), growCommand(&k, 3))
	must.Do(t, err)
	g := grows(GrowOrder{Keyspace: "posts", From: 1}, clientadmin.Growing, 3)
	if began, err := time.Parse(time.RFC3339, g.Growing.Since); err != nil || time.Since(began) > time.Hour || len(g.Growing.Shards) != 1 || g.Growing.Shards[0].State != "waiting" {
		t.Errorf("%+v, %v", g.Growing, err)
	}
	registry := prometheus.NewPedanticRegistry()
	must.Do(t, a.Register(registry))
	families, err := registry.Gather()
	must.Do(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == "posts" {
				got[f.GetName()] = m.GetGauge().GetValue()
			}
		}
	}
	if got["countd_keyspace_shards"] != 1 || got["countd_keyspace_growing_shards"] != 1 || len(got) != 3 {
		t.Errorf("metrics: %v", got)
	}
	grows(GrowOrder{Keyspace: "posts"}, clientadmin.Growing, 3)
	grows(GrowOrder{Keyspace: "posts", By: 3, From: 1, DryRun: true}, clientadmin.Growing, 3)
	refusedWith("is growing to 3 shards", GrowOrder{Keyspace: "posts", By: 2})
	if err := restore(backup); err == nil || !strings.Contains(err.Error(), "grows to 3 shards") {
		t.Errorf("a restore: %v", err)
	}
	grows(GrowOrder{Keyspace: "posts", Withdraw: true}, clientadmin.NotGrowing, 1)

	must.Do(t, restore(backup))
	a.restores.pass()
	grows(GrowOrder{Keyspace: "posts", From: 1}, clientadmin.Growing, 3)
	must.Become(t, "the keyspace has 3 shards", func() bool { k := n.Keyspace("posts"); return k.Shards == 3 && k.Growing == nil })
	refusedWith("has 3 shards, not 1", GrowOrder{Keyspace: "posts", From: 1})

	// Without writes, each replica replaces its snapshots from before the growth. Then the keyspace grows again.
	must.Become(t, "the second growth begins", func() bool {
		_, err := a.Grow(must.Context(t), GrowOrder{Keyspace: "posts", By: 2, From: 3})
		if refused, is := errors.AsType[*catalog.RefusedError](err); is && strings.Contains(refused.Reason, "has not finished the last growth") {
			return false
		}
		must.Do(t, err)
		return true
	})
	must.Become(t, "the keyspace has 6 shards", func() bool { k := n.Keyspace("posts"); return k.Shards == 6 && k.Growing == nil })
	if g, err := a.Grow(must.Context(t), GrowOrder{Keyspace: "posts", DryRun: true}); err != nil || len(g.Factors) == 0 || !slices.Equal(g.Factors[0].Rows, []uint64{0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("a dry run after two growths: %+v, %v", g, err)
	}
}

// A dry run counts each row in the shard that its id gets, for each factor, and warns of skew.
func TestDryRunCountsRows(t *testing.T) {
	t.Parallel()
	a, n := openCluster(t, 2)
	const rows = 20_000 // several pages
	var ids []uint64
	for i := range uint64(rows) {
		if ids = append(ids, i*8); len(ids) == 5_000 {
			write(t, n, ids...)
			ids = nil
		}
	}
	write(t, n, 1, 3, 5)
	g, err := a.Grow(must.Context(t), GrowOrder{Keyspace: "posts", By: 4, DryRun: true})
	must.Do(t, err)
	if g.Estimated || len(g.Factors) != 5 || !slices.Equal(g.Rows, []uint64{rows, 1, 0, 1, 0, 1, 0, 0}) {
		t.Errorf("%+v", g)
	}
	for _, f := range g.Factors {
		total, want := uint64(0), make([]uint64, f.To)
		for i := range uint64(rows) {
			want[i*8%uint64(f.To)]++
		}
		for _, id := range []uint64{1, 3, 5} {
			want[id%uint64(f.To)]++
		}
		for _, rows := range f.Rows {
			total += rows
		}
		if f.To != 2*f.By || total != rows+3 || !slices.Equal(f.Rows, want) {
			t.Errorf("by %d: %+v, want %v", f.By, f, want)
		}
	}
	if len(g.Warnings) != 1 || !strings.Contains(g.Warnings[0], "8.00 times its even share") {
		t.Errorf("warnings: %q", g.Warnings)
	}
	feeds, err := a.Grow(must.Context(t), GrowOrder{Keyspace: "feed", By: 2, DryRun: true})
	must.Do(t, err)
	if feeds.Rows != nil || !strings.Contains(strings.Join(feeds.Warnings, ""), "were not counted") {
		t.Errorf("feeds: %+v", feeds)
	}
}

// If a dry run has no time to read all rows, it assumes that the rest is spread like the rows that it has read.
func TestDryRunEstimates(t *testing.T) {
	c := newPartCount(&shard.Keyspace{Name: "posts", Shards: 2, Columns: []string{"like"}}, 3)
	c.shards[0] = shardCount{rows: 3_000, counted: 300, parts: [][]uint64{{200, 100}, {100, 100, 100}, nil, nil}}
	c.shards[1] = shardCount{rows: 90, counted: 90, ended: true, parts: [][]uint64{{90, 0}, {30, 60, 0}, nil, nil}}
	factors, estimated := c.factors()
	if !estimated || !slices.Equal(factors[0].Rows, []uint64{2_000, 90, 1_000, 0}) || !slices.Equal(factors[1].Rows, []uint64{1_000, 30, 1_000, 60, 1_000, 0}) || factors[0].Largest != 2.59 {
		t.Errorf("%+v, estimated: %v", factors, estimated)
	}
}
