package replica

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rafttest"
)

// faultyStores is a log in memory that can fail or hang.
type faultyStores struct {
	*raft.InmemStore
	stable rafttest.Stable
	mu     sync.Mutex    // orders stable's calls
	hang   chan struct{} // StoreLogs waits until it is closed, if set
	err    error
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
		<-hang
	}
	if err != nil {
		return err
	}
	return s.InmemStore.StoreLogs(entries)
}

func (s *faultyStores) GetLog(index uint64, entry *raft.Log) error {
	if _, err := s.faults(); err != nil {
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
	g, stores, told := startFaulty(t, func(c *Config) { c.DiskStallMax = 200 * time.Millisecond })
	hang := make(chan struct{})
	stores.set(hang, nil)
	start := time.Now()
	future := g.Apply(number(1))
	err := mustBeTold(t, told)
	if took := time.Since(start); took < 180*time.Millisecond {
		t.Errorf("told after %v", took)
	}
	if !strings.Contains(err.Error(), "disk") {
		t.Errorf("told %v", err)
	}
	mustHaveStopped(t, g, told)
	close(hang) // late, the write succeeds: it must not be acknowledged
	if err := future.Error(); err == nil {
		t.Error("the late write was acknowledged")
	}
}

// A leader whose disk hangs is replaced before it stops: 1. another replica leads and takes
// entries while the disk hangs; 2. once the disk answers, all replicas have what was accepted.
func TestHungLeaderIsReplaced(t *testing.T) {
	r, stores := &replicas{}, []*faultyStores{}
	for i := range 3 {
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
	r.add(t, 1, -1)
	hung := r.leader(t, -1)
	hang := make(chan struct{})
	stores[hung].set(hang, nil)
	stuck := r.groups[hung].Apply(number(1)) // its outcome is unknown
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

// A group whose disk fails answers with the failure, keeps out of the next
// election and never takes the process with it.
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
	// raft, a follower now, tries to save the next term and is ended there.
	eventually(t, "raft stands for election", func() bool { return g.raft.State() == raft.Candidate })
	if g.raft.CurrentTerm() != term {
		t.Errorf("term %d after %d", g.raft.CurrentTerm(), term)
	}
}

func TestFailedSnapshotStopsTheGroup(t *testing.T) {
	fsm := &sumFSM{persistErr: errBrokenDisk}
	g, _, told := startFaulty(t, func(c *Config) { c.FSM = fsm })
	mustAdd(t, g, 1)
	if err := g.TakeSnapshot(); err == nil {
		t.Error("snapshot succeeded")
	}
	if err := mustBeTold(t, told); !errors.Is(err, errBrokenDisk) {
		t.Errorf("told %v", err)
	}
	mustHaveStopped(t, g, told)
}
