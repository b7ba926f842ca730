package replica

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/shard/errs"
)

// faultyStores is a log in memory that can fail or hang.
type faultyStores struct {
	*raft.InmemStore
	stable rafttest.Stable
	mu     sync.Mutex    // guards stable, hang and err
	hang   chan struct{} // if set, StoreLogs waits until this channel is closed
	err    error
	// waiting counts the calls that have waited for hang.
	waiting atomic.Int32
	refused atomic.Int32 // number of calls of StoreLogs that failed with err
}

func (s *faultyStores) set(hang chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hang, s.err, s.stable.Err = hang, err, err
}

func (s *faultyStores) faults() (chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hang, s.err
}

func (s *faultyStores) StoreLogs(entries []*raft.Log) error {
	hang, err := s.faults()
	if hang != nil {
		s.waiting.Add(1)
		<-hang
	}
	if err != nil {
		s.refused.Add(1)
		return err
	}
	return s.InmemStore.StoreLogs(entries)
}

func (s *faultyStores) GetLog(index uint64, entry *raft.Log) error {
	if _, err := s.faults(); err != nil && !scarce.Is(err) { // reads succeed on a full disk
		return err
	}
	return s.InmemStore.GetLog(index, entry)
}

func (s *faultyStores) Set(key, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stable.Set(key, value)
}

func (s *faultyStores) Get(key []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stable.Get(key)
}

func (*faultyStores) Close() error { return nil }

// startFaulty starts a sole voter over a faulty store, and collects the errors that Fatal
// receives.
func startFaulty(t *testing.T, change func(*Config)) (*Replica, *faultyStores, chan error) {
	t.Helper()
	told := make(chan error, 10)
	cfg := testConfig(t, testMux(t), "n1")
	cfg.Initial = aloneIn(cfg)
	cfg.Fatal = func(err error) { told <- err }
	if change != nil {
		change(&cfg)
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	stores := &faultyStores{InmemStore: raft.NewInmemStore()}
	g, err := startGroup(cfg, stores)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, g) })
	mustBeReady(t, g)
	return g, stores, told
}

func mustBeTold(t *testing.T, told chan error) error {
	t.Helper()
	select {
	case err := <-told:
		return err
	case <-time.After(eventuallyMax):
		t.Fatal("Fatal was not called")
		return nil
	}
}

func mustHaveStopped(t *testing.T, g *Replica, told chan error) {
	t.Helper()
	<-g.Failed()
	if err := g.Ready(); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("ready: %v", err)
	}
	if err := g.Apply(number(1)).Error(); err == nil {
		t.Error("an entry was accepted")
	}
	select {
	case err := <-told:
		t.Errorf("Fatal was called again: %v", err)
	default:
	}
}

func TestHungDiskStopsTheGroup(t *testing.T) {
	t.Parallel()
	var hanging atomic.Int32
	const stallMax = 3 * time.Second // longer than a busy machine pauses a process
	g, stores, told := startFaulty(t, func(c *Config) {
		c.DiskStallMax = stallMax
		c.Hangs = func(hangs bool) {
			if hangs {
				hanging.Add(1)
			} else {
				hanging.Add(-1)
			}
		}
	})
	hang := make(chan struct{})
	stores.set(hang, nil)
	start := time.Now()
	future := g.Apply(number(1))
	err := mustBeTold(t, told)
	if took := time.Since(start); took < stallMax*9/10 {
		t.Errorf("told after %v", took)
	}
	if !strings.Contains(err.Error(), "disk") {
		t.Errorf("told %v", err)
	}
	mustHaveStopped(t, g, told)
	close(hang) // the write succeeds late, and must not be acknowledged
	if err := future.Error(); err == nil {
		t.Error("the late write was acknowledged")
	}
	if hanging.Load() != 1 {
		t.Errorf("%d replicas hang", hanging.Load())
	}
	mustClose(t, g)
	if hanging.Load() != 0 {
		t.Errorf("%d replicas hang after the only one was closed", hanging.Load())
	}
}

// newFaultyReplicas starts a group of voters over faulty stores.
func newFaultyReplicas(t *testing.T, voters int) (*replicas, []*faultyStores) {
	t.Helper()
	r, stores := &replicas{}, []*faultyStores{}
	for i := range voters {
		cfg := testConfig(t, testMux(t), fmt.Sprintf("n%d", i+1))
		if i == 0 {
			cfg.Initial = aloneIn(cfg)
		}
		cfg, err := cfg.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		fsm := &sumFSM{}
		cfg.FSM = fsm
		store := &faultyStores{InmemStore: raft.NewInmemStore()}
		g, err := startGroup(cfg, store)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { mustClose(t, g) })
		r.cfgs, r.fsms, r.groups, stores = append(r.cfgs, cfg), append(r.fsms, fsm), append(r.groups, g), append(stores, store)
	}
	mustBeReady(t, r.groups[0])
	for _, cfg := range r.cfgs[1:] {
		r.addVoter(t, cfg)
	}
	return r, stores
}

// A leader's disk hangs, and nobody else can lead without its vote. It stays leader in its term,
// and accepts the entry once its disk answers.
func TestHungLeaderWhoseVoteIsNeeded(t *testing.T) {
	r, stores := newFaultyReplicas(t, 2)
	r.add(t, 1, -1)
	g := r.groups[r.leader(t, -1)]
	term, hang := g.Term(), make(chan struct{})
	stores[r.leader(t, -1)].set(hang, nil)
	stuck := g.Apply(number(1))
	eventually(t, "the disk hangs", g.Hangs)
	time.Sleep(r.cfgs[0].Timing.Heartbeat * 3) // long enough for a follower without a leader to campaign
	close(hang)
	if err := stuck.Error(); err != nil || g.Term() != term {
		t.Errorf("the entry: %v; term %d after %d", err, g.Term(), term)
	}
}

// A handover ends with an error while raft waits for the disk.
func TestTransferOfAHungLeader(t *testing.T) {
	r, stores := newFaultyReplicas(t, 2)
	l := r.leader(t, -1)
	hang := make(chan struct{})
	defer close(hang)
	stores[l].set(hang, nil)
	r.groups[l].Apply(number(1))
	eventually(t, "raft waits for the disk", func() bool { return stores[l].waiting.Load() > 0 })
	to := r.others(l)[0]
	mustNotWaitForDisk(t, func() error { return r.groups[l].Transfer(Member{to.ID(), to.cfg.Mux.Addr().String()}) })
}

// mustNotWaitForDisk checks that a call of a leader whose raft waits for the disk returns
// errRaftWaits.
func mustNotWaitForDisk(t *testing.T, call func() error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	select {
	case err := <-ended:
		if !errors.Is(err, errRaftWaits) {
			t.Error(err)
		}
	case <-time.After(eventuallyMax):
		t.Error("it waits for the disk")
	}
}

// A change of members ends with an error while raft stores it on a disk that hangs.
func TestChangeOnAHungDisk(t *testing.T) {
	r, stores := newFaultyReplicas(t, 3)
	l := r.leader(t, -1)
	hang := make(chan struct{})
	stores[l].set(hang, nil)
	g, out := r.groups[l], r.others(l)[0].ID()
	mustNotWaitForDisk(t, func() error { return g.changed(g.raft.DemoteVoter(out, 0, memberTimeout)) })
	close(hang)
}

// A leader whose disk hangs is replaced before it stops:
//
//  1. another replica leads and accepts entries while the disk hangs;
//  2. once the disk answers, all replicas have all accepted entries.
func TestHungLeaderIsReplaced(t *testing.T) {
	r, stores := newFaultyReplicas(t, 3)
	r.add(t, 1, -1)
	hung := r.leader(t, -1)
	hang := make(chan struct{})
	stores[hung].set(hang, nil)
	stuck := r.groups[hung].Apply(number(1)) // the outcome of this write is unknown
	r.unknown++
	began := time.Now()
	next := r.leader(t, hung)
	t.Logf("%s leads %v after the disk of %s hung", r.cfgs[next].NodeID, time.Since(began), r.cfgs[hung].NodeID)
	r.add(t, 10, hung)
	if !r.groups[hung].Hangs() {
		t.Error("the replica does not tell that its disk hangs")
	}
	stores[hung].set(nil, nil)
	close(hang)
	if err := stuck.Error(); err == nil {
		r.accepted, r.unknown = r.accepted+1, r.unknown-1
	}
	r.mustAgree(t, -1)
	eventually(t, "the disk hangs no more", func() bool { return !r.groups[hung].Hangs() })
}

// frozenFSM applies nothing while it is held, like a state machine whose own disk is full.
type frozenFSM struct {
	*sumFSM
	held sync.RWMutex
}

func (f *frozenFSM) ApplyBatch(entries []*raft.Log) []any {
	f.held.RLock()
	defer f.held.RUnlock()
	return f.sumFSM.ApplyBatch(entries)
}

// A leader whose state machine hangs, although its log does not, is replaced:
//
//  1. another replica leads and accepts entries meanwhile;
//  2. the hanging replica refuses an order to campaign;
//  3. once it applies entries again, all replicas have all accepted entries.
func TestHungStateMachineIsReplaced(t *testing.T) {
	r, _ := newFaultyReplicas(t, 2)
	cfg := testConfig(t, testMux(t), "n3")
	fsm := &frozenFSM{sumFSM: &sumFSM{}}
	cfg.FSM = fsm
	cfg, err := cfg.withDefaults()
	mustDo(t, err)
	g, err := startGroup(cfg, &faultyStores{InmemStore: raft.NewInmemStore()})
	mustDo(t, err)
	t.Cleanup(func() { mustClose(t, g) })
	r.cfgs, r.fsms, r.groups = append(r.cfgs, cfg), append(r.fsms, fsm.sumFSM), append(r.groups, g)
	r.addVoter(t, cfg)
	r.add(t, 1, -1)
	r.mustAgree(t, -1)
	if l := r.leader(t, -1); l != 2 {
		mustDo(t, r.groups[l].Transfer(Member{g.ID(), cfg.Mux.Addr().String()}))
	}
	eventually(t, "it leads", func() bool { return g.Ready() == nil })

	fsm.held.Lock()
	stuck := g.Apply(number(1)) // the outcome of this write is unknown
	r.unknown++
	began := time.Now()
	next := r.leader(t, 2)
	t.Logf("%s leads after %v", r.cfgs[next].NodeID, time.Since(began))
	r.add(t, 10, 2)
	if err := r.groups[next].Transfer(Member{g.ID(), cfg.Mux.Addr().String()}); err == nil || r.groups[next].raft.State() != raft.Leader {
		t.Errorf("a replica that applies nothing was told to lead: %v", err)
	}
	fsm.held.Unlock()
	if err := stuck.Error(); err == nil {
		r.accepted, r.unknown = r.accepted+1, r.unknown-1
	}
	r.mustAgree(t, -1)
	eventually(t, "it may be told to lead", func() bool { return !g.applyHangs.Load() })
}

// If a group's disk fails, proposals get the disk's error, and the group takes part in no later
// election.
func TestBrokenDiskStopsTheGroup(t *testing.T) {
	g, stores, told := startFaulty(t, nil)
	mustAdd(t, g, 1)
	stores.set(nil, errBrokenDisk)
	err := g.Apply(number(1)).Error()
	if !errors.Is(err, errBrokenDisk) || errs.NeverProposed(err) {
		t.Errorf("answer %v", err)
	}
	if err := mustBeTold(t, told); !errors.Is(err, errBrokenDisk) {
		t.Errorf("told %v", err)
	}
	mustHaveStopped(t, g, told)
	term := g.raft.CurrentTerm()
	// raft is a follower now. When it tries to store the next term, the store ends its goroutine.
	eventually(t, "raft stands for election", func() bool { return g.raft.State() == raft.Candidate })
	if g.raft.CurrentTerm() != term {
		t.Errorf("term %d after %d", g.raft.CurrentTerm(), term)
	}
}

func TestFailedSnapshotStopsTheGroup(t *testing.T) {
	fsm := &sumFSM{persistErr: errBrokenDisk}
	g, _, told := startFaulty(t, func(c *Config) { c.FSM = fsm })
	mustAdd(t, g, 1)
	if err := g.snapshotter.Take(); err == nil {
		t.Error("snapshot succeeded")
	}
	if err := mustBeTold(t, told); !errors.Is(err, errBrokenDisk) {
		t.Errorf("told %v", err)
	}
	mustHaveStopped(t, g, told)
}
