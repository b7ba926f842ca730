package shard

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/tiering"
)

const coldTestRows = 25_000

// fillCold writes rows of old posts, makes most of them cold and takes a snapshot
// that leaves next to nothing in the log.
func fillCold(t *testing.T, n *Node, ks *Keyspace) *localReplica {
	t.Helper()
	for from := uint64(0); from < coldTestRows; from += 100 {
		ops := make([]engine.Op, 100)
		for i := range ops {
			ops[i] = addTo(coldID(from+uint64(i)), 0, 1)
		}
		mustWrite(t, n, ks, ops...)
	}
	g, _ := n.router.groupsOf(ks)
	r := g[0].replica.Load()
	for range 2 {
		fsm := r.fsm.Machine.(*counters.Machine)
		for idle := fsm.Watch(tiering.AnyAge, true); idle.Segments() > 0; {
			_, err := fsm.FreezeSome(idle, idle.Segments())
			mustDo(t, err)
		}
	}
	if s := r.fsm.State(); s.ColdRows < coldTestRows/2 {
		t.Fatalf("%d rows of %d are cold", s.ColdRows, s.Rows)
	}
	r.group.Log().Covered(-(1 << 40), 0) // as if the entries were so large that few are kept
	if err := r.group.Snapshotter().Take(); err != nil {
		t.Fatal(err)
	}
	return r
}

// The node reports rows whose ids the layout of their keyspace cannot have produced, and a layout
// that fits more of the ids. It does not report other rows, nor rows that are numbered from 1 on.
func TestMisfitIsReported(t *testing.T) {
	t.Parallel()
	now := time.Now()
	recent := func(l tiering.IDLayout) uint64 { return l.FirstAt(now.Add(-time.Hour)) + 3 }
	for _, c := range []struct {
		layout tiering.IDLayout
		id     uint64
		fits   string // "" for an id of the layout
	}{
		{tiering.LayoutWeibo, recent(tiering.LayoutWeibo), ""},
		{tiering.LayoutWeibo, recent(tiering.LayoutTwitter), "twitter"},
		{tiering.LayoutTwitter, recent(tiering.LayoutTwitter), ""},
		{tiering.LayoutTwitter, recent(tiering.LayoutWeibo), "weibo"},
		{tiering.LayoutWeibo, uint64(now.UnixMilli()), "none"},
		{tiering.LayoutWeibo, 1<<64 - 1, "none"},
		{tiering.LayoutWeibo, 12, ""},
		{tiering.IDLayout{}, 1<<64 - 1, ""},
	} {
		for _, route := range []raftfsm.Route{raftfsm.NewRoute(1, 1, false), raftfsm.NewRoute(7, 7, false), raftfsm.NewRoute(7, 7, true)} {
			tiers := tiering.New(tiering.Config{Catalog: catalog.New(), Cold: tiering.ColdConfig{Layouts: map[string]tiering.IDLayout{"posts": c.layout}}})
			shard, key := route.KeyOf(c.id)
			fsm := counters.New(raftfsm.Places{})
			_, err := fsm.Table().Apply([]engine.Op{addTo(7, 0, 1), addTo(key, 0, 1)}, 0, nil, nil)
			mustDo(t, err)
			got := tiers.Misfit(&tiering.Shard{Keyspace: "posts", PerKey: route.Divisor, Offset: route.IDOf(shard, 0), FSM: fsm})
			if c.fits == "" && got != nil || c.fits != "" && (got == nil || *got != tiering.Misfit{ID: c.id, Layout: c.layout.String(), Fits: c.fits, Rows: 1}) {
				t.Errorf("id %d of layout %v, %+v: reported %+v, want %q", c.id, c.layout, route, got, c.fits)
			}
		}
	}
}

// The advised layout never fits fewer ids than the present one.
func TestMisfitsAreCounted(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ids := func(l tiering.IDLayout, n int) (ids []uint64) {
		for i := range n {
			ids = append(ids, l.FirstAt(now.Add(-time.Hour))+uint64(i)<<l.Shift)
		}
		return ids
	}
	var untimed []uint64
	for i := range uint64(60) {
		untimed = append(untimed, uint64(now.UnixMilli())+i)
	}
	for _, c := range []struct {
		name string
		ids  []uint64
		rows int
		fits string
	}{
		{"some of another", slices.Concat(ids(tiering.LayoutWeibo, 50), ids(tiering.LayoutTwitter, 7)), 7, ""},
		{"most of another", slices.Concat(ids(tiering.LayoutWeibo, 7), ids(tiering.LayoutTwitter, 50)), 50, "twitter"},
		{"most of none", slices.Concat(ids(tiering.LayoutWeibo, 7), untimed), 60, ""},
		{"all of none", untimed, 60, "none"},
		{"of one, and of none", slices.Concat(ids(tiering.LayoutTwitter, 50), untimed), 110, "twitter"},
		{"many rows", slices.Concat(ids(tiering.LayoutTwitter, 20_000), ids(tiering.LayoutWeibo, 20_000), untimed), 20_060, ""},
	} {
		for _, route := range []raftfsm.Route{raftfsm.NewRoute(1, 1, false), raftfsm.NewRoute(1, 1, true)} {
			tiers := tiering.New(tiering.Config{Catalog: catalog.New(), Cold: tiering.ColdConfig{Layouts: map[string]tiering.IDLayout{"posts": tiering.LayoutWeibo}}})
			fsm := counters.New(raftfsm.Places{})
			for batch := range slices.Chunk(c.ids, 1000) {
				var ops []engine.Op
				for _, id := range batch {
					ops = append(ops, addTo(id, 0, 1))
				}
				_, err := fsm.Table().Apply(ops, 0, nil, nil)
				mustDo(t, err)
			}
			shard := &tiering.Shard{Keyspace: "posts", PerKey: route.Divisor, FSM: fsm}
			for range 2 {
				got := tiers.Misfit(shard)
				if got == nil || got.Rows != c.rows || got.Fits != c.fits || !slices.Contains(c.ids, got.ID) {
					t.Errorf("%s, %+v: reported %+v, want %d rows and %q", c.name, route, got, c.rows, c.fits)
				}
				fsm.Watch(tiering.AnyAge, true)
				for from, more := uint64(0), true; more; { // the second time most rows are packed
					_, from, more, _ = fsm.Seal(from, tiering.AnyAge)
				}
			}
		}
	}
}

func coldID(i uint64) uint64 { return 3342819171543700 + i<<22 }

func openColdNode(t *testing.T, dir string, i int, after time.Duration) *Node {
	t.Helper()
	n := openColdNodeAt(t, dir, i, after, "")
	if i == 1 {
		ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
		defer cancel()
		if err := n.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// openColdNodeAt opens a node at an address, "" for any.
func openColdNodeAt(t *testing.T, dir string, i int, after time.Duration, addr string) *Node {
	t.Helper()
	cfg := memberConfig(t, filepath.Join(dir, "groups"), i, 1)
	if addr != "" {
		cfg.ClusterAddr = addr
	}
	cfg.Shards = map[string]int{"posts": 1, "users": 1}
	cfg.Cold = tiering.ColdConfig{Dir: filepath.Join(dir, "cold"), After: after, Layouts: map[string]tiering.IDLayout{"posts": tiering.LayoutWeibo}}
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeCold(t, n) })
	return n
}

func closeCold(t *testing.T, n *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Error(err)
	}
}

// checkCold reads and writes rows that are cold and rows that are not.
func checkCold(t *testing.T, n *Node, ks *Keyspace, want int64) {
	t.Helper()
	ids := []uint64{coldID(0), coldID(777), coldID(coldTestRows - 1), coldID(9999)}
	got := mustGet(t, n, ks, ReadOptions{}, ids...)
	one := mustGet(t, n, ks, ReadOptions{}, coldID(777))
	for i := range ids {
		if got[i*4] != want || one[0] != want {
			t.Fatalf("row %d reads %v, want %d; alone %v", ids[i], got[i*4:i*4+4], want, one)
		}
	}
	if absent := mustGet(t, n, ks, ReadOptions{}, coldID(777)+1); absent[0] != 0 {
		t.Errorf("an absent row reads %v", absent)
	}
	var ops []engine.Op
	for _, id := range ids {
		ops = append(ops, addTo(id, 0, 1))
	}
	w := mustWrite(t, n, ks, ops...)
	for i := range ids {
		if w.Rows[i*4] != want+1 {
			t.Errorf("op on %d answers %v, want %d", ids[i], w.Rows[i*4:i*4+4], want+1)
		}
	}
}

func countRows(t *testing.T, n *Node, ks *Keyspace) int {
	t.Helper()
	rows, after, has := 0, uint64(0), false
	for {
		r, err := n.Scan(ks, after, has, 5000, 4, &ReadOptions{Deadline: soon()})
		if err != nil {
			t.Fatal(err)
		}
		if rows += len(r.IDs); !r.More {
			return rows
		}
		after, has = r.IDs[len(r.IDs)-1], true
	}
}

// Cold rows answer like other rows, also after a restart from snapshot and log. So do shards
// without cold rows.
func TestColdRowsOfANode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := openColdNode(t, dir, 1, 0)
	ks := n.Keyspace("posts")
	r := fillCold(t, n, ks)
	late := addTo(coldID(555)+1, 0, 1)
	if before := n.cold.Stats(); r.fsm.GrowsTable(rows.Counts, late.ID, &late, time.Now()) || n.cold.Stats().Misses != before.Misses {
		t.Error("whether there is a row is read from disk for who has no time left")
	}
	checkCold(t, n, ks, 1)
	if rows := countRows(t, n, ks); rows != coldTestRows {
		t.Errorf("a scan gives %d rows", rows)
	}
	absent, there := addTo(coldID(777)+1, 0, 1), addTo(coldID(778), 0, 1)
	if !r.fsm.GrowsTable(rows.Counts, absent.ID, &absent, soon()) || r.fsm.GrowsTable(rows.Counts, there.ID, &there, soon()) {
		t.Error("a new row among cold ones is taken for one of them")
	}
	snapshot, err := n.OpenSnapshot(t.Context(), r.group.Group())
	if err != nil {
		t.Fatal(err)
	}
	facts, err := kinds.All.VisitSnapshot(snapshot, codec.KindCounters, n.registry.shardOf(r.group.Group()).first, raftfsm.SnapshotVisitor{})
	if state := r.fsm.State(); err != nil || facts.Digest != state.Digest || facts.Rows != state.Rows {
		t.Errorf("a backup of %+v, %v, of %+v", facts, err, state)
	}
	snapshot.Close()
	mustMove(t, n, 7, 1, 3)
	mustFollow(t, n, 7, feed.Followee{ID: 8, Posts: 9})
	mustBoard(t, n, unread.BoardOp{Kind: unread.Publish, Name: "news"})
	for _, g := range n.registry.groups.Load().all {
		r := g.replica.Load()
		if mayBeCold := r.group.Cold() != nil; mayBeCold != (g.kind == codec.KindCounters) {
			t.Errorf("rows of a shard of %s may be cold: %v", g.kind, mayBeCold)
		}
		if g.kind == codec.KindCounters {
			continue
		}
		backup, err := n.OpenSnapshot(t.Context(), g.number)
		if err != nil {
			t.Fatal(err)
		}
		facts, err := kinds.All.VisitSnapshot(backup, g.kind, g.first, raftfsm.SnapshotVisitor{})
		if state := r.fsm.State(); err != nil || facts.Digest != state.Digest || facts.Rows != state.Rows {
			t.Errorf("a backup of %s: %+v, %v, of %+v", g.kind, facts, err, state)
		}
		backup.Close()
	}
	before := digests(n)
	closeCold(t, n)
	n = openColdNode(t, dir, 1, 0)
	if after := digests(n); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("after the restart %v, before %v", after, before)
	}
	checkCold(t, n, n.Keyspace("posts"), 2)
	g, _ := n.router.groupsOf(n.Keyspace("posts"))
	if err := rafttest.CheckTable(g[0].replica.Load().fsm.Machine.(*counters.Machine).Table()); err != nil {
		t.Error(err)
	}
}

// Rows become cold without an operator once they are old and nobody writes to them.
func TestRowsBecomeCold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := openColdNode(t, dir, 1, time.Second)
	ks := n.Keyspace("posts")
	ops := make([]engine.Op, coldTestRows)
	for i := range ops {
		ops[i] = addTo(coldID(uint64(i)), 0, 1)
	}
	mustWrite(t, n, ks, ops...)
	cold := func(n *Node) (rows, snapshot uint64) {
		for _, g := range n.Status().Groups {
			if g.Keyspace == "posts" {
				rows, snapshot = g.ColdRows, g.SnapshotIndex
			}
		}
		return rows, snapshot
	}
	eventually(t, "rows are cold, and a snapshot names them", func() bool {
		rows, snapshot := cold(n)
		return rows >= coldTestRows/2 && snapshot > 0
	})
	checkCold(t, n, ks, 1)
	closeCold(t, n)
	n = openColdNode(t, dir, 1, 0)
	if rows, _ := cold(n); rows < coldTestRows/2 {
		t.Errorf("%d rows are cold after a restart", rows)
	}
	checkCold(t, n, n.Keyspace("posts"), 2)
}

// Rows numbered from 1 on have no age: they stay in memory while rows of old ids leave
// it, and if memory is tight they leave last.
func TestNumberedRowsAreNotOld(t *testing.T) {
	t.Parallel()
	n := openColdNode(t, t.TempDir(), 1, 24*time.Hour)
	ks := n.Keyspace("posts")
	g, err := n.router.groupsOf(ks)
	mustDo(t, err)
	r := g[0].replica.Load()
	fsm := r.fsm.Machine.(*counters.Machine)
	write := func(idOf func(uint64) uint64) {
		t.Helper()
		ops := make([]engine.Op, coldTestRows)
		for i := range ops {
			ops[i] = addTo(idOf(uint64(i)), 0, 1)
		}
		mustWrite(t, n, ks, ops...)
	}
	inMemory := func(id uint64) bool { return fsm.Table().Get(id, make([]int64, 1)) }
	write(func(i uint64) uint64 { return i + 1 })
	write(coldID)
	n.tiering.MoveCold()
	n.tiering.MoveCold()
	for i := range uint64(coldTestRows) {
		if !inMemory(i + 1) {
			t.Fatalf("row %d, of an id without an age, left memory", i+1)
		}
	}
	if rows := fsm.State().ColdRows; rows < coldTestRows/3 {
		t.Errorf("%d rows of old ids left memory", rows)
	}
	write(func(i uint64) uint64 { return coldID(coldTestRows + i) })
	fsm.Watch(tiering.AnyAge, true)
	idle := fsm.Watch(tiering.AnyAge, true)
	idle.PutLast(1_000_000_000)
	_, err = fsm.FreezeSome(idle, 1)
	mustDo(t, err)
	if inMemory(coldID(coldTestRows)) || !inMemory(1) {
		t.Error("rows of ids without an age leave memory before others")
	}
	for idle.Segments() > 0 {
		_, err = fsm.FreezeSome(idle, idle.Segments())
		mustDo(t, err)
	}
	if inMemory(1) {
		t.Error("rows of ids without an age never leave memory")
	}
}

// A new replica gets the cold rows of a snapshot that only names them, stores them on its own disk,
// and agrees with the other replica.
func TestNewReplicaIsSentColdRows(t *testing.T) {
	t.Parallel()
	n := openColdNode(t, t.TempDir(), 1, 0)
	ks := n.Keyspace("posts")
	r := fillCold(t, n, ks)
	dir := t.TempDir()
	other := openColdNode(t, dir, 2, 0)
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	for _, command := range []*catalog.Command{
		{PutNode: &catalog.PutNodeEntry{Node: other.record()}},
		{Place: &catalog.PlaceEntry{Group: r.group.Group(), Was: []string{"n1.0"}, Target: []string{"n1.0", "n2.0"}}},
	} {
		if err := n.catalogClient.MustChange(ctx, command); err != nil {
			t.Fatal(err)
		}
	}
	there := func() *localReplica {
		if g := other.registry.shardOf(r.group.Group()); g != nil {
			return g.replica.Load()
		}
		return nil
	}
	eventually(t, "the new replica has caught up", func() bool {
		replica := there()
		return replica != nil && replica.fsm.Applied() == r.fsm.Applied() && replica.group.Stats().Snapshot > 0
	})
	want, got := r.fsm.State(), there().fsm.State()
	if got.Digest != want.Digest || got.Rows != want.Rows || got.ColdRows < coldTestRows/3 {
		t.Errorf("the new replica has %+v, want %+v", got, want)
	}
	if err := rafttest.CheckTable(there().fsm.Machine.(*counters.Machine).Table()); err != nil {
		t.Error(err)
	}
	carried := there().group.Snapshots().NewestBytes()
	eventually(t, "a snapshot of its own names them", func() bool { // raft defers it while members change
		other.tiering.MoveCold()
		return there().group.Snapshots().NewestBytes() < carried*4/5
	})
	checkCold(t, other, other.Keyspace("posts"), 1)
}

// mustBeUnreadable checks that an error names the shard that the only node cannot read.
func mustBeUnreadable(t *testing.T, err error, r *localReplica) {
	t.Helper()
	var damaged *UnreadableError
	if !errors.Is(err, errs.ErrUnreadable) || !errors.As(err, &damaged) || damaged.Keyspace != "posts" || damaged.Shard != 0 {
		t.Errorf("of damaged rows of group %d: %v", r.group.Group(), err)
	}
}

// A node with damaged cold rows reports that and answers none of them wrongly; it serves
// all other rows.
func TestDamagedColdRows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := openColdNode(t, dir, 1, 0)
	ks := n.Keyspace("posts")
	r := fillCold(t, n, ks)
	if err := n.cold.Erase(r.group.Group()); err != nil {
		t.Fatal(err)
	}
	row := make([]int64, 4)
	err := n.Get(ks, []uint64{coldID(5)}, 4, &ReadOptions{Deadline: soon()}, row)
	mustBeUnreadable(t, err, r)
	_, err = n.Scan(ks, 0, false, 10, 4, &ReadOptions{Deadline: soon()})
	mustBeUnreadable(t, err, r)
	skipped, err := n.scanReadable(ks, 10, 4, &ReadOptions{Consistency: Stale, Deadline: soon()})
	if err != nil || len(skipped.Unreadable) != 1 {
		t.Errorf("a scan that skips: %+v, %v", skipped, err)
	}
	w := &Write{Ops: counters.Ops{addTo(coldID(5), 0, 1)}, Deadline: soon()}
	mustBeUnreadable(t, n.Write(ks, w), r)
	if got := mustGet(t, n, ks, ReadOptions{}, coldID(coldTestRows-1)); got[0] != 1 {
		t.Errorf("a row in memory reads %v", got)
	}
	mustWrite(t, n, ks, addTo(coldID(coldTestRows), 0, 1))
	for _, g := range n.Status().Groups {
		if want := g.ID == r.group.Group(); g.ColdDamaged != want {
			t.Errorf("shard %d of %s is damaged: %v", g.Shard, g.Keyspace, g.ColdDamaged)
		}
	}
	closeCold(t, n)
	n = openColdNodeAt(t, dir, 1, 0, "")
	eventually(t, "the rest is served", func() bool {
		w := &Write{Ops: counters.Ops{addTo(1, 0, 1)}, Deadline: soon()}
		users := n.Keyspace("users")
		return users != nil && n.Write(users, w) == nil
	})
	ks = n.Keyspace("posts")
	for _, consistency := range []Consistency{Stale, Bounded, Linearizable} {
		opt := &ReadOptions{Consistency: consistency, Deadline: time.Now().Add(300 * time.Millisecond)}
		if err := n.Get(ks, []uint64{coldID(coldTestRows - 1)}, 4, opt, row); !errors.Is(err, errs.ErrNoQuorum) {
			t.Errorf("after the start: %v, %v", row, err)
		}
	}
	w.Deadline = time.Now().Add(300 * time.Millisecond)
	if err := n.Write(ks, w); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("write after the start: %v", err)
	}
	eventually(t, "it is told", func() bool { return n.registry.damagedShards() == 1 })
	if n.Ready() == nil {
		t.Error("the node is ready")
	}
}

// Near the memory limit, rows of any age leave memory, from all shards alike and the least ids first,
// until memory suffices.
func TestOldestRowsLeaveTightMemory(t *testing.T) {
	t.Parallel()
	cfg := memberConfig(t, filepath.Join(t.TempDir(), "groups"), 1, 1)
	cfg.Shards = map[string]int{"posts": 2, "users": 1}
	cfg.Cold = tiering.ColdConfig{After: 24 * time.Hour} // no id has a time
	n, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { closeCold(t, n) })
	eventually(t, "the node serves", func() bool { return n.Ready() == nil })
	ks := n.Keyspace("posts")
	const rows = 200_000
	for from := uint64(0); from < rows; from += 10_000 {
		ops := make([]engine.Op, 10_000)
		for i := range ops {
			ops[i] = addTo(from+uint64(i), 0, 1)
		}
		mustWrite(t, n, ks, ops...)
	}
	groups, err := n.router.groupsOf(ks)
	mustDo(t, err)
	cold := func() (all []uint64) {
		for _, g := range groups {
			all = append(all, g.replica.Load().fsm.State().ColdRows)
		}
		return all
	}
	n.tiering.MoveCold()
	if n.tiering.MoveCold(); cold()[0]+cold()[1] > 0 {
		t.Errorf("rows are cold without need: %v", cold())
	}
	all := n.tiering.Leaving(func(s *tiering.Shard) bool { return s.Keyspace == "posts" })
	for _, l := range all {
		l.Watch(tiering.AnyAge, true)
		l.Watch(tiering.AnyAge, true)
	}
	asked := 0
	n.tiering.Relieve(all, func() bool { asked++; return asked <= len(all) })
	for i, got := range cold() {
		if got == 0 || got > rows/4 {
			t.Errorf("%d rows of shard %d are cold", got, i)
		}
		if all[i].FSM.Table().Get(0, make([]int64, 1)) {
			t.Errorf("the first row of shard %d is in memory", i)
		}
	}
	n.tiering.Relieve(all, func() bool { return true })
	for i, got := range cold() {
		if got < rows/4 {
			t.Errorf("%d rows of shard %d are cold", got, i)
		}
	}
}
