package shard

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard/tiering"
)

// Rows are packed in memory without an operator once they are old and nobody writes to them. Reads
// return the same counts as before. After a restart from the snapshot, the rows are packed again.
func TestRowsAreSealed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *Node {
		cfg := memberConfig(t, filepath.Join(dir, "groups"), 1, 1)
		cfg.Shards = map[string]int{"posts": 1, "users": 1}
		cfg.Cold = tiering.ColdConfig{Dir: filepath.Join(dir, "cold"), SealAfter: time.Second, Layouts: map[string]tiering.IDLayout{"posts": tiering.LayoutWeibo}}
		n, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeCold(t, n) })
		if err := n.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		return n
	}
	posts := func(n *Node) GroupStatus {
		for _, g := range n.Status().Groups {
			if g.Keyspace == "posts" {
				return g
			}
		}
		t.Fatal("no shard of posts")
		return GroupStatus{}
	}
	check := func(n *Node, want int64) {
		t.Helper()
		eventually(t, "rows are sealed", func() bool { return posts(n).SealedRows >= coldTestRows/2 })
		checkCold(t, n, n.Keyspace("posts"), want)
		if rows := countRows(t, n, n.Keyspace("posts")); rows != coldTestRows {
			t.Errorf("a scan gives %d rows", rows)
		}
		g, _ := n.router.groupsOf(n.Keyspace("posts"))
		if err := rafttest.CheckTable(g[0].replica.Load().fsm.Machine.(*counters.Machine).Table()); err != nil {
			t.Error(err)
		}
	}
	n := open()
	ops := make([]engine.Op, coldTestRows)
	for i := range ops {
		ops[i] = addTo(coldID(uint64(i)), 0, 1)
	}
	mustWrite(t, n, n.Keyspace("posts"), ops...)
	hot := posts(n)
	check(n, 1)
	if s := posts(n); s.Bytes > hot.Bytes*3/4 || s.SealedBytes >= s.Bytes || n.tiering.Sealed.Load() < s.SealedRows {
		t.Errorf("%+v, was %+v", s, hot)
	}
	g, _ := n.router.groupsOf(n.Keyspace("posts"))
	r := g[0].replica.Load()
	r.group.Log().Covered(-(1 << 40), 0) // as if the entries were so large that the log keeps few
	mustDo(t, r.group.Snapshotter().Take())
	before := digests(n)
	closeCold(t, n)
	n = open()
	if s := posts(n); s.SealedRows < coldTestRows/2 || s.Bytes > hot.Bytes*3/4 {
		t.Errorf("after the restart %+v, hot %+v", s, hot)
	}
	if after := digests(n); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("after the restart %v, before %v", after, before)
	}
	check(n, 2)
}

// The node packs old, idle rows of keyspaces whose ids carry a time, except rows that will leave
// memory. Near the memory limit it packs young rows too, even while it loads a snapshot: the node
// that took the snapshot had packed them for the same reason.
func TestWhatIsSealed(t *testing.T) {
	cfg := memberConfig(t, filepath.Join(t.TempDir(), "groups"), 1, 1)
	cfg.Shards = map[string]int{"posts": 1, "users": 1}
	cfg.Cold = tiering.ColdConfig{After: 180 * 24 * time.Hour, SealAfter: 24 * time.Hour, Layouts: map[string]tiering.IDLayout{"posts": tiering.LayoutWeibo}}
	n, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { closeCold(t, n) })
	mustDo(t, n.WaitReady(t.Context()))
	holdHeadroom(n)
	young := func(i uint64) uint64 { return tiering.LayoutWeibo.FirstAt(time.Now().Add(-time.Hour)) + i<<10 }
	write := func(keyspace string, idOf func(uint64) uint64) {
		ops := make([]engine.Op, coldTestRows)
		for i := range ops {
			ops[i] = addTo(idOf(uint64(i)), 0, 1)
		}
		mustWrite(t, n, n.Keyspace(keyspace), ops...)
	}
	write("posts", coldID)
	write("posts", young)
	write("users", coldID)
	of := func(keyspace string) *shardReplica {
		g, err := n.router.groupsOf(n.Keyspace(keyspace))
		mustDo(t, err)
		return g[0]
	}
	sealed := func(keyspace string) uint64 { return of(keyspace).replica.Load().fsm.State().SealedRows }
	rounds := func() (relieved bool) { n.tiering.SealOld(); return n.tiering.SealOld() }

	// All old rows are about to go to disk.
	if rounds(); sealed("posts") > 0 {
		t.Errorf("%d rows are packed on their way to disk", sealed("posts"))
	}
	n.headroom.DiskFull.Store(true) // no row goes to disk
	if rounds(); sealed("posts") < coldTestRows/2 || sealed("posts") > coldTestRows {
		t.Errorf("%d rows are packed of %d old and as many young ones", sealed("posts"), coldTestRows)
	}
	if rounds() {
		t.Error("a round that packed nothing has relieved memory")
	}
	n.headroom.MemoryTight.Store(true)
	if relieved := rounds(); !relieved || sealed("posts") < coldTestRows*3/2 {
		t.Errorf("relieved: %v, %d rows are packed", relieved, sealed("posts"))
	}
	if sealed("users") > 0 {
		t.Errorf("%d users are packed", sealed("users"))
	}
	for keyspace, want := range map[string]bool{"posts": true, "users": false, "unread": false, "feed": false, "board": false} {
		s := of(keyspace).replica.Load().tier
		if got := s != nil && n.tiering.OldToSeal(s) != nil; got != want {
			t.Errorf("a snapshot of %s is packed as it is read: %v", keyspace, got)
		}
	}
	if old := n.tiering.OldToSeal(of("posts").replica.Load().tier); !old(young(0), young(1)) {
		t.Error("young rows of a snapshot are not packed while memory is tight")
	}
	n.headroom.MemoryTight.Store(false)
	if old := n.tiering.OldToSeal(of("posts").replica.Load().tier); !old(coldID(0), coldID(9)) || old(coldID(0), young(0)) {
		t.Error("old are other rows than those of a day")
	}
}

// The metrics of tiers have a value for each keyspace of counters.
func TestTierMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	cfg := memberConfig(t, filepath.Join(t.TempDir(), "groups"), 1, 1)
	cfg.Shards, cfg.Metrics = map[string]int{"posts": 1, "users": 1}, registry
	cfg.Cold = tiering.ColdConfig{SealAfter: time.Second, Layouts: map[string]tiering.IDLayout{"posts": tiering.LayoutWeibo}}
	n, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { closeCold(t, n) })
	mustDo(t, n.WaitReady(t.Context()))
	ops := make([]engine.Op, coldTestRows)
	for i := range ops {
		ops[i] = addTo(coldID(uint64(i)), 0, 1)
	}
	mustWrite(t, n, n.Keyspace("posts"), ops...)
	mustWrite(t, n, n.Keyspace("users"), addTo(1, 0, 1))
	var families []*dto.MetricFamily // one scrape for all values, because rows may be packed between two scrapes
	scrape := func() {
		var err error
		families, err = registry.Gather()
		mustDo(t, err)
	}
	value := func(metric, keyspace, tier string) float64 {
		for _, f := range families {
			for _, m := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				if f.GetName() == metric && labels["keyspace"] == keyspace && labels["tier"] == tier {
					return m.GetGauge().GetValue()
				}
			}
		}
		t.Fatalf("no %s of %s, %s", metric, keyspace, tier)
		return 0
	}
	eventually(t, "rows are packed", func() bool {
		scrape()
		return value("countd_tier_rows", "posts", "sealed") >= coldTestRows/2
	})
	hot, sealed := value("countd_tier_rows", "posts", "hot"), value("countd_tier_rows", "posts", "sealed")
	if hot+sealed != coldTestRows || value("countd_tier_rows", "posts", "cold") != 0 || value("countd_tier_rows", "users", "hot") != 1 {
		t.Errorf("%v rows are hot, %v packed", hot, sealed)
	}
	if bytes := value("countd_tier_bytes", "posts", "sealed"); bytes < sealed || bytes > 10*sealed {
		t.Errorf("%v packed rows take %v bytes", sealed, bytes)
	}
	if value("countd_tier_bytes", "posts", "hot") <= 0 || value("countd_tier_bytes", "users", "cold") != 0 {
		t.Error("hot rows take nothing, or rows on disk something that are not there")
	}
}
