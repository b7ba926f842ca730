package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/tiering"
)

// openFeedNode opens a node whose feeds leave memory when a test says so.
func openFeedNode(t *testing.T, dir string, i int, addr string) *Node {
	t.Helper()
	cfg := memberConfig(t, filepath.Join(dir, "groups"), i, 1)
	if addr != "" {
		cfg.ClusterAddr = addr
	}
	cfg.Shards = map[string]int{"posts": 1, "users": 1, kinds.KeyspaceUnread: 1, kinds.KeyspaceFeed: 2}
	cfg.Cold.Dir, cfg.FeedIdle = filepath.Join(dir, "cold"), 1000*time.Hour
	n, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { closeCold(t, n) })
	if i == 1 {
		ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
		defer cancel()
		mustDo(t, n.WaitReady(ctx))
	}
	return n
}

// spillAll moves all feeds of a node out of memory.
func spillAll(t *testing.T, n *Node) {
	t.Helper()
	for _, r := range n.registry.bodies() {
		if _, err := r.Spill(0, math.MaxInt64, n.tiering.MayFreeze); err != nil {
			t.Fatal(err)
		}
	}
}

// onDisk returns the number of feeds that a node has on disk, and the number of all its feeds.
func onDisk(n *Node) (spilled, users uint64) {
	for _, r := range n.registry.bodies() {
		s := r.Stats()
		spilled, users = spilled+s.Spilled, users+s.Keys
	}
	return spilled, users
}

const feedTestUsers = 50

// fillNode makes each user follow one author, with the user's number as the number of posts.
func fillNode(t *testing.T, n *Node) {
	t.Helper()
	for user := range uint64(feedTestUsers) {
		mustFollow(t, n, user, feed.Followee{ID: 7, Posts: int64(user)})
	}
}

// checkFeeds reads feeds one by one and together, and compares them with those of fillNode and
// those that were followed since.
func checkFeeds(t *testing.T, n *Node, opt ReadOptions, since map[uint64]feed.Followee) {
	t.Helper()
	users := make([]uint64, feedTestUsers+2) // the last two follow nobody
	for i := range users {
		users[i] = uint64(i)
	}
	want := func(user uint64) (all []feed.Followee) {
		if user < feedTestUsers {
			all = append(all, feed.Followee{ID: 7, Posts: int64(user)})
		}
		if f, there := since[user]; there {
			all = append(all, f)
		}
		return all
	}
	opt.Deadline = soon()
	ks := n.Keyspace(kinds.KeyspaceFeed)
	var one, all Feeds
	for _, user := range []uint64{3, 4, feedTestUsers + 1} {
		mustDo(t, n.Feeds(ks, []uint64{user}, &opt, &one))
		if !slices.Equal(one.Of(0), want(user)) {
			t.Errorf("user %d alone follows %v, want %v", user, one.Of(0), want(user))
		}
	}
	mustDo(t, n.Feeds(ks, users, &opt, &all))
	for i, user := range users {
		if !slices.Equal(all.Of(i), want(user)) {
			t.Errorf("user %d follows %v, want %v", user, all.Of(i), want(user))
		}
	}
}

// Feeds on disk are polled, written, backed up and kept over a restart like feeds in memory.
func TestSpilledFeedsOfANode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := openFeedNode(t, dir, 1, "")
	fillNode(t, n)
	spillAll(t, n)
	if spilled, users := onDisk(n); spilled != users || users != feedTestUsers {
		t.Fatalf("%d feeds of %d are on disk", spilled, users)
	}
	for _, g := range n.Status().Groups {
		if g.Keyspace == kinds.KeyspaceFeed && (g.ColdRows == 0 || g.ColdRows != g.Rows || g.ColdBytes == 0) {
			t.Errorf("status tells %+v", g)
		}
	}
	checkFeeds(t, n, ReadOptions{}, nil)
	if spilled, _ := onDisk(n); spilled != 0 {
		t.Errorf("%d feeds are on disk that were polled", spilled)
	}
	spillAll(t, n)
	since := map[uint64]feed.Followee{3: {ID: 9, Posts: 1}, feedTestUsers: {ID: 9, Posts: 2}}
	for user, f := range since {
		if w := mustFollow(t, n, user, f); w.Rows[0] != int64(1+(feedTestUsers-user)/(feedTestUsers-3)) {
			t.Errorf("user %d is said to follow %d", user, w.Rows[0])
		}
	}
	checkFeeds(t, n, ReadOptions{Consistency: Linearizable}, since)
	spillAll(t, n)
	before := digests(n)
	for _, g := range n.registry.groups.Load().all {
		if g.kind != codec.KindFeed {
			continue
		}
		r := g.replica.Load().fsm.Machine
		backup, err := n.OpenSnapshot(t.Context(), g.number)
		mustDo(t, err)
		facts, err := kinds.All.VisitSnapshot(backup, codec.KindFeed, g.first, raftfsm.SnapshotVisitor{})
		if state := r.State(); err != nil || facts.Digest != state.Digest || facts.Rows != state.Rows {
			t.Errorf("a backup of %+v, %v, of %+v", facts, err, state)
		}
		mustDo(t, backup.Close())
	}
	closeCold(t, n)
	n = openFeedNode(t, dir, 1, "")
	if after := digests(n); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("after the restart %v, before %v", after, before)
	}
	checkFeeds(t, n, ReadOptions{}, since)
}

// Each of three nodes has other feeds in memory. Any node answers for all feeds, also for those of
// replicas elsewhere, and all nodes agree.
func TestNodesSpillFeedsByThemselves(t *testing.T) {
	t.Parallel()
	first := openFeedNode(t, t.TempDir(), 1, "")
	fillNode(t, first)
	all := []*Node{first, openFeedNode(t, t.TempDir(), 2, ""), openFeedNode(t, t.TempDir(), 3, "")}
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	number := first.Keyspace(kinds.KeyspaceFeed).FirstGroup
	for _, other := range all[1:] {
		mustDo(t, first.catalogClient.MustChange(ctx, &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: other.record()}}))
	}
	place := &catalog.PlaceEntry{Group: number, Was: []string{"n1.0"}, Target: []string{"n1.0", "n2.0", "n3.0"}}
	mustDo(t, first.catalogClient.MustChange(ctx, &catalog.Command{Place: place}))
	agree := func() bool {
		r := first.registry.shardOf(number).replica.Load()
		for _, n := range all[1:] {
			g := n.registry.shardOf(number)
			if g == nil || g.replica.Load() == nil {
				return false
			}
			if got, want := g.replica.Load().fsm.State(), r.fsm.State(); got.Index != want.Index || got.Digest != want.Digest || got.Rows != want.Rows {
				return false
			}
		}
		return len(r.group.Voters()) == len(all)
	}
	eventually(t, "all hold the first shard", agree)
	spillAll(t, first)
	spillAll(t, all[2])
	since := map[uint64]feed.Followee{}
	for round, n := range all {
		user := uint64(10 + round)
		since[user] = feed.Followee{ID: 8, Posts: 5}
		mustFollow(t, n, user, since[user]) // forwarded, to a leader that has it on disk
	}
	for _, n := range all {
		checkFeeds(t, n, ReadOptions{Consistency: Linearizable}, since)
		spillAll(t, n)
	}
	checkFeeds(t, all[1], ReadOptions{}, since)
	eventually(t, "digests agree", agree)

	// The leader loses them: every node still answers right, and the leader is repaired.
	spillAll(t, first)
	replaced := loseFeeds(t, first, number)
	checkFeeds(t, first, ReadOptions{}, since)
	eventually(t, "the leader has another replica", replaced)

	// The only voter of the other shard cannot hand over, and is repaired.
	spillAll(t, first)
	replaced = loseFeeds(t, first, number+1)
	users := []uint64{1, 2, 3, 4, 5, 6}
	eventually(t, "the only voter has another replica", func() bool {
		_ = first.Feeds(first.Keyspace(kinds.KeyspaceFeed), users, &ReadOptions{Deadline: time.Now().Add(300 * time.Millisecond)}, new(Feeds))
		return replaced()
	})
	eventually(t, "it serves", func() bool { return first.Ready() == nil })
	for _, n := range all {
		checkFeeds(t, n, ReadOptions{Consistency: Linearizable}, since)
	}
	eventually(t, "digests agree again", agree)
}

// loseFeeds removes a group's records from a node's disk. It returns a function that
// reports whether the replica was opened again.
func loseFeeds(t *testing.T, n *Node, number uint32) (replaced func() bool) {
	t.Helper()
	r := n.registry.shardOf(number).replica.Load()
	mustDo(t, n.cold.Drop(number))
	return func() bool {
		here := n.registry.shardOf(number).replica.Load()
		return here != nil && here != r && !here.damage.Found()
	}
}

// loseAndTouch is loseFeeds on a single node. It then calls touch until the replica was opened
// again. touch makes the node read the records from disk, unless its deadline passes first.
// loseAndTouch returns once the replica serves and may be repaired again.
func loseAndTouch(t *testing.T, n *Node, number uint32, touch func(r *localReplica)) {
	t.Helper()
	r := n.registry.shardOf(number).replica.Load()
	replaced := loseFeeds(t, n, number)
	eventually(t, "another replica is there", func() bool {
		if replaced() {
			return true
		}
		touch(r)
		return false
	})
	eventually(t, "it serves", func() bool { return n.Ready() == nil })
	eventually(t, "repairs may begin", func() bool {
		n.registry.shardOf(number).repairAt = time.Time{}
		return !n.repairing.Load()
	})
}

// A replica whose feeds on disk are lost returns no wrong feed. It gets all feeds again from its
// own snapshot and log, even on a single node.
func TestLostFeedsComeBack(t *testing.T) {
	t.Parallel()
	n := openFeedNode(t, t.TempDir(), 1, "")
	fillNode(t, n)
	for name, touch := range map[string]func(r *localReplica){
		"by a read": func(r *localReplica) {
			var feeds Feeds
			opt := &ReadOptions{Deadline: time.Now().Add(300 * time.Millisecond)}
			user := raftfsm.NewRoute(2, 2, false).IDOf(1, 2)
			err := n.Feeds(n.Keyspace(kinds.KeyspaceFeed), []uint64{user}, opt, &feeds)
			if err == nil && feeds.Of(0)[0].Posts != int64(user) || err != nil && !errors.Is(err, errs.ErrNoQuorum) {
				t.Errorf("a lost feed reads %v, %v", feeds, err)
			}
		},
		"by a write": func(r *localReplica) {
			w := &Write{Ops: feed.Ops{{Kind: feed.Unfollow, User: 1}}, Deadline: soon()}
			if err := n.Write(n.Keyspace(kinds.KeyspaceFeed), w); err != nil && !errors.Is(err, errs.ErrNoLeader) {
				t.Errorf("a write to a lost feed: %v", err)
			}
		},
		"by a snapshot": func(r *localReplica) {
			mustDo(t, n.Write(n.Keyspace(kinds.KeyspaceFeed), &Write{Ops: feed.Ops{{Kind: feed.Read, User: 777}}, Deadline: soon()}))
			if err := r.group.Snapshotter().Take(); err == nil {
				t.Error("a snapshot without all feeds was taken")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			spillAll(t, n)
			loseAndTouch(t, n, n.Keyspace(kinds.KeyspaceFeed).FirstGroup+1, touch)
			checkFeeds(t, n, ReadOptions{Consistency: Linearizable}, nil)
			if n.registry.damagedShards() != 0 {
				t.Error("it is still said to be damaged")
			}
		})
	}
}

// Feeds that nobody polls leave memory by themselves. While memory is tight, those that were idle
// the longest leave too, a share at a time.
func TestFeedsLeaveMemoryByThemselves(t *testing.T) {
	n := openFeedNode(t, t.TempDir(), 1, "")
	fillNode(t, n)
	tight := false
	clock := &tiering.Round{Relieve: func() bool { return tight }}
	checkDisk := func(what string, least, most uint64) {
		t.Helper()
		if spilled, _ := onDisk(n); spilled < least || spilled > most {
			t.Errorf("%s: %d feeds are on disk", what, spilled)
		}
	}
	n.spill.Round(clock, time.Hour)
	var feeds Feeds
	mustDo(t, n.Feeds(n.Keyspace(kinds.KeyspaceFeed), []uint64{1, 2, 3}, &ReadOptions{Deadline: soon()}, &feeds))
	n.spill.Round(clock, 999*time.Hour)
	checkDisk("nobody is idle for long enough", 0, 0)
	tight = true
	n.spill.Round(clock, 999*time.Hour)
	checkDisk("memory is tight", 2, feedTestUsers/4)
	again, _ := onDisk(n)
	clock.Cycles = tiering.RuntimeMetric("/gc/cycles/total:gc-cycles")
	tight = false
	n.spill.Round(clock, 999*time.Hour)
	checkDisk("there is room", again, again)
	n.spill.Round(clock, 1200*time.Hour)
	checkDisk("all are idle for long", feedTestUsers, feedTestUsers)
	checkFeeds(t, n, ReadOptions{}, nil)
	n.spill.Round(clock, 1201*time.Hour)
	tight = true
	clock.Cycles = 0
	n.spill.Round(clock, 1201*time.Hour)
	spilled, _ := onDisk(n)
	n.spill.Round(clock, 1201*time.Hour+tiering.FeedBusy/2)
	checkDisk("those that were just asked for stay", spilled, spilled)
}

// Feeds leave memory at once if it is too full, even feeds that nobody has read since the start.
func TestFeedsLeaveMemoryThatIsTooMuch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := openFeedNode(t, dir, 1, "")
	fillNode(t, n)
	closeCold(t, n)
	n = openFeedNode(t, dir, 1, "")
	bytes := int64(0)
	for _, r := range n.registry.bodies() {
		r.Tick(uint32(n.spill.Time() / time.Second))
		var ages spill.Ages
		r.Ages(&ages)
		bytes += ages.Bytes()
	}
	n.spill.Relieve(n.registry.bodies(), bytes/3)
	if spilled, _ := onDisk(n); spilled < feedTestUsers/3 || spilled == feedTestUsers {
		t.Errorf("%d feeds of %d are on disk", spilled, feedTestUsers)
	}
	n.spill.Relieve(n.registry.bodies(), 10*bytes)
	if spilled, _ := onDisk(n); spilled != feedTestUsers {
		t.Errorf("%d feeds of %d are on disk", spilled, feedTestUsers)
	}
	n.spill.Relieve(n.registry.bodies(), 10*bytes) // there is nothing left
	checkFeeds(t, n, ReadOptions{}, nil)
}

// Values of the setting out of bounds are refused.
func TestFeedIdleIsChecked(t *testing.T) {
	t.Parallel()
	for idle, ok := range map[time.Duration]bool{0: true, time.Second: true, tiering.FeedIdleDefault: true, time.Second - 1: false, -time.Second: false} {
		cfg := memberConfig(t, t.TempDir(), 1, 1)
		cfg.FeedIdle = idle
		n, err := Open(cfg)
		if ok != (err == nil) || err != nil && !strings.Contains(err.Error(), "neither 0 nor 1s") {
			t.Errorf("%v: %v", idle, err)
		}
		if err == nil {
			mustStop(t, n)
		}
	}
}
