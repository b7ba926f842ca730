package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/storage"
)

// replicas is one group on three nodes, each with a Mux of its own.
type replicas struct {
	cfgs   []Config
	groups []*Replica
	fsms   []*sumFSM

	accepted, unknown uint64 // sums of the proposed numbers
}

// newReplicas starts a group of one voter and adds two more.
func newReplicas(t *testing.T, store storage.LogStore) *replicas {
	t.Helper()
	r := &replicas{}
	for i := range 3 {
		cfg := testConfig(t, testMux(t), fmt.Sprintf("n%d", i+1))
		cfg.LogStore = store
		if i == 0 {
			cfg.Initial = aloneIn(cfg)
		}
		r.cfgs = append(r.cfgs, cfg)
		r.groups, r.fsms = append(r.groups, nil), append(r.fsms, nil)
		r.open(t, i)
	}
	mustBeReady(t, r.groups[0])
	for _, cfg := range r.cfgs[1:] {
		r.addVoter(t, cfg)
	}
	return r
}

// addVoter adds a voter through the present leader, which may change on a busy machine. A new
// replica votes for nobody until it knows that it is a member. So it first joins as a non-voter, as
// in Membership.Reconcile.
func (r *replicas) addVoter(t *testing.T, cfg Config) {
	t.Helper()
	id, addr := raft.ServerID(cfg.NodeID), raft.ServerAddress(cfg.Mux.Addr().String())
	added := r.groups[slices.IndexFunc(r.groups, func(g *Replica) bool { return g.ID() == id })]
	eventually(t, cfg.NodeID+" is a member", func() bool {
		return r.groups[r.leader(t, -1)].raft.AddNonvoter(id, addr, 0, 5*time.Second).Error() == nil
	})
	eventually(t, cfg.NodeID+" knows that it is a member", func() bool { return Contains(added.Configuration().Servers, id) })
	eventually(t, cfg.NodeID+" is a voter", func() bool {
		return r.groups[r.leader(t, -1)].raft.AddVoter(id, addr, 0, 5*time.Second).Error() == nil
	})
}

func (r *replicas) open(t *testing.T, i int) {
	t.Helper()
	r.fsms[i] = &sumFSM{}
	r.cfgs[i].FSM = r.fsms[i]
	r.groups[i] = mustOpen(t, r.cfgs[i])
}

// leader waits for a ready leader among the replicas, and ignores replica except (-1 for none).
func (r *replicas) leader(t *testing.T, except int) int {
	t.Helper()
	found := -1
	eventually(t, "one replica is ready", func() bool {
		for i, g := range r.groups {
			if i != except && g.Ready() == nil {
				found = i
			}
		}
		return found >= 0
	})
	return found
}

// add proposes n until a leader accepts it, and ignores replica except (-1 for none). If a leader
// loses its majority on a busy machine, the outcome of an entry is unknown.
func (r *replicas) add(t *testing.T, n uint64, except int) {
	t.Helper()
	eventually(t, "an entry is accepted", func() bool {
		err := r.groups[r.leader(t, except)].Apply(number(n)).Error()
		switch {
		case err == nil:
			r.accepted += n
		case !errs.NeverProposed(err):
			r.unknown += n
		}
		return err == nil
	})
}

// mustAgree waits until all replicas have the same sum, and ignores replica except (-1 for none).
// The sum includes all accepted entries, and perhaps some entries of unknown outcome.
func (r *replicas) mustAgree(t *testing.T, except int) {
	t.Helper()
	eventually(t, "the replicas agree", func() bool {
		agreed := -1
		for i, f := range r.fsms {
			sum, _ := f.state()
			if i == except {
				continue
			}
			if sum < r.accepted || agreed >= 0 && uint64(agreed) != sum {
				return false
			}
			agreed = int(sum)
		}
		if uint64(agreed) > r.accepted+r.unknown {
			t.Fatalf("sum %d, accepted %d, unknown %d", agreed, r.accepted, r.unknown)
		}
		return true
	})
}

// A group of three:
//
//  1. every replica applies every entry once;
//  2. a stopped leader is replaced and nothing acknowledged is lost;
//  3. a replica that lacks entries which the leader's log no longer has gets the leader's snapshot,
//     and its own older log is deleted;
//  4. all of it holds after a restart of everything.
func TestThreeReplicas(t *testing.T) { eachStore(t, testThreeReplicas) }

func testThreeReplicas(t *testing.T, store storage.LogStore) {
	r := newReplicas(t, store)
	if r.groups[0].SoleVoter() {
		t.Error("soleVoter is true with three")
	}
	for n := range uint64(50) {
		r.add(t, n, -1)
	}
	r.mustAgree(t, -1)

	old := r.leader(t, -1)
	mustClose(t, r.groups[old])
	for n := range uint64(50) {
		r.add(t, n, old)
	}
	r.mustAgree(t, old)

	for range 3 * trailingEntriesMin {
		r.add(t, 1, old)
	}
	r.mustAgree(t, old)
	for _, g := range r.others(old) { // all remaining replicas, because the leader may change on a busy machine
		g.log.Covered(-(1 << 40), 0) // as if the entries were so large that few are kept
		if err := g.snapshotter.Take(); err != nil {
			t.Fatal(err)
		}
		first, err := g.log.FirstIndex()
		if err != nil || first <= 100 {
			t.Fatalf("the log begins at %d, %v", first, err)
		}
	}
	r.open(t, old)
	r.mustAgree(t, -1)
	if s := r.groups[old].Stats(); s.Snapshot == 0 {
		t.Errorf("n%d caught up without the snapshot: %+v", old+1, s)
	}
	eventually(t, "the older log is gone", func() bool {
		first, err := r.groups[old].log.FirstIndex()
		return err == nil && (first == 0 || first > r.groups[old].snaps.NewestIndex())
	})
	r.add(t, 1000, -1)

	for i := range r.groups {
		mustClose(t, r.groups[i])
	}
	for i := range r.groups {
		r.open(t, i)
	}
	r.add(t, 1, -1)
	r.mustAgree(t, -1)
}

func TestALeaderWithoutMajorityIsNotReady(t *testing.T) {
	r := newReplicas(t, storage.LogStoreBoltDB)
	r.add(t, 1, -1)
	l := r.leader(t, -1)
	for i := range r.groups {
		if i != l {
			mustClose(t, r.groups[i])
		}
	}
	eventually(t, "the leader is not ready", func() bool { return errors.Is(r.groups[l].Ready(), errs.ErrNoLeader) })
	err := r.groups[l].Apply(number(1)).Error()
	if err == nil {
		t.Error("an entry was accepted")
	}
}

func TestCloseAnswersWhatWasProposed(t *testing.T) {
	eachStore(t, testCloseAnswersWhatWasProposed)
}

func testCloseAnswersWhatWasProposed(t *testing.T, store storage.LogStore) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.LogStore = store
	cfg.Initial = aloneIn(cfg)
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	answers := make(chan error, 16)
	for range 16 {
		go func() {
			for {
				err := g.Apply(number(1)).Error()
				if err != nil {
					answers <- err
					return
				}
			}
		}()
	}
	eventually(t, "some are applied", func() bool { return g.Stats().Applied > 50 })
	mustClose(t, g)
	for range 16 {
		select {
		case err := <-answers:
			if !errors.Is(err, errs.ErrGroupClosed) {
				t.Errorf("answer %v", err)
			}
		case <-time.After(eventuallyMax):
			t.Fatal("a proposal has no answer")
		}
	}
}

func TestBytesStartASnapshot(t *testing.T) { eachStore(t, testBytesStartASnapshot) }

func testBytesStartASnapshot(t *testing.T, store storage.LogStore) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.LogStore = store
	cfg.Initial, cfg.SnapshotBytes = aloneIn(cfg), 64<<10
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	mustAddLarge := func() {
		t.Helper()
		if err := g.Apply(append(number(1), make([]byte, 8<<10)...)).Error(); err != nil {
			t.Fatal(err)
		}
	}
	mustAddLarge()
	if g.Stats().Snapshot != 0 || g.snapshotter.worthwhile() {
		t.Fatal("a snapshot is due after 8 KiB")
	}
	for range 8 {
		mustAddLarge()
	}
	eventually(t, "a snapshot is taken", func() bool { return g.Stats().Snapshot > 0 })
	eventually(t, "its bytes are taken off", func() bool { return g.snapshotter.logSince() < cfg.SnapshotBytes })
	mustClose(t, g)

	// Entries in the log after the snapshot count again after a restart.
	snapshot, counted := g.Stats().Snapshot, int64(0)
	cfg.FSM = &sumFSM{}
	g = mustOpen(t, cfg)
	mustBeReady(t, g)
	for i := snapshot + 1; i <= g.Stats().Commit; i++ {
		var e raft.Log
		if err := g.log.GetLog(i, &e); err != nil {
			t.Fatal(err)
		}
		counted += int64(storage.EntryBytes(&e))
	}
	if got := g.snapshotter.logSince(); got != counted {
		t.Errorf("%d bytes since the snapshot, want %d", got, counted)
	}
}

// largeFSM is a sumFSM whose snapshots are large.
type largeFSM struct {
	sumFSM
	bytes int
}

func (f *largeFSM) Snapshot() (raft.FSMSnapshot, error) {
	return sumSnapshot{bytes: make([]byte, f.bytes)}, nil
}

func (f *largeFSM) Restore(state io.ReadCloser) error { return state.Close() }

// The next snapshot is due once the log is as large as the last snapshot. The snapshot leaves about
// that many bytes of entries in the log, even if the entries are small. So a follower can restore
// the snapshot and then catch up by the log, although more entries come.
func TestSnapshotIsDueByItsSize(t *testing.T) {
	const state = 2 << 20
	cfg := testConfig(t, testMux(t), "n1")
	cfg.Initial, cfg.SnapshotBytes, cfg.FSM = aloneIn(cfg), 64<<10, &largeFSM{bytes: state}
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	mustGrow := func(bytes int64) {
		t.Helper()
		for from := g.snapshotter.logSince(); g.snapshotter.logSince() < from+bytes; {
			mustDo(t, g.Apply(append(number(1), make([]byte, 16<<10)...)).Error())
		}
	}
	mustGrow(cfg.SnapshotBytes)
	eventually(t, "a first snapshot is taken", func() bool { return g.Stats().Snapshot > 0 })
	if due, got := g.snapshotter.dueBytes(), g.snaps.NewestBytes(); due != state || got != state {
		t.Errorf("due after %d, the snapshot has %d", due, got)
	}
	mustClose(t, g)

	cfg.FSM = &largeFSM{bytes: state}
	g = mustOpen(t, cfg) // it learns the snapshot's size from the stored snapshot
	mustBeReady(t, g)
	first := g.Stats().Snapshot
	mustGrow(state / 2)
	if g.Stats().Snapshot != first {
		t.Error("a snapshot was taken after half as much")
	}
	mustGrow(state / 2)
	eventually(t, "a second snapshot is taken", func() bool { return g.Stats().Snapshot > first })

	const tiny = 50_000
	overhead := int64(storage.EntryBytes(&raft.Log{}))
	bytes, entries := g.log.SinceSnapshot()
	g.log.Covered(bytes-tiny*overhead, entries-tiny)
	mustDo(t, g.snapshotter.setTrailing(g.snapshotter.logSince(), tiny))
	if got := g.raft.ReloadableConfig().TrailingLogs; got < state/uint64(overhead) {
		t.Errorf("%d entries of %d bytes are left", got, overhead)
	}
}

func TestCloseTakesASnapshotThatIsWorthIt(t *testing.T) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.Initial, cfg.SnapshotBytes = aloneIn(cfg), 4<<10
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	mustAdd(t, g, 3)
	if err := g.Apply(append(number(1), make([]byte, 2<<10)...)).Error(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
	defer cancel()
	if err := g.Close(ctx, true); err != nil {
		t.Fatal(err)
	}
	if g.Stats().Snapshot == 0 {
		t.Error("no snapshot")
	}
}
