package replica

import (
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/storage"
)

var errNoFile = raftstore.NoSegment(syscall.ENOSPC)

// A leader's log cannot store a change of members, because it cannot create its next file:
//
//  1. Another replica becomes the leader, if one can.
//  2. No replica uses the configuration that was not stored, although raft alone would.
//  3. If the replica's owner can open it again, it is opened without that configuration, even if
//     the log can create files by then.
func TestMembersThatCannotBeStored(t *testing.T) {
	t.Run("it waits", func(t *testing.T) { testMembersThatCannotBeStored(t, false) })
	t.Run("it is opened again", func(t *testing.T) { testMembersThatCannotBeStored(t, true) })
}

func testMembersThatCannotBeStored(t *testing.T, again bool) {
	r, stores := newFaultyReplicas(t, 3)
	reopen := make(chan struct{}, 3)
	for _, g := range r.groups {
		if again {
			g.cfg.Reopen = func() { reopen <- struct{}{} }
		}
	}
	r.add(t, 1, -1)
	r.mustAgree(t, -1) // wait, because a newcomer that is behind has no vote yet
	full := r.leader(t, -1)
	g := r.groups[full]
	stores[full].set(nil, errNoFile)
	go func() { _ = g.raft.DemoteVoter(r.others(full)[0].ID(), 0, eventuallyMax).Error() }()
	next := r.leader(t, full)
	r.add(t, 10, full)
	last, err := stores[full].LastIndex()
	mustDo(t, err)
	stores[full].set(nil, nil)
	if again {
		<-reopen
		time.Sleep(time.Second) // longer than a retry takes
		if now, err := stores[full].LastIndex(); err != nil || now != last {
			t.Errorf("the last entry is %d after %d, %v", now, last, err)
		}
		mustClose(t, g)
		r.fsms[full] = &sumFSM{}
		r.cfgs[full].FSM = r.fsms[full]
		g, err = startGroup(r.cfgs[full], stores[full])
		mustDo(t, err)
		t.Cleanup(func() { mustClose(t, g) })
		r.groups[full] = g
	}
	r.mustAgree(t, -1)
	want := r.groups[next].Configuration().Servers
	eventually(t, "the replicas agree on their members", func() bool {
		return slices.Equal(g.Configuration().Servers, want)
	})
	for _, s := range want {
		if s.Suffrage != raft.Voter {
			t.Errorf("%s is no voter", s.ID)
		}
	}
}

// A follower whose log cannot create its next file refuses a change of members. Once the log can
// create the file, the follower stores the change. The follower can be closed before and after
// that.
func TestFollowerCannotStoreMembers(t *testing.T) {
	for name, room := range map[string]bool{"with room again": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			r, stores := newFaultyReplicas(t, 3)
			r.add(t, 1, -1)
			r.mustAgree(t, -1)
			l := r.leader(t, -1)
			full := (l + 1) % 3
			g := r.groups[full]
			stores[full].set(nil, errNoFile)
			mustDo(t, r.groups[l].raft.AddNonvoter("other", "127.0.0.1:1", 0, eventuallyMax).Error())
			eventually(t, "the follower has refused the change", func() bool { return stores[full].refused.Load() > 0 })
			if room {
				stores[full].set(nil, nil)
				eventually(t, "the follower has the change", func() bool { return SuffrageOf(g.Configuration().Servers, "other") == raft.Nonvoter })
			}
			mustClose(t, g)
		})
	}
}

// A replica closes at once while its log waits for space to create a file, whichever call waits,
// and every waiting caller gets an answer.
func TestCloseBesideAWaitForAFile(t *testing.T) {
	for name, wait := range map[string]func(*Replica){
		"its term":     func(g *Replica) { _ = g.Apply(number(1)).Error() },
		"a new member": func(g *Replica) { g.raft.AddNonvoter("other", "127.0.0.1:1", 0, eventuallyMax) },
	} {
		for _, snapshot := range []bool{false, true} {
			t.Run(fmt.Sprint(name, snapshot), func(t *testing.T) {
				g, stores, told := startFaulty(t, nil)
				mustAdd(t, g, 1)
				stores.set(nil, errNoFile)
				wait(g)
				eventually(t, "raft waits", func() bool { return g.stop.Waits() })
				mustCloseWithin(t, g, eventuallyMax, snapshot)
				select {
				case err := <-told:
					t.Error(err)
				default:
				}
			})
		}
	}
}

// A leader whose store waits for space to create a file for a later term no longer leads, but raft
// continues its heartbeats. The other replicas are a majority, and must notice that they have no
// leader. One of them was away when the leader handed over, and refuses to vote while it hears from
// the former leader.
func TestLeaderThatWaitsForItsNextTerm(t *testing.T) {
	r, stores := newFaultyReplicas(t, 3)
	r.add(t, 1, -1)
	r.mustAgree(t, -1)
	full := r.leader(t, -1)
	heir, away := (full+1)%3, (full+2)%3
	mustClose(t, r.groups[away])
	stores[full].set(nil, errNoFile)
	_ = r.groups[full].Transfer(Member{r.groups[heir].ID(), r.cfgs[heir].Mux.Addr().String()})
	eventually(t, "the former leader waits for a file", r.groups[full].stop.Waits)
	r.fsms[away] = &sumFSM{}
	r.cfgs[away].FSM = r.fsms[away]
	g, err := startGroup(r.cfgs[away], stores[away])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, g) })
	r.groups[away] = g
	r.add(t, 10, full)
	stores[full].set(nil, nil)
	r.mustAgree(t, -1)
}

// A leader whose log accepts no entries for a long time sends its followers nothing, even if only a
// minority of them answers. The other followers may be a majority, and the leader's heartbeats
// would keep them from voting.
func TestLeaderThatWaitsForLong(t *testing.T) {
	r, _ := newFaultyReplicas(t, 3)
	r.add(t, 1, -1)
	r.mustAgree(t, -1)
	l := r.leader(t, -1)
	g, others := r.groups[l], r.others(l)
	mustClose(t, others[0])
	eventually(t, "one voter answers", func() bool { heir, suffice := g.heir(); return heir.ID == others[1].ID() && !suffice })
	if g.noteHang(storage.Hang{Hangs: true, Unusual: true}, storage.Hang{}); g.muted.Load() {
		t.Error("it leaves a voter alone that it needs")
	}
	g.muted.Store(false)
	eventually(t, "it keeps no voter from voting", func() bool { g.noteHang(storage.Hang{Hangs: true, Long: true}, storage.Hang{}); return g.muted.Load() })
}

// fullFSM fails to write a snapshot, as on a full disk.
type fullFSM struct{ *sumFSM }

type fullSnapshot struct{ raft.FSMSnapshot }

func (f fullFSM) Snapshot() (raft.FSMSnapshot, error) {
	s, err := f.sumFSM.Snapshot()
	return fullSnapshot{s}, err
}

func (fullSnapshot) Persist(raft.SnapshotSink) error {
	return &fs.PathError{Op: "write", Path: "1-1-1.snap.tmp", Err: syscall.ENOSPC}
}

// A replica that has no space for its last snapshot closes all the same, because its log has
// everything.
func TestCloseOnAFullDisk(t *testing.T) {
	g, _, told := startFaulty(t, func(cfg *Config) { cfg.FSM, cfg.SnapshotBytes = fullFSM{&sumFSM{}}, 1 })
	mustAdd(t, g, 1)
	if err := g.snapshotter.Take(); err == nil || !g.snapshotter.worthwhile() {
		t.Fatalf("a snapshot is taken with %v", err)
	}
	mustCloseWithin(t, g, eventuallyMax, true)
	select {
	case err := <-told:
		t.Error(err)
	default:
	}
}

// Opening a replica whose log cannot create a file fails at once, because the caller holds locks.
// It succeeds once the log can create the file.
func TestOpenWithoutAFile(t *testing.T) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.Initial = aloneIn(cfg)
	cfg, err := cfg.withDefaults()
	mustDo(t, err)
	stores := &faultyStores{InmemStore: raft.NewInmemStore()}
	for range 2 {
		stores.set(nil, errNoFile)
		if _, err := startGroup(cfg, stores); !scarce.Is(err) {
			t.Fatalf("opened with %v", err)
		}
		stores.set(nil, nil) // the next attempt of the loop fails when it raises the term
		g, err := startGroup(cfg, stores)
		mustDo(t, err)
		mustBeReady(t, g)
		mustClose(t, g)
	}
}
