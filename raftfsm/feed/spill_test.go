package feed

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

// spillReplica is a replica of feeds with a disk of its own.
type spillReplica struct {
	t     rapid.TB
	fs    *vfs.MemFS
	store *cold.Store
	fsm   *Machine
	tight atomic.Bool
	now   uint32
}

func newSpillReplica(t rapid.TB) *spillReplica {
	r := &spillReplica{t: t, fs: vfs.NewCrashableMem()}
	r.open(nil)
	return r
}

func (r *spillReplica) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// open starts a process with a snapshot, or with none if it is nil.
func (r *spillReplica) open(snapshot []byte) {
	r.t.Helper()
	var err error
	r.store, err = cold.Open(cold.Config{Dir: "cold", FS: r.fs, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { r.t.Error(err) }})
	r.must(err)
	r.fsm = New(spill.Place{Store: r.store, Group: 1, Tight: r.tight.Load})
	if snapshot != nil {
		r.must(rafttest.Restore(r.fsm, snapshot))
	}
}

func (r *spillReplica) close() {
	r.t.Helper()
	r.fsm.Close()
	r.must(r.store.Close())
}

// kill ends the process as in a crash, which may lose unsynced data, and starts a new process.
func (r *spillReplica) kill(snapshot []byte, seed uint64) {
	r.t.Helper()
	was := r.fs
	r.fs = was.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(seed, seed))})
	r.close()
	r.open(snapshot)
}

func (r *spillReplica) tick() {
	r.now++
	r.fsm.Bodies().Tick(r.now)
}

// spill moves all feeds that were idle for the given time out of memory.
func (r *spillReplica) spill(idle uint32) int {
	r.t.Helper()
	users, err := r.fsm.Bodies().Spill(idle, math.MaxInt64, func() bool { return true })
	r.must(err)
	return users
}

// check compares the feeds of the replica with want and groups.
func (r *spillReplica) check(want map[uint64][]Followee, groups ...modelGroups) {
	r.t.Helper()
	var sum uint64
	users := len(want)
	for _, g := range groups {
		for key, of := range g {
			for _, name := range slices.Sorted(maps.Keys(of)) {
				sum += groupsDigest(key, []Group{{name, of[name]}})
			}
			if _, follows := want[key]; !follows && len(of) > 0 {
				users++
			}
		}
	}
	for key, contents := range want {
		got, _, err := r.fsm.Fetch(context.Background(), nil, key)
		if err != nil || !slices.Equal(got, contents) {
			r.t.Fatalf("user %d follows %v, %v, want %v", key, got, err, contents)
		}
		sum += followeesDigest(key, contents)
	}
	if s := r.fsm.State(); s.Digest != sum || s.Rows != uint64(users) {
		r.t.Fatalf("%d users of digest %x, want %d of %x", s.Rows, s.Digest, users, sum)
	}
	checkSpilled(r.t, r.fsm)
}

// checkSpilled compares the statistics about feeds with the feeds.
func checkSpilled(t rapid.TB, fsm *Machine) {
	t.Helper()
	users, spilled := 0, 0
	view := fsm.Bodies().Current().Capture()
	defer view.Close()
	for view.More() {
		key, _, err := view.Next()
		if err != nil {
			t.Fatal(err)
		}
		if users++; fsm.Bodies().IsSpilled(key) {
			spilled++
		}
	}
	if s := fsm.State(); s.Rows != uint64(users) || s.ColdRows != uint64(spilled) {
		t.Fatalf("%d users, %d not in memory, told %+v", users, spilled, s)
	}
}

func feedEntry(index uint64, ops ...Op) *raft.Log {
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	for i := range ops {
		Ops(ops).AppendTo(&w, ops[i].User, i)
	}
	return rafttest.Command(index, codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindFeed, 1), w.Section()...)))
}

// fillFeeds makes each user follow some others.
func fillFeeds(t testing.TB, r *spillReplica, users, each int) map[uint64][]Followee {
	t.Helper()
	rnd := rand.New(rand.NewPCG(9, 9))
	want := map[uint64][]Followee{}
	var ops []Op
	index := r.fsm.Applied()
	for key := range uint64(users) {
		want[key] = randomFeed(rnd, each)
		ops = append(ops, Op{Kind: Reset, User: key, Followees: want[key]})
		if len(ops) == 100 || key == uint64(users)-1 {
			index++
			if _, ok := r.fsm.Apply(feedEntry(index, ops...)).(*raftfsm.Result); !ok {
				t.Fatal(r.fsm.Stuck())
			}
			ops = ops[:0]
		}
	}
	return want
}

// If the disk is full, feeds stay in memory, even the feeds of a restored snapshot.
func TestFeedsOnAFullDisk(t *testing.T) {
	r := newSpillReplica(t)
	want := fillFeeds(t, r, 300, 9)
	r.fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1, TotalBytes: 1 << 40})
	if moved, err := r.fsm.Bodies().Spill(0, math.MaxInt64, func() bool { return true }); moved != 0 || !errors.Is(err, cold.ErrFull) {
		t.Errorf("%d feeds left memory: %v", moved, err)
	}
	r.tight.Store(true)
	snapshot := rafttest.Persisted(t, r.fsm)
	r.close()
	r.open(snapshot)
	if s := r.fsm.State(); s.ColdRows != 0 {
		t.Errorf("%d of %d feeds are said to be on disk", s.ColdRows, s.Rows)
	}
	r.fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 40})
	r.spill(0)
	r.check(want)
	r.close()
}

// A replica that cannot read a feed returns an error to readers, writes no snapshot, and is stuck
// before an entry that needs the feed. Once the replica has restored a snapshot of another replica,
// it works again.
func TestLostFeeds(t *testing.T) {
	r := newSpillReplica(t)
	defer r.close()
	want := fillFeeds(t, r, 100, 9)
	whole := rafttest.Persisted(t, r.fsm)
	r.spill(0)
	r.must(r.store.Drop(1))
	if got, _, err := r.fsm.Fetch(t.Context(), nil, 5); !errors.Is(err, cold.ErrDamaged) {
		t.Errorf("user 5 follows %v, %v", got, err)
	}
	snapshot, err := r.fsm.Snapshot()
	r.must(err)
	if err := snapshot.Persist(&rafttest.Sink{}); !errors.Is(err, cold.ErrDamaged) {
		t.Errorf("a snapshot without all feeds: %v", err)
	}
	snapshot.Release()
	before := r.fsm.State()
	entry := feedEntry(before.Index+1, Op{Kind: Reset, User: 200}, Op{Kind: Unfollow, User: 5})
	if err, stuck := r.fsm.Apply(entry).(error); !stuck || !errors.Is(err, raftfsm.ErrStuck) || r.fsm.Stuck() == nil {
		t.Errorf("an entry that needs a lost feed: %v", err)
	}
	if got := r.fsm.State(); got != before {
		t.Errorf("%+v, before %+v", got, before)
	}
	r.must(rafttest.Restore(r.fsm, whole))
	if err := r.fsm.Stuck(); err != nil {
		t.Error(err)
	}
	r.check(want)
}

// A failed restore of an incomplete snapshot leaves the state unchanged, and the memory of the
// feeds that were loaded is released.
func TestRestoreOfHalfASnapshotOfFeeds(t *testing.T) {
	r := newSpillReplica(t)
	defer r.close()
	want := fillFeeds(t, r, 100, 9)
	snapshot := rafttest.Persisted(t, r.fsm)
	r.spill(0)
	bytes := r.fsm.Bytes()
	r.tight.Store(true)
	if err := rafttest.Restore(r.fsm, snapshot[:len(snapshot)-1]); err == nil || r.fsm.Bytes() != bytes {
		t.Errorf("half a snapshot: %v, %d bytes, before %d", err, r.fsm.Bytes(), bytes)
	}
	r.check(want)
	r.must(rafttest.Restore(r.fsm, snapshot))
	r.check(want)
}
