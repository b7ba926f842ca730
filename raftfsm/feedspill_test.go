package raftfsm

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
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/codec/codectest"
	"github.com/countd/countd/raftfsm/dedup"
)

// spillReplica is a replica of feeds with a disk of its own.
type spillReplica struct {
	t     rapid.TB
	fs    *vfs.MemFS
	store *cold.Store
	fsm   *Feed
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

// open begins a process with a snapshot, nil for none.
func (r *spillReplica) open(snapshot []byte) {
	r.t.Helper()
	var err error
	r.store, err = cold.Open(cold.Config{Dir: "cold", FS: r.fs, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { r.t.Error(err) }})
	r.must(err)
	r.fsm = NewFeedOver(FeedPlace{Store: r.store, Group: 1, Tight: r.tight.Load})
	if snapshot != nil {
		r.must(codectest.Restore(r.fsm, snapshot))
	}
}

func (r *spillReplica) close() {
	r.t.Helper()
	r.fsm.Close()
	r.must(r.store.Close())
}

// kill leaves of the disk what a crash may, and begins anew.
func (r *spillReplica) kill(snapshot []byte, seed uint64) {
	r.t.Helper()
	was := r.fs
	r.fs = was.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(seed, seed))})
	r.close()
	r.open(snapshot)
}

func (r *spillReplica) tick() {
	r.now++
	r.fsm.Tick(r.now)
}

// spill moves all feeds out of memory that are idle for so long.
func (r *spillReplica) spill(idle uint32) int {
	r.t.Helper()
	users, err := r.fsm.Spill(idle, math.MaxInt64, func() bool { return true })
	r.must(err)
	return users
}

// check holds the replica to what every user follows.
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
	for key, feed := range want {
		got, err := r.fsm.Fetch(context.Background(), nil, key)
		if err != nil || !slices.Equal(got, feed) {
			r.t.Fatalf("user %d follows %v, %v, want %v", key, got, err, feed)
		}
		sum += followeesDigest(key, feed)
	}
	if s := r.fsm.State(); s.Digest != sum || s.Rows != uint64(users) {
		r.t.Fatalf("%d users of digest %x, want %d of %x", s.Rows, s.Digest, users, sum)
	}
	checkSpilled(r.t, r.fsm)
}

// checkSpilled holds what is counted of feeds to what is there.
func checkSpilled(t rapid.TB, fsm *Feed) {
	t.Helper()
	held := fsm.current.Load()
	users, spilled, bytes := 0, 0, int64(0)
	for _, page := range held.pages.pages() {
		bytes += page.bytes()
		for i := range page.users() {
			if users++; isSpilled(page.body(i)) {
				spilled++
			}
		}
	}
	if s := fsm.State(); s.Rows != uint64(users) || s.ColdRows != uint64(spilled) || held.pages.bytes.Load() != bytes {
		t.Fatalf("%d users, %d not in memory, %d bytes, told %+v", users, spilled, bytes, s)
	}
}

func feedEntry(index uint64, ops ...FeedOp) *raft.Log {
	var w RequestWriter
	w.Reset(nil, &dedup.RequestID{})
	for i := range ops {
		w.Feed(ops[i].User, &ops[i])
	}
	return codectest.Command(index, codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindFeed, 1), w.Section()...)))
}

// fillFeeds has users follow some others each.
func fillFeeds(t testing.TB, r *spillReplica, users, each int) map[uint64][]Followee {
	t.Helper()
	rnd := rand.New(rand.NewPCG(9, 9))
	want := map[uint64][]Followee{}
	var ops []FeedOp
	index := r.fsm.Applied()
	for key := range uint64(users) {
		want[key] = randomFeed(rnd, each)
		ops = append(ops, FeedOp{Kind: FeedReset, User: key, Followees: want[key]})
		if len(ops) == 100 || key == uint64(users)-1 {
			index++
			if _, ok := r.fsm.Apply(feedEntry(index, ops...)).(*Result); !ok {
				t.Fatal(r.fsm.Stuck())
			}
			ops = ops[:0]
		}
	}
	return want
}

// Without room on the disk feeds stay in memory, and what a snapshot has does too.
func TestFeedsOnAFullDisk(t *testing.T) {
	r := newSpillReplica(t)
	want := fillFeeds(t, r, 300, 9)
	r.fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1, TotalBytes: 1 << 40})
	if moved, err := r.fsm.Spill(0, math.MaxInt64, func() bool { return true }); moved != 0 || !errors.Is(err, cold.ErrFull) {
		t.Errorf("%d feeds left memory: %v", moved, err)
	}
	r.tight.Store(true)
	snapshot := codectest.Persisted(t, r.fsm)
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

// A replica that cannot read a feed says so to who asks, writes no snapshot without it,
// and stands still before an entry that needs it; with a snapshot it goes on.
func TestLostFeeds(t *testing.T) {
	r := newSpillReplica(t)
	defer r.close()
	want := fillFeeds(t, r, 100, 9)
	whole := codectest.Persisted(t, r.fsm)
	r.spill(0)
	r.must(r.store.Drop(1))
	if got, err := r.fsm.Fetch(t.Context(), nil, 5); !errors.Is(err, cold.ErrDamaged) {
		t.Errorf("user 5 follows %v, %v", got, err)
	}
	snapshot, err := r.fsm.Snapshot()
	r.must(err)
	if err := snapshot.Persist(&codectest.Sink{}); !errors.Is(err, cold.ErrDamaged) {
		t.Errorf("a snapshot without all feeds: %v", err)
	}
	snapshot.Release()
	before := r.fsm.State()
	entry := feedEntry(before.Index+1, FeedOp{Kind: FeedReset, User: 200}, FeedOp{Kind: FeedUnfollow, User: 5})
	if err, stuck := r.fsm.Apply(entry).(error); !stuck || !errors.Is(err, ErrStuck) || r.fsm.Stuck() == nil {
		t.Errorf("an entry that needs a lost feed: %v", err)
	}
	if got := r.fsm.State(); got != before {
		t.Errorf("%+v, before %+v", got, before)
	}
	r.must(codectest.Restore(r.fsm, whole))
	if err := r.fsm.Stuck(); err != nil {
		t.Error(err)
	}
	r.check(want)
}

// What a snapshot has replaced takes no disk, nor does one that was not whole, and who
// was reading finds the feeds of the new state.
func TestRestoreLetsGoOfRecords(t *testing.T) {
	r := newSpillReplica(t)
	defer r.close()
	want := fillFeeds(t, r, 100, 9)
	snapshot := codectest.Persisted(t, r.fsm)
	r.spill(0)
	was := r.fsm.current.Load()
	lost := func(f *feed) {
		t.Helper()
		for key := range uint64(100) {
			if body, err := f.out.records.ReadNow(feedHash(key), 1); !errors.Is(err, cold.ErrDamaged) {
				t.Fatalf("a record of user %d is there: %x, %v", key, body, err)
			}
		}
	}
	bytes := r.fsm.Bytes()
	r.tight.Store(true)
	if err := codectest.Restore(r.fsm, snapshot[:len(snapshot)-1]); err == nil || r.fsm.Bytes() != bytes {
		t.Errorf("half a snapshot: %v, %d bytes, before %d", err, r.fsm.Bytes(), bytes)
	}
	r.check(want)
	r.must(codectest.Restore(r.fsm, snapshot))
	lost(was)
	r.check(want)
}

// A round of moving feeds out ends with the state that it moves: what has gone is not
// written.
func TestSpillEndsWithItsState(t *testing.T) {
	for name, end := range map[string]func(*spillReplica){
		"cleared":  func(r *spillReplica) { r.fsm.Apply(feedEntry(r.fsm.Applied()+1, FeedOp{Kind: FeedClear})) },
		"replaced": func(r *spillReplica) { r.must(codectest.Restore(r.fsm, codectest.Persisted(r.t.(testing.TB), r.fsm))) },
		"closed":   func(r *spillReplica) { r.fsm.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newSpillReplica(t)
			defer r.close()
			fillFeeds(t, r, 500, 50)
			was, looks := r.fsm.current.Load(), 0
			users, err := r.fsm.Spill(0, math.MaxInt64, func() bool {
				if looks++; looks == 1 {
					end(r)
				}
				return true
			})
			if err != nil || users != 0 || looks != 1 {
				t.Errorf("%d feeds were moved, %d pages looked at, %v", users, looks, err)
			}
			if version := was.out.turn.version; version != 0 {
				t.Errorf("feeds were written %d times", version)
			}
		})
	}
}
