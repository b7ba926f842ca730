package replica

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/storage"
)

// endlessFSM does not end a snapshot or a restore while slow is set. It works in pieces.
type endlessFSM struct {
	*sumFSM
	slow  atomic.Bool
	began chan string
}

func newEndlessFSM() *endlessFSM { return &endlessFSM{sumFSM: &sumFSM{}, began: make(chan string, 10)} }

type endlessSnapshot struct {
	raft.FSMSnapshot
	fsm *endlessFSM
}

func (f *endlessFSM) pieces(what string, piece func() error) error {
	if !f.slow.Load() {
		return nil
	}
	f.began <- what
	for ; f.slow.Load(); time.Sleep(10 * time.Millisecond) {
		if err := piece(); err != nil {
			return err
		}
	}
	return nil
}

func (f *endlessFSM) Snapshot() (raft.FSMSnapshot, error) {
	s, err := f.sumFSM.Snapshot()
	return endlessSnapshot{s, f}, err
}

func (s endlessSnapshot) Persist(sink raft.SnapshotSink) error {
	err := s.fsm.pieces("a snapshot", func() error { _, err := sink.Write(nil); return err })
	if err != nil {
		return err
	}
	return s.FSMSnapshot.Persist(sink)
}

func (f *endlessFSM) Restore(state io.ReadCloser) error {
	err := f.pieces("a restore", func() error { _, err := state.Read(nil); return err })
	if err != nil {
		return err
	}
	return f.sumFSM.Restore(state)
}

// mustCloseWithin closes a replica that writes, restores or receives a snapshot.
func mustCloseWithin(t *testing.T, g *Replica, limit time.Duration, snapshot bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	if err := g.Close(ctx, snapshot); err != nil {
		t.Fatalf("closed after %v: %v", time.Since(began), err)
	}
}

// A slow snapshot does not delay Close, whether it began before Close or is the last snapshot. The
// replica opens again with all applied entries.
func TestCloseBesideASnapshot(t *testing.T) {
	for name, last := range map[string]bool{"one that was begun": false, "the last one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t, testMux(t), "n1")
			cfg.Initial, cfg.SnapshotBytes = aloneIn(cfg), 1<<10
			fsm := newEndlessFSM()
			cfg.FSM = fsm
			g := mustOpen(t, cfg)
			mustBeReady(t, g)
			fsm.slow.Store(true)
			for range 20 {
				mustAdd(t, g, 1)
			}
			if !last {
				go func() { _ = g.snapshotter.Take() }()
				<-fsm.began
			}
			limit := eventuallyMax
			if last {
				limit = 20 * time.Second // Close waits for the last snapshot for a share of its time
			}
			mustCloseWithin(t, g, limit, last)
			again := &sumFSM{}
			cfg.FSM = again
			g = mustOpen(t, cfg)
			mustBeReady(t, g)
			if got := mustAdd(t, g, 0); got != 20 {
				t.Errorf("the sum is %v", got)
			}
		})
	}
}

// A follower closes at once while it restores its leader's snapshot, and after a stalled leader has
// sent only a part of one. This holds with and without a last snapshot. Nothing ends the process,
// and the replica opens again with the data on its disk.
func TestCloseBesideAnInstall(t *testing.T) {
	for name, c := range map[string]struct{ whole, snapshot bool }{
		"restoring": {true, false}, "receiving": {false, false},
		"restoring, before a snapshot": {true, true}, "receiving, before a snapshot": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			whole := c.whole
			t.Parallel()
			fsm := newEndlessFSM()
			p := playLeaderOf(t, storage.LogStoreShared, func(cfg *Config) {
				cfg.Initial, cfg.FSM = []Member{{"n2", "a2"}, {"n1", "a1"}, {"n3", "a3"}}, fsm
			})
			p.mustAppend(2, 1, 1, 5, entriesOf(2, 2, 5)...)
			installed := make(chan struct{})
			want := sumOf(2, 5)
			if whole {
				fsm.slow.Store(true)
				want = sumOf(2, 20)
				go func() { defer close(installed); _, _ = p.install(2, 20, 2) }()
				<-fsm.began
			} else {
				state, sends := io.Pipe()
				defer func() { sends.Close(); <-installed }()
				go func() {
					defer close(installed)
					_ = p.trans.InstallSnapshot("n1", p.to(), &raft.InstallSnapshotRequest{
						RPCHeader: headerOf("n2"), SnapshotVersion: raft.SnapshotVersionMax, Term: 2, LastLogIndex: 20, LastLogTerm: 2,
						Configuration: raft.EncodeConfiguration(raft.Configuration{}), ConfigurationIndex: 1, Size: 1 << 30,
					}, &raft.InstallSnapshotResponse{}, state)
				}()
				_, err := sends.Write(make([]byte, 1<<20))
				mustDo(t, err)
				eventually(t, "the follower receives the snapshot", func() bool {
					unfinished, err := filepath.Glob(filepath.Join(p.cfg.Dir, "snapshots", "*.tmp"))
					return err == nil && len(unfinished) > 0
				})
			}
			mustCloseWithin(t, p.Replica, eventuallyMax, c.snapshot)
			if len(p.stopped) > 0 {
				t.Errorf("the process would end: %v", <-p.stopped)
			}
			cfg := p.cfg
			again := &sumFSM{}
			cfg.FSM = again
			p.Replica = mustOpen(t, cfg)
			if !whole {
				p.trans = p.dialler()
				p.mustAppend(3, 5, 2, 5)
			}
			eventually(t, "the state is restored", func() bool { sum, _ := again.state(); return sum == want })
		})
	}
}

// A leader whose followers can store nothing keeps its lease, since they answer heartbeats. It
// closes all the same, and entries that it could not commit have an unknown outcome.
func TestCloseOfALeaderThatCannotCommit(t *testing.T) {
	t.Parallel()
	r, stores := newFaultyReplicas(t, 3)
	r.add(t, 1, -1)
	r.mustAgree(t, -1)
	l := r.leader(t, -1)
	for i := range stores {
		if i != l {
			stores[i].set(nil, errNoFile)
		}
	}
	future := r.groups[l].Apply(number(1))
	eventually(t, "nobody else stores the entry", func() bool {
		return stores[(l+1)%3].refused.Load() > 0 && stores[(l+2)%3].refused.Load() > 0
	})
	mustClose(t, r.groups[l])
	if err := future.Error(); err == nil || errs.NeverProposed(err) {
		t.Errorf("the answer: %v", err)
	}
}

// An entry is stored while Close ends another goroutine of the replica, which waits for disk space.
// The proposal must not fail with an error which promises that no log has the entry.
func TestStoredBesideAnEndedWait(t *testing.T) {
	g, stores, _ := startFaulty(t, nil)
	hang := make(chan struct{})
	stores.set(hang, nil)
	before := stores.waiting.Load()
	future := g.Apply(number(7))
	eventually(t, "the entry is being stored", func() bool { return stores.waiting.Load() > before })
	g.EndWaits()
	if err := g.stop.Wait(syscall.ENOSPC); !errors.Is(err, errs.ErrGroupClosed) { // as DeleteRange calls it in raft's snapshot goroutine
		t.Fatal(err)
	}
	close(hang)
	err := future.Error()
	last, _ := stores.LastIndex()
	var e raft.Log
	if mustDo(t, stores.GetLog(last, &e)); e.Type != raft.LogCommand || err == nil || errs.NeverProposed(err) {
		t.Errorf("the last entry is a %s; the answer: %v", e.Type, err)
	}
}

// A snapshot is due, but nothing is applied because no leader announced a commit index. The replica
// waits before it tries the snapshot again.
func TestSnapshotWithoutALeader(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	p := playLeaderOf(t, storage.LogStoreShared, func(cfg *Config) {
		cfg.Initial = []Member{{"n2", "a2"}, {"n1", "a1"}, {"n3", "a3"}}
		cfg.SnapshotBytes = 1 << 10
		cfg.Room = func(uint64) (func(), error) {
			asked.Add(1)
			return func() {}, nil
		}
	})
	p.mustAppend(2, 1, 1, 0, entriesOf(2, 2, 200)...)
	eventually(t, "a snapshot is due", func() bool { return asked.Load() > 0 })
	time.Sleep(2 * snapshotRetryDelay)
	if n := asked.Load(); n > 10 {
		t.Errorf("it was tried %d times", n)
	}
}

// The first Close returns before the shutdown has ended. A second Close returns only after the
// shutdown, so that its caller may free what raft uses.
func TestCloseWaitsForTheShutdown(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, testMux(t), "n1")
	cfg.Initial = aloneIn(cfg)
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	mustDo(t, g.snapshotter.running.Acquire(t.Context(), 1)) // shutdown waits until this is released
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := g.Close(ctx, false); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("closed before the shutdown had ended: %v", err)
		}
	}
	g.snapshotter.running.Release(1)
	mustDo(t, g.Close(t.Context(), false))
}
