package raftfsm

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/countd/countd/engine/cold"
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
		r.must(restore(r.fsm, snapshot))
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
func (r *spillReplica) check(want map[uint64][]Followee) {
	r.t.Helper()
	var sum uint64
	for key, feed := range want {
		got, err := r.fsm.Fetch(context.Background(), nil, key)
		if err != nil || !slices.Equal(got, feed) {
			r.t.Fatalf("user %d follows %v, %v, want %v", key, got, err, feed)
		}
		sum += followeesDigest(key, feed)
	}
	if s := r.fsm.State(); s.Digest != sum || s.Rows != uint64(len(want)) {
		r.t.Fatalf("%d users of digest %x, want %d of %x", s.Rows, s.Digest, len(want), sum)
	}
	checkSpilled(r.t, r.fsm)
}

// checkSpilled holds what is counted of feeds to what is there.
func checkSpilled(t rapid.TB, fsm *Feed) {
	t.Helper()
	held := fsm.held.Load()
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
	w.Reset(nil, &RequestID{})
	for i := range ops {
		w.Feed(ops[i].User, &ops[i])
	}
	return command(index, SealEntry(append(BeginEntry(nil, KindFeed, 1), w.Section()...)))
}

// Replicas of which each has other feeds in memory answer, digest and restore as one that
// has all of them there and as a plain map does, whatever is written, read, moved and
// restored, and at whatever moment a process is killed.
func TestFeedsEqualWhereverTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plain := NewFeed()
		replicas := []*spillReplica{newSpillReplica(t), newSpillReplica(t)}
		defer func() {
			for _, r := range replicas {
				r.close()
			}
		}()
		want := map[uint64][]Followee{}
		index := uint64(0)
		users := rapid.Uint64Range(0, 40)
		which := rapid.SampledFrom(replicas)
		followees := rapid.Custom(func(t *rapid.T) (list []Followee) {
			ids := rapid.SliceOfNDistinct(rapid.Uint64Range(0, 20), 0, 6, rapid.ID[uint64]).Draw(t, "ids")
			slices.Sort(ids)
			for _, id := range ids {
				list = append(list, Followee{id, rapid.Int64Range(-2, 300).Draw(t, "posts")})
			}
			return list
		})
		write := func(ops ...FeedOp) {
			index++
			r := plain.Apply(feedEntry(index, ops...)).(*Result)
			for _, replica := range replicas {
				got, ok := replica.fsm.Apply(feedEntry(index, ops...)).(*Result)
				if !ok || !slices.Equal(got.Rows, r.Rows) || len(got.Overflows) != len(r.Overflows) {
					t.Fatalf("answered %+v, want %+v", got, r)
				}
			}
			for i := range ops {
				if ops[i].Kind == FeedClear {
					clear(want)
					continue
				}
				now := modelFeed(&ops[i], want[ops[i].User])
				if want[ops[i].User] = now; len(now) == 0 {
					delete(want, ops[i].User)
				}
				if r.Rows[i] != int64(len(now)) {
					t.Fatalf("user %d is said to follow %d, want %d", ops[i].User, r.Rows[i], len(now))
				}
			}
		}
		draw := func(t *rapid.T) FeedOp {
			kind := rapid.SampledFrom([]FeedOpKind{FeedReset, FeedFollow, FeedUnfollow, FeedRead}).Draw(t, "kind")
			return FeedOp{Kind: kind, User: users.Draw(t, "user"), Followees: followees.Draw(t, "followees")}
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				ops := make([]FeedOp, rapid.IntRange(1, 6).Draw(t, "ops"))
				for i := range ops {
					ops[i] = draw(t)
				}
				write(ops...)
			},
			"clear": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
					write(draw(t), FeedOp{Kind: FeedClear}, draw(t))
				}
			},
			"poll": func(t *rapid.T) {
				r, key := which.Draw(t, "replica"), users.Draw(t, "user")
				got, inMemory := r.fsm.Followees(nil, key)
				if inMemory == r.fsm.IsSpilled(key) {
					t.Fatalf("user %d is in memory: %v", key, inMemory)
				}
				if !inMemory {
					var err error
					got, err = r.fsm.Fetch(t.Context(), nil, key)
					r.must(err)
					if !r.tight.Load() && r.fsm.IsSpilled(key) {
						t.Fatalf("user %d has not come back", key)
					}
				}
				if !slices.Equal(got, want[key]) {
					t.Fatalf("user %d follows %v, want %v", key, got, want[key])
				}
			},
			"tick":  func(t *rapid.T) { which.Draw(t, "replica").tick() },
			"tight": func(t *rapid.T) { r := which.Draw(t, "replica"); r.tight.Store(!r.tight.Load()) },
			"spill": func(t *rapid.T) {
				r := which.Draw(t, "replica")
				_, err := r.fsm.Spill(rapid.Uint32Range(0, 2).Draw(t, "idle"), rapid.SampledFrom([]int64{0, 20, math.MaxInt64}).Draw(t, "bytes"), func() bool { return true })
				r.must(err)
			},
			"restore": func(t *rapid.T) { // of another replica's snapshot, in a running process
				r := which.Draw(t, "replica")
				r.must(restore(r.fsm, persisted(t, which.Draw(t, "from").fsm)))
			},
			"restart": func(t *rapid.T) {
				r := which.Draw(t, "replica")
				snapshot := persisted(t, r.fsm)
				r.kill(snapshot, rapid.Uint64().Draw(t, "seed"))
				if s := r.fsm.State(); r.tight.Load() && s.Rows > 0 && s.ColdRows != s.Rows {
					t.Fatalf("%d users of %d are in memory, which is short", s.Rows-s.ColdRows, s.Rows)
				}
			},
			"snapshot": func(t *rapid.T) { // that is written later
				r := which.Draw(t, "replica")
				snapshot, err := r.fsm.Snapshot()
				r.must(err)
				defer snapshot.Release()
				at, state := maps.Clone(want), r.fsm.State()
				write(draw(t), draw(t))
				r.spill(0)
				for key := range want {
					_, err := r.fsm.Fetch(t.Context(), nil, key)
					r.must(err)
				}
				write(draw(t))
				r.spill(0)
				var s sink
				r.must(snapshot.Persist(&s))
				other := NewFeed()
				r.must(restore(other, s.Bytes()))
				for key := range users.Draw(t, "up to") + 1 {
					if got, _ := other.Followees(nil, key); !slices.Equal(got, at[key]) {
						t.Fatalf("in the snapshot user %d follows %v, want %v", key, got, at[key])
					}
				}
				if got := other.State(); got.Digest != state.Digest || got.Rows != state.Rows || got.Index != state.Index {
					t.Fatalf("the snapshot has %+v, want %+v", got, state)
				}
			},
			"": func(t *rapid.T) {
				for _, r := range replicas {
					if got, state := r.fsm.State(), plain.State(); got.Digest != state.Digest || got.Rows != state.Rows || got.Index != state.Index {
						t.Fatalf("%+v, want %+v", got, state)
					}
					checkSpilled(t, r.fsm)
				}
			},
		})
		for _, r := range replicas {
			r.check(want)
		}
	})
}

// modelFeed is what an op makes of a feed, by a map.
func modelFeed(op *FeedOp, was []Followee) (now []Followee) {
	posts := map[uint64]int64{}
	for _, f := range was {
		if op.Kind != FeedReset {
			posts[f.ID] = f.Posts
		}
	}
	for _, f := range op.Followees {
		_, follows := posts[f.ID]
		switch {
		case op.Kind == FeedUnfollow:
			delete(posts, f.ID)
		case op.Kind == FeedReset, op.Kind == FeedFollow && !follows, op.Kind == FeedRead && follows:
			posts[f.ID] = f.Posts
		}
	}
	for _, id := range slices.Sorted(maps.Keys(posts)) {
		now = append(now, Followee{id, posts[id]})
	}
	return now
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

// Those leave memory for whom nobody has asked for so long, and nobody else; the others
// do when they are idle too, and what is left of them in memory is little.
func TestIdleFeedsLeaveMemory(t *testing.T) {
	r := newSpillReplica(t)
	defer r.close()
	const users = 3000
	want := fillFeeds(t, r, users, 90)
	for range 5 {
		r.tick()
	}
	for key := range uint64(users / 10) { // asked for, and written
		if _, inMemory := r.fsm.Followees(nil, key); !inMemory {
			t.Fatalf("user %d is not in memory", key)
		}
	}
	want[users] = randomFeed(rand.New(rand.NewPCG(1, 1)), 5)
	r.fsm.Apply(feedEntry(r.fsm.Applied()+1, FeedOp{Kind: FeedReset, User: users, Followees: want[users]}))
	if moved := r.spill(6); moved != 0 {
		t.Errorf("%d users who were idle for 5 ticks left memory after 6", moved)
	}
	var ages FeedAges
	r.fsm.Ages(&ages)
	if ages[0] == 0 || ages[3] < 7*ages[0] || ages.Oldest(1) != 4 || ages.Oldest(ages.Bytes()) != 0 {
		t.Errorf("feeds by age: %v", ages)
	}
	if moved := r.spill(5); moved != users-users/10 {
		t.Errorf("%d users left memory", moved)
	}
	for key := range uint64(users) {
		if spilled := key >= users/10; r.fsm.IsSpilled(key) != spilled {
			t.Errorf("user %d is on disk: %v", key, !spilled)
		}
	}
	r.tick()
	r.spill(1)
	if s := r.fsm.State(); s.ColdRows != users+1 || s.ColdBytes < users*200 || s.Bytes > 24*users {
		t.Errorf("%+v of %d users", s, users+1)
	}
	r.check(want)
	if spilled, returned := r.fsm.Moved(); spilled != users+1 || returned != users+1 {
		t.Errorf("%d feeds left memory, %d came back", spilled, returned)
	}
	var gone int
	if r.tick(); r.spill(100) == 0 { // nothing but to remove what came back
		gone = len(r.fsm.held.Load().out.gone)
	}
	if v := r.fsm.held.Load().out.records.Capture(); gone != 0 {
		t.Errorf("records of %d users are still to go", gone)
	} else if _, err := v.Get(nil, feedHash(7), 1); !errors.Is(err, cold.ErrDamaged) {
		t.Errorf("the record of a feed that came back: %v", err)
	} else {
		r.must(v.Close())
	}
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
	snapshot := persisted(t, r.fsm)
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
	whole := persisted(t, r.fsm)
	r.spill(0)
	r.must(r.store.Drop(1))
	if got, err := r.fsm.Fetch(t.Context(), nil, 5); !errors.Is(err, cold.ErrDamaged) {
		t.Errorf("user 5 follows %v, %v", got, err)
	}
	snapshot, err := r.fsm.Snapshot()
	r.must(err)
	if err := snapshot.Persist(&sink{}); !errors.Is(err, cold.ErrDamaged) {
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
	r.must(restore(r.fsm, whole))
	if err := r.fsm.Stuck(); err != nil {
		t.Error(err)
	}
	r.check(want)
}

// While feeds are read, written and moved:
//  1. who reads has one of the feeds that the user was given, whole,
//  2. what was given last is there at the end,
//  3. a snapshot has what was there when it was taken.
func TestFeedsMoveBesideReadersAndWriters(t *testing.T) {
	const users, rounds = 400, 60
	r := newSpillReplica(t)
	defer r.close()
	fillFeeds(t, r, users, 3)
	feedOf := func(round int) (feed []Followee) {
		for i := range uint64(3 + round%50) {
			feed = append(feed, Followee{i * 7, int64(round)})
		}
		return feed
	}
	stop := make(chan struct{})
	var beside sync.WaitGroup
	forever := func(do func(*rand.Rand)) {
		rnd := rand.New(rand.NewPCG(3, uint64(rand.Uint32())))
		beside.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					do(rnd)
				}
			}
		})
	}
	forever(func(*rand.Rand) { r.spill(0) })
	for range 2 {
		forever(func(rnd *rand.Rand) {
			key := rnd.Uint64N(users)
			feed, err := r.fsm.Fetch(t.Context(), nil, key)
			if err != nil || len(feed) > 0 && feed[0].ID == 0 && !slices.Equal(feed, feedOf(int(feed[0].Posts))) {
				t.Errorf("user %d follows %v, %v", key, feed, err)
			}
		})
	}
	index := r.fsm.Applied()
	for round := range rounds {
		var ops []FeedOp
		for key := uint64(round % 3); key < users; key += 3 {
			ops = append(ops, FeedOp{Kind: FeedReset, User: key, Followees: feedOf(round)})
		}
		index++
		if answer, ok := r.fsm.Apply(feedEntry(index, ops...)).(*Result); !ok {
			t.Errorf("%v: %v", answer, r.fsm.Stuck())
			break
		}
		if round%10 == 0 {
			state := r.fsm.State()
			other := NewFeed()
			r.must(restore(other, persisted(t, r.fsm)))
			if got := other.State(); got.Digest != state.Digest {
				t.Errorf("a snapshot has digest %x, want %x", got.Digest, state.Digest)
			}
		}
	}
	close(stop)
	beside.Wait()
	want := map[uint64][]Followee{}
	for key := range uint64(users) {
		for round := rounds - 1; ; round-- {
			if uint64(round%3) == key%3 {
				want[key] = feedOf(round)
				break
			}
		}
	}
	r.check(want)
}

// While feeds are moved, all of them are taken away and given back as they were, and none
// is lost.
func TestFeedsMoveBesideClear(t *testing.T) {
	const users, rounds = 300, 300
	r := newSpillReplica(t)
	defer r.close()
	want := fillFeeds(t, r, users, 3)
	ops := []FeedOp{{Kind: FeedClear}}
	for key, feed := range want {
		ops = append(ops, FeedOp{Kind: FeedReset, User: key, Followees: feed})
	}
	stop := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				r.spill(0)
			}
		}
	})
	index := r.fsm.Applied()
	for range rounds {
		index++
		if answer, ok := r.fsm.Apply(feedEntry(index, ops...)).(*Result); !ok {
			t.Errorf("%v: %v", answer, r.fsm.Stuck())
			break
		}
		key := uint64(rand.IntN(users))
		if got, err := r.fsm.Fetch(context.Background(), nil, key); err != nil || !slices.Equal(got, want[key]) {
			t.Errorf("user %d follows %v, %v", key, got, err)
			break
		}
	}
	close(stop)
	beside.Wait()
	r.check(want)
}

// What leaves memory a part at a time is others each time, though the first have come
// back.
func TestSpillGoesOn(t *testing.T) {
	r := newSpillReplica(t)
	defer r.close()
	const users, each = 1000, 50
	fillFeeds(t, r, users, each)
	bytes := r.fsm.State().Bytes
	moved := map[uint64]bool{}
	for range 3 {
		n, err := r.fsm.Spill(0, int64(bytes/4), func() bool { return true })
		r.must(err)
		if n < users/5 || n > users/3 {
			t.Errorf("%d users of %d left memory at a time", n, users)
		}
		for key := range uint64(users) {
			if r.fsm.IsSpilled(key) {
				moved[key] = true
				r.must(r.fsm.Warm(context.Background(), key))
			}
		}
	}
	if len(moved) < users*3/5 {
		t.Errorf("%d users of %d left memory", len(moved), users)
	}
	if n, err := r.fsm.Spill(0, math.MaxInt64, func() bool { return false }); n > users/5 || err != nil {
		t.Errorf("%d users left memory though nobody might: %v", n, err)
	}
}

// What a snapshot has replaced takes no disk, nor does one that was not whole, and who
// was reading finds the feeds of the new state.
func TestRestoreLetsGoOfRecords(t *testing.T) {
	r := newSpillReplica(t)
	defer r.close()
	want := fillFeeds(t, r, 100, 9)
	snapshot := persisted(t, r.fsm)
	r.spill(0)
	was := r.fsm.held.Load()
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
	if err := restore(r.fsm, snapshot[:len(snapshot)-1]); err == nil || r.fsm.Bytes() != bytes {
		t.Errorf("half a snapshot: %v, %d bytes, before %d", err, r.fsm.Bytes(), bytes)
	}
	r.check(want)
	r.must(restore(r.fsm, snapshot))
	lost(was)
	r.check(want)
}

// BenchmarkSpilledFeeds tells what a user takes whose feed is on disk, and what reading it
// costs beside one in memory, and what moving it out does.
func BenchmarkSpilledFeeds(b *testing.B) {
	const users, each = 100_000, 90
	dir := b.TempDir()
	open := func() *spillReplica {
		r := &spillReplica{t: b}
		var err error
		r.store, err = cold.Open(cold.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { b.Error(err) }})
		r.must(err)
		r.fsm = NewFeedOver(FeedPlace{Store: r.store, Group: 1, Tight: r.tight.Load})
		return r
	}
	r := open()
	defer r.close()
	fillFeeds(b, r, users, each)
	dst := make([]Followee, 0, each)
	var hot engineStats
	hot.note(r.fsm)
	rnd := rand.New(rand.NewPCG(1, 1))
	b.Run("in memory", func(b *testing.B) {
		for b.Loop() {
			dst, _ = r.fsm.Followees(dst[:0], rnd.Uint64N(users))
		}
		b.ReportMetric(hot.perUser, "B/user")
	})
	b.Run("on disk", func(b *testing.B) {
		r.tight.Store(true) // so that none comes back
		defer r.tight.Store(false)
		r.spill(0)
		var now engineStats
		now.note(r.fsm)
		for b.Loop() {
			var err error
			if dst, err = r.fsm.Fetch(b.Context(), dst[:0], rnd.Uint64N(users)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(now.perUser, "B/user")
		b.ReportMetric(now.diskPerUser, "disk-B/user")
	})
	b.Run("on disk and back", func(b *testing.B) {
		keys := rnd.Perm(users)
		for i := 0; b.Loop(); i++ {
			if i%users == 0 && i > 0 {
				b.StopTimer()
				r.spill(0)
				b.StartTimer()
			}
			var err error
			if dst, err = r.fsm.Fetch(b.Context(), dst[:0], uint64(keys[i%users])); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("moved out", func(b *testing.B) {
		moved := 0
		for b.Loop() {
			b.StopTimer()
			for key := range uint64(users) {
				r.must(r.fsm.Warm(b.Context(), key))
			}
			b.StartTimer()
			moved += r.spill(0)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(moved), "ns/user")
	})
}

// engineStats is what users take.
type engineStats struct{ perUser, diskPerUser float64 }

func (s *engineStats) note(fsm *Feed) {
	state := fsm.State()
	s.perUser = float64(state.Bytes) / float64(state.Rows)
	s.diskPerUser = float64(state.ColdBytes) / max(1, float64(state.ColdRows))
}
