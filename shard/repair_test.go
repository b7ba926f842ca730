package shard

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard/errs"
)

// coldMember is a node of a test's cluster, which may be stopped and started again.
type coldMember struct {
	*Node
	t   *testing.T
	dir string
	i   int
}

func (m *coldMember) stop() { closeCold(m.t, m.Node) }

func (m *coldMember) start() {
	m.t.Helper()
	addr := ""
	if m.Node != nil {
		addr = m.record().ClusterAddr
	}
	m.Node = openColdNodeAt(m.t, m.dir, m.i, 0, addr)
}

// here returns the member's replica of the first shard of posts, or nil.
func (m *coldMember) here() *localReplica { return m.replicaOf(0) }

// replicaOf returns the member's replica of a shard of posts, or nil.
func (m *coldMember) replicaOf(shard int) *localReplica {
	ks := m.Keyspace("posts")
	if ks == nil {
		return nil
	}
	groups, err := m.router.groupsOf(ks)
	if err != nil || shard >= len(groups) {
		return nil
	}
	if groups[shard] == nil { // not known of yet
		return nil
	}
	return groups[shard].replica.Load()
}

// mustNameCold makes the member's newest snapshot name its cold rows, instead of containing the
// rows that the member was sent.
func (m *coldMember) mustNameCold() {
	m.t.Helper()
	r := m.here()
	carried := r.group.Snapshots().NewestBytes()
	eventually(m.t, "a snapshot of its own names its cold rows", func() bool { // raft defers it while members change
		m.tiering.MoveCold()
		return r.group.Snapshots().NewestBytes() < carried*4/5
	})
}

// coldCluster returns three nodes with replicas of a shard. Most of its rows are cold on all of them. The
// first node leads it.
func coldCluster(t *testing.T) []*coldMember {
	t.Helper()
	all := make([]*coldMember, 3)
	for i := range all {
		all[i] = &coldMember{t: t, dir: t.TempDir(), i: i + 1}
		all[i].start()
	}
	first := all[0]
	eventually(t, "the first serves", func() bool { return first.Ready() == nil })
	r := fillCold(t, first.Node, first.Keyspace("posts"))
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	was, target := []string{"n1.0"}, []string{"n1.0"}
	for _, m := range all[1:] {
		mustDo(t, first.catalogClient.MustChange(ctx, &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: m.record()}}))
		target = append(target, m.record().Key)
	}
	mustDo(t, first.catalogClient.MustChange(ctx, &catalog.Command{Place: &catalog.PlaceEntry{Group: r.group.Group(), Was: was, Target: target}}))
	for _, m := range all[1:] {
		eventually(t, "the replica has caught up", func() bool {
			here := m.here()
			return here != nil && here.fsm.Applied() == r.fsm.Applied() && here.fsm.State().ColdRows > coldTestRows/3
		})
	}
	eventually(t, "all vote", func() bool { return len(r.group.Voters()) == len(all) })
	return all
}

// lead waits until the member leads the shard of posts.
func (m *coldMember) lead(all []*coldMember) {
	m.t.Helper()
	eventually(m.t, "the member leads", func() bool {
		for _, other := range all {
			if other != m && other.here().group.Leads() {
				_ = other.membership.HandOver(m.here().group.Group(), m.cfg.NodeKey) // a failed handover is repeated
			}
		}
		return m.here().group.Ready() == nil
	})
}

// mustBeRepaired waits until a member has replaced its damaged replica, and compares the new one with the
// others, on disk too.
func mustBeRepaired(t *testing.T, all []*coldMember, m *coldMember, damaged *localReplica) {
	t.Helper()
	mustRepairShard(t, all, m, 0, damaged)
	if n := m.registry.damagedShards(); n != 0 {
		t.Errorf("%d shards are damaged", n)
	}
}

// mustRepairShard is mustBeRepaired for one shard of posts.
func mustRepairShard(t *testing.T, all []*coldMember, m *coldMember, shard int, damaged *localReplica) {
	t.Helper()
	eventually(t, "another replica is there", func() bool {
		here := m.replicaOf(shard)
		return here != nil && here != damaged && !here.damage.Found() && here.fsm.Stuck() == nil
	})
	eventually(t, "all agree", func() bool {
		want := all[0].replicaOf(shard).fsm.State()
		for _, other := range all[1:] {
			here := other.replicaOf(shard)
			if here == nil {
				return false
			}
			if got := here.fsm.State(); got.Index != want.Index || got.Digest != want.Digest || got.Rows != want.Rows {
				return false
			}
		}
		return true
	})
	// Each transfer of the rows to another replica leaves some more in memory, and there may have
	// been two transfers.
	if got := m.replicaOf(shard).fsm.State(); got.ColdRows < got.Rows/5 {
		t.Errorf("%d of %d rows are cold", got.ColdRows, got.Rows)
	}
	mustDo(t, rafttest.CheckTable(m.replicaOf(shard).fsm.Machine.(*counters.Machine).Table()))
}

// A bit flips in a block on one of three nodes: every read is answered correctly, the replica is
// repaired from another, and the damage is logged.
func TestFlippedBitIsRepaired(t *testing.T) {
	t.Parallel()
	all := coldCluster(t)
	m := all[1]
	m.mustNameCold()
	m.stop()
	m.start() // what was in Pebble's log is in its files now
	m.stop()
	flipped := flipLargest(t, filepath.Join(m.dir, "cold", "*.sst"))
	m.start()
	eventually(t, "the node serves", func() bool { return m.Ready() == nil })
	damaged := m.here()
	readAllCold(t, m)
	if !damaged.damage.Found() {
		t.Fatalf("a flipped bit in %s is not found", flipped)
	}
	mustBeRepaired(t, all, m, damaged)
	checkCold(t, m.Node, m.Keyspace("posts"), 1)
	m.stop()
	m.start()
	eventually(t, "the node serves", func() bool { return m.Ready() == nil })
	checkCold(t, m.Node, m.Keyspace("posts"), 2)
}

// readAllCold reads and scans all rows of posts at a member.
func readAllCold(t *testing.T, m *coldMember) {
	t.Helper()
	ks := m.Keyspace("posts")
	for from := uint64(0); from < coldTestRows; from += 5000 {
		ids := make([]uint64, 5000)
		for i := range ids {
			ids[i] = coldID(from + uint64(i))
		}
		rows := mustGet(t, m.Node, ks, ReadOptions{Consistency: Stale}, ids...)
		for i := range ids {
			if rows[4*i] != 1 {
				t.Fatalf("row %d reads %v", ids[i], rows[4*i:4*i+4])
			}
		}
	}
	if n := countRows(t, m.Node, ks); n != coldTestRows {
		t.Errorf("a scan gives %d rows", n)
	}
}

// A node that cannot list its generations on disk starts nevertheless.
func TestFlippedListIsOutlived(t *testing.T) {
	if testing.Short() {
		t.Skip("it makes 10,000 rows cold")
	}
	t.Parallel()
	all := coldCluster(t)
	m := all[1]
	m.stop()
	m.start() // m writes the rows of its snapshot anew, and a file now lists the earlier ones
	m.stop()
	flipLargest(t, filepath.Join(m.dir, "cold", "*.sst"))
	m.start()
	eventually(t, "the node serves", func() bool { return m.Ready() == nil })
	checkCold(t, m.Node, m.Keyspace("posts"), 1)
	mustBeRepaired(t, all, m, nil)
}

// flipLargest flips a bit in the middle of the largest file.
func flipLargest(t *testing.T, pattern string) string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	mustDo(t, err)
	largest, size := "", int64(0)
	for _, path := range paths {
		info, err := os.Stat(path)
		mustDo(t, err)
		if info.Size() > size {
			largest, size = path, info.Size()
		}
	}
	if largest == "" {
		t.Fatalf("no file %s", pattern)
	}
	content, err := os.ReadFile(largest)
	mustDo(t, err)
	content[size/2] ^= 4
	mustDo(t, os.WriteFile(largest, content, 0o600))
	return largest
}

// A leader whose cold rows are gone hands over, and is repaired as a follower.
func TestDamagedLeaderIsRepaired(t *testing.T) {
	t.Parallel()
	all := coldCluster(t)
	m := all[0]
	damaged := m.here()
	mustDo(t, m.cold.Erase(damaged.group.Group()))
	ks := m.Keyspace("posts")
	eventually(t, "a read finds the damage", func() bool {
		m.lead(all) // a busy machine may make another node the leader, which reads its own rows
		if got := mustGet(t, m.Node, ks, ReadOptions{Consistency: Linearizable}, coldID(5)); got[0] != 1 {
			t.Errorf("a row reads %v", got)
		}
		return damaged.damage.Found()
	})
	mustBeRepaired(t, all, m, damaged)
	checkCold(t, m.Node, ks, 1)
}

// A leader that cannot read the sets of a snapshot for a follower hands the group over and is repaired.
// The follower gets a snapshot of another replica.
func TestDamagedSnapshotOfALeaderIsRepaired(t *testing.T) {
	if testing.Short() {
		t.Skip("it makes 10,000 rows cold, and waits for a copy")
	}
	t.Parallel()
	// A busy machine may make another node the leader, which sends its entries.
	eventually(t, "the leader sends a snapshot", func() bool { return damagedSnapshotIsSent(t) })
}

// damagedSnapshotIsSent returns false if the follower got the entries of another leader.
func damagedSnapshotIsSent(t *testing.T) bool {
	t.Helper()
	all := coldCluster(t)
	m, behind := all[0], all[2]
	damaged, ks := m.here(), m.Keyspace("posts")
	memberWrite(t, m.Node, ks, engine.Join(coldID(5), 2, 1))
	behind.stop()
	var w *Write
	for i := range uint64(2 * 128) { // more entries than any snapshot leaves in the log
		w = memberWrite(t, m.Node, ks, engine.Join(coldID(5), 2, i))
	}
	m.lead(all[:2])
	damaged.group.Log().Covered(-(1 << 40), 0) // as if the entries were so large that few are kept
	eventually(t, "a snapshot names the sets", func() bool { return damaged.group.Snapshotter().Take() == nil })
	sets := damaged.fsm.Members()
	sets.ReleaseViews(time.Now())
	mustDo(t, m.sets.Drop(damaged.group.Group())) // behind its back
	last := damaged.fsm.Applied()
	behind.start()
	eventually(t, "the follower gets a snapshot or entries", func() bool {
		here := behind.here()
		return damaged.damage.Found() || here != nil && here.fsm.Applied() >= last
	})
	if !damaged.damage.Found() {
		return false
	}
	mustBeRepaired(t, all, m, damaged)
	if in := isIn(t, behind.Node, behind.Keyspace("posts"), 2, w, coldID(5), coldID(6)); !in[0] || in[1] {
		t.Errorf("the follower has the member in %v", in)
	}
	mustDo(t, m.here().fsm.Members().Verify())
	return true
}

// A follower that cannot apply an entry is stuck. It answers only with state that it has applied.
// It is repaired, and its vote and its log stay the same.
func TestStuckFollowerIsRepaired(t *testing.T) {
	t.Parallel()
	all := coldCluster(t)
	m := all[2]
	stuck := m.here()
	mustDo(t, m.cold.Erase(stuck.group.Group()))
	ks := all[0].Keyspace("posts")
	w := mustWrite(t, all[0].Node, ks, addTo(coldID(5), 0, 1))
	eventually(t, "it is stuck", func() bool { return stuck.fsm.Stuck() != nil })
	for _, opt := range []ReadOptions{{Consistency: Stale}, {Token: w.Token}, {Consistency: Linearizable}} {
		if got := mustGet(t, m.Node, m.Keyspace("posts"), opt, coldID(5), coldID(6)); got[0] != 2 && opt.Consistency != Stale || got[4] != 1 {
			t.Errorf("%+v reads %v", opt, got)
		}
	}
	mustWrite(t, all[0].Node, ks, addTo(coldID(5), 0, -1), engine.Op{ID: coldID(7), Kind: engine.OpDelete})
	mustBeRepaired(t, all, m, stuck)
	checkCold(t, m.Node, m.Keyspace("posts"), 1)
}

// A node that has lost all cold rows that its own snapshot names starts, and is
// repaired.
func TestLostColdRowsAreRepaired(t *testing.T) {
	t.Parallel()
	all := coldCluster(t)
	m := all[1]
	m.mustNameCold()
	m.stop()
	mustDo(t, os.RemoveAll(filepath.Join(m.dir, "cold")))
	m.start()
	mustBeRepaired(t, all, m, nil)
	checkCold(t, m.Node, m.Keyspace("posts"), 1)
}

// If all replicas have lost the same rows, nothing is repaired. The nodes serve the readable rows, answer
// nothing wrong, and keep their replicas.
func TestNothingToRepairFrom(t *testing.T) {
	t.Parallel()
	all := coldCluster(t)
	number := all[0].here().group.Group()
	was := make([]*localReplica, len(all))
	snapshots := make([][]string, len(all))
	for i, m := range all {
		if i > 0 {
			m.mustNameCold()
		}
		was[i] = m.here()
		var err error
		snapshots[i], err = was[i].group.Snapshots().Names()
		mustDo(t, err)
		mustDo(t, m.cold.Erase(number))
	}
	row := make([]int64, 4)
	eventually(t, "all know", func() bool {
		for i, m := range all {
			opt := &ReadOptions{Consistency: Stale, Deadline: time.Now().Add(200 * time.Millisecond)}
			if err := m.Get(m.Keyspace("posts"), []uint64{coldID(5)}, 4, opt, row); !errors.Is(err, errs.ErrNoQuorum) {
				t.Fatalf("%s reads %v, %v", m.cfg.NodeName, row, err)
			}
			if !was[i].damage.Found() {
				return false
			}
		}
		return true
	})
	for _, m := range all[1:] {
		if err := m.repair(t.Context(), m.registry.shardOf(number), m.here()); err == nil {
			t.Errorf("%s is repaired", m.cfg.NodeName)
		}
	}
	for i, m := range all {
		if m.here() != was[i] {
			t.Errorf("%s has another replica", m.cfg.NodeName)
		}
		if names, err := was[i].group.Snapshots().Names(); err != nil || !slices.Equal(names, snapshots[i]) {
			t.Errorf("%s has snapshots %v, %v, had %v", m.cfg.NodeName, names, err, snapshots[i])
		}
		if got := mustGet(t, m.Node, m.Keyspace("posts"), ReadOptions{Consistency: Linearizable}, coldID(coldTestRows-1)); got[0] != 1 {
			t.Errorf("a row in memory reads %v", got)
		}
	}
	mustWrite(t, all[1].Node, all[1].Keyspace("posts"), addTo(coldID(coldTestRows-1), 0, 1))
}

// An interrupted repair leaves the replica as it was. If the process ends between the snapshot and its
// opening, the repair is complete at the next start, and loses no acknowledged entry of the log.
func TestRepairOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	all := coldCluster(t)
	m := all[1]
	m.repairing.Store(true) // set by this test
	stuck := m.here()
	g := m.registry.shardOf(stuck.group.Group())
	mustDo(t, m.cold.Erase(g.number))
	mustWrite(t, all[0].Node, all[0].Keyspace("posts"), addTo(coldID(5), 0, 1))
	mustWrite(t, all[0].Node, all[0].Keyspace("posts"), addTo(coldID(5), 0, -1))
	eventually(t, "it is stuck and has the log", func() bool {
		return stuck.fsm.Stuck() != nil && stuck.group.LastIndex() >= all[0].here().fsm.Applied()
	})
	before, err := stuck.group.Snapshots().Names()
	mustDo(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.fetchSnapshot(gone, g, stuck.group, "n1.0"); err == nil {
		t.Error("a cut stream is a snapshot")
	}
	if after, err := stuck.group.Snapshots().Names(); err != nil || !slices.Equal(after, before) {
		t.Errorf("snapshots %v, %v, had %v", after, err, before)
	}
	last := stuck.group.LastIndex()
	mustDo(t, m.fetchSnapshot(t.Context(), g, stuck.group, "n1.0"))
	snapshot := stuck.group.Snapshots().NewestIndex()
	m.stop()
	m.start()
	eventually(t, "its replica is open again", func() bool { return m.here() != nil })
	if got := m.here().group.LastIndex(); snapshot >= last || got < last {
		t.Errorf("the log ends at %d, it ended at %d; the snapshot is of %d", got, last, snapshot)
	}
	mustBeRepaired(t, all, m, stuck)
	checkCold(t, m.Node, m.Keyspace("posts"), 1)
}

// A node without a replica reads and writes cold rows of other nodes. Requests that need no cold row do
// not wait for those that do.
func TestColdRowsOfOtherNodes(t *testing.T) {
	t.Parallel()
	all := coldCluster(t)
	m := &coldMember{t: t, dir: t.TempDir(), i: 4}
	m.start()
	mustDo(t, all[0].catalogClient.MustChange(t.Context(), &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: m.record()}}))
	eventually(t, "it knows the keyspace", func() bool { return m.Keyspace("posts") != nil })
	ks := m.Keyspace("posts")
	checkCold(t, m.Node, ks, 1)
	checkCold(t, m.Node, ks, 2) // of rows that are in memory by now
	if n := countRows(t, m.Node, ks); n != coldTestRows {
		t.Errorf("a scan gives %d rows", n)
	}
	r := all[0].here()
	q, p := &rows.Query{Width: 4}, &raftfsm.Part{Route: r.fsm.Route(), Keys: []uint64{coldID(coldTestRows - 2), coldID(11)}}
	if err := r.fsm.Answer(q, p, false, soon()); !errors.Is(err, errs.ErrColdRows) {
		t.Errorf("a read that does not wait: %v, %v", p.Words, err)
	}
	if err := r.fsm.Answer(q, p, true, soon()); err != nil || p.Words[0] != 1 || p.Words[4] != 1 {
		t.Errorf("one that waits: %v, %v", p.Words, err)
	}
	p.Keys = p.Keys[:1]
	if err := r.fsm.Answer(q, p, false, soon()); err != nil || p.Words[0] != 1 {
		t.Errorf("one of memory: %v, %v", p.Words, err)
	}
}

// A repair that continues after its replica was closed writes nothing. By then the directory may be
// deleted. A write would create it again, and the next start would refuse it.
func TestRepairEndsWithTheReplica(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2})
	groups, err := n.router.groupsOf(n.Keyspace("posts"))
	mustDo(t, err)
	from, deleted := groups[0], groups[1]
	r := deleted.replica.Swap(nil)
	mustDo(t, r.close(t.Context(), false))
	mustDo(t, n.registry.dirs.MoveAside(deleted.number, r.group.Number()))
	mustDo(t, n.registry.dirs.Finish())
	// The shards of a test are alike, so one can send what the other asks for.
	if err := n.fetchSnapshot(t.Context(), from, r.group, n.cfg.NodeKey); !errors.Is(err, errs.ErrGroupClosed) {
		t.Errorf("the repair ended with %v", err)
	}
	if err := n.registry.dirs.Load(); err != nil || n.registry.dirs.Unfinished(deleted.number) {
		t.Errorf("the next start loads with %v, and finds a replica half deleted: %v", err, n.registry.dirs.Unfinished(deleted.number))
	}
}

// A node opens a replica again on the replica's request, with everything that it had.
func TestNodeOpensAReplicaAgain(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1})
	ks := n.Keyspace("posts")
	mustWrite(t, n, ks, addTo(5, 0, 3))
	groups, err := n.router.groupsOf(ks)
	mustDo(t, err)
	before := groups[0].replica.Load()
	before.group.Reopen(errors.New("a test"))
	eventually(t, "another replica serves", func() bool {
		r, err := groups[0].led()
		return err == nil && r != before
	})
	if row := mustGet(t, n, ks, ReadOptions{Consistency: Linearizable}, 5); row[0] != 3 {
		t.Errorf("the row reads %v", row)
	}
}
