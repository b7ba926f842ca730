package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
)

const (
	growParent  = 7
	growChild   = 8
	growAttempt = 9
)

var growRoute = codec.Route{Modulus: 2, Residue: 1} // of the child

// growNode is a node with a replica of a shard of counters that splits, and one of its child. Both have sets
// of members on disk.
type growNode struct {
	*testing.T
	parent, child Config
	setsDir       string
	store         *members.Store
	parking       *raftfsm.Parking
	p, c          *growReplica
}

type growReplica struct {
	*Replica
	fsm *counters.Machine
}

// growWorld is a group that splits into two, on some nodes, and the group of the other part.
type growWorld struct {
	*testing.T
	nodes []*growNode
	rows  int64 // number of entries that were applied to each row
}

const growRows = 20

func newGrowWorld(t *testing.T, nodes int, store storage.LogStore) *growWorld {
	t.Helper()
	w := &growWorld{T: t}
	for i := range nodes {
		n := &growNode{T: t, setsDir: t.TempDir()}
		n.parent = testConfig(t, testMux(t), fmt.Sprintf("n%d", i+1))
		n.parent.LogStore = store
		n.child = n.parent
		n.child.Group, n.child.Dir = growChild, t.TempDir()
		w.nodes = append(w.nodes, n)
	}
	var first []Member
	for _, n := range w.nodes {
		first = append(first, Member{n.parent.ID(), n.parent.Mux.Addr().String()})
	}
	for _, n := range w.nodes {
		n.parent.Initial, n.child.Initial = first, first
		n.start()
	}
	for range 3 {
		w.add(growParent, codec.Whole, 0)
	}
	w.rows = 3
	return w
}

// start opens the replicas of a node as a new process does.
func (n *growNode) start() {
	n.Helper()
	var err error
	n.store, err = members.Open(members.Config{Dir: n.setsDir, MemoryBytes: members.MemoryBytesMin, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { n.Error(err) }})
	mustDo(n, err)
	store := n.store
	n.Cleanup(func() {
		if n.store == store {
			mustDo(n, store.Close())
		}
	})
	n.parking = new(raftfsm.Parking)
	n.p = n.open(n.parent, codec.Whole)
	n.c = n.open(n.child, growRoute)
}

// open opens a replica. The replica of a node that is not started is not open.
func (n *growNode) open(cfg Config, route codec.Route) *growReplica {
	n.Helper()
	sets, err := n.store.Group(cfg.Group)
	mustDo(n, err)
	m := counters.New(raftfsm.Places{Members: sets})
	m.SetRoute(route)
	m.SetGrowth(raftfsm.Growth{
		Parking: n.parking, Unborn: cfg.Group == growChild,
		NewPart: func() raftfsm.Machine { return counters.New(raftfsm.Places{}) },
	})
	cfg.FSM, cfg.Machine, cfg.Members = m, m, sets
	g, err := Open(cfg)
	mustDo(n, err)
	r := &growReplica{g, m}
	n.Cleanup(func() { n.close(r) })
	return r
}

func (n *growNode) close(r *growReplica) {
	n.Helper()
	mustClose(n.T, r.Replica)
	r.fsm.Close()
}

// crash ends the process of a node: nothing is written besides what is on disk.
func (n *growNode) crash() {
	n.Helper()
	n.close(n.p)
	n.close(n.c)
	mustDo(n, n.store.Close())
	n.store = nil
}

func (w *growWorld) crash() {
	w.Helper()
	for _, n := range w.nodes {
		n.crash()
	}
	for _, n := range w.nodes {
		n.start()
	}
}

func (n *growNode) of(group uint32) *growReplica {
	if group == growParent {
		return n.p
	}
	return n.c
}

// elected waits for a leader that may be unborn.
func (w *growWorld) elected(group uint32) (found *growNode) {
	w.Helper()
	eventually(w, "a replica leads", func() bool {
		for _, n := range w.nodes {
			if r := n.of(group); !r.Closed() && r.Growth.Elected() {
				found = n
			}
		}
		return found != nil
	})
	return found
}

func (w *growWorld) leader(group uint32) *growReplica {
	w.Helper()
	var found *growReplica
	eventually(w, "a replica is ready", func() bool {
		for _, n := range w.nodes {
			if r := n.of(group); !r.Closed() && r.Ready() == nil {
				found = r
			}
		}
		return found != nil
	})
	return found
}

// add applies an entry that adds a member to the set of each row of the route. Each entry has its own member.
func (w *growWorld) add(group uint32, route codec.Route, residue uint64) {
	w.Helper()
	w.rows++
	var all [][2]uint64
	for key := residue; key < growRows; key += uint64(route.Modulus) {
		all = append(all, [2]uint64{key, uint64(w.rows)})
	}
	entry := joinsEntry(time.Now(), route, all)
	eventually(w, "an entry is accepted", func() bool { // an entry whose leader was deposed is repeated: a member joins once
		future := w.leader(group).Apply(entry)
		if future.Error() != nil {
			return false
		}
		result, ok := future.Response().(*raftfsm.Result)
		return ok && result.Outcome(0) == (&raftfsm.Result{}).Outcome(0)
	})
}

func splitOfGrowth(term uint64) []byte {
	e := raftfsm.SplitEntry{From: codec.Whole, Attempt: growAttempt, Term: term, Group: growParent, Divisor: 1, Children: []uint32{growChild}}
	return e.Entry(codec.KindCounters)
}

func (w *growWorld) split() {
	w.Helper()
	eventually(w, "the shard splits", func() bool { // the outcome may be unknown if a leader is deposed
		leader := w.leader(growParent)
		err := leader.Growth.Propose(splitOfGrowth(leader.ReadyTerm()))
		return err == nil || errors.Is(err, raftfsm.ErrVoid)
	})
	for _, n := range w.nodes {
		eventually(w, "the part is parked", func() bool { return n.p.fsm.Barred() && n.parking.Of(growChild) != nil })
	}
}

// adopt makes the leader of the child propose Adopt, and waits for the replicas that are open.
func (w *growWorld) adopt() {
	w.Helper()
	entry := w.nodes[0].parking.Of(growChild).Entry(codec.KindCounters) // equal on all nodes
	eventually(w, "Adopt is accepted", func() bool {
		future := w.elected(growChild).c.Apply(entry)
		return future.Error() == nil && future.Response() == nil
	})
	for _, n := range w.nodes {
		eventually(w, "the child is born", func() bool { return n.c.Closed() || !n.c.Growth.Unborn() })
	}
}

// save takes the first snapshots of the child.
func (w *growWorld) save(nodes ...*growNode) {
	w.Helper()
	for _, n := range nodes {
		eventually(w, "the child is saved", func() bool {
			for _, n := range w.nodes {
				n.c.Growth.Begun(0)
			}
			return n.c.Snapshots().NewestIndex() >= n.c.fsm.AdoptedAt()
		})
	}
}

func (w *growWorld) begun() {
	w.Helper()
	for _, n := range w.nodes {
		n.p.Growth.Begun(growAttempt)
		eventually(w, "the parent takes a snapshot", func() bool { return !n.p.fsm.Barred() && n.p.Snapshots().NewestIndex() >= n.p.fsm.GrewAt() })
	}
}

// check writes to both groups, and compares all replicas and their sets.
func (w *growWorld) check() {
	w.Helper()
	w.add(growParent, codec.Route{Modulus: 2}, 0)
	w.rows--
	w.add(growChild, growRoute, 1)
	for _, group := range []uint32{growParent, growChild} {
		leader := w.leader(group)
		eventually(w, fmt.Sprintf("the replicas of group %d agree", group), func() bool {
			want := leader.fsm.State()
			_, pairs := leader.fsm.Besides()
			return pairs == growRows/2*uint64(w.rows) && !slices.ContainsFunc(w.nodes, func(n *growNode) bool { return n.of(group).fsm.State() != want })
		})
		s := leader.fsm.State()
		if s.Rows != growRows/2 {
			w.Errorf("group %d has %d rows, want %d", group, s.Rows, growRows/2)
		}
		for _, n := range w.nodes {
			mustDo(w, n.of(group).fsm.Members().Verify())
		}
	}
}

// unfinished makes the newest snapshot of a child unfinished, as if the process had died before the rename.
func (n *growNode) unfinished() {
	n.Helper()
	files, err := filepath.Glob(filepath.Join(n.child.Dir, "snapshots", "*.snap"))
	mustDo(n, err)
	if len(files) != 1 {
		n.Fatalf("snapshots %v", files)
	}
	mustDo(n, os.Rename(files[0], files[0]+".tmp"))
}

// Whenever the processes of all nodes die, the shard goes on with all its rows and members: see the table
// "Crashes" in shard/GROWTH.md.
func TestCrashesOfAGrowth(t *testing.T) {
	for name, at := range map[string]func(w *growWorld){
		"after the child begins": func(w *growWorld) {
			w.crash()
			w.split()
			w.adopt()
		},
		"after Split": func(w *growWorld) {
			w.split()
			w.crash()
			w.parked()
			w.adopt()
		},
		"after Adopt, before the snapshot of the child": func(w *growWorld) {
			w.split()
			w.adopt()
			w.add(growChild, growRoute, 1)
			w.rows--
			w.add(growParent, codec.Route{Modulus: 2}, 0)
			w.crash()
			w.born()
		},
		"before the rename of the child's snapshot": func(w *growWorld) {
			w.split()
			w.adopt()
			for _, n := range w.nodes {
				n.keepLog()
				n.crash()
				n.unfinished()
			}
			for _, n := range w.nodes {
				n.start()
			}
			w.born()
		},
		"before the snapshot of the parent": func(w *growWorld) {
			w.split()
			w.adopt()
			w.save(w.nodes...)
			w.crash()
			for _, n := range w.nodes {
				eventually(w, "the parent parks again", func() bool { return n.parking.Of(growChild) != nil })
				if n.c.Growth.Unborn() {
					w.Error("a child with a snapshot is unborn")
				}
				n.parking.Discard(n.parking.Of(growChild))
			}
		},
		"after the snapshot of the parent": func(w *growWorld) {
			w.split()
			w.adopt()
			w.save(w.nodes...)
			w.begun()
			w.crash()
			for _, n := range w.nodes {
				if n.p.Route() != (codec.Route{Modulus: 2}) || n.p.fsm.Barred() {
					w.Errorf("the parent has %s, barred %v", n.p.Route(), n.p.fsm.Barred())
				}
			}
		},
	} {
		for _, nodes := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, %d nodes", name, nodes), func(t *testing.T) {
				t.Parallel()
				w := newGrowWorld(t, nodes, storage.LogStoreDefault)
				at(w)
				w.check()
				w.save(w.nodes...)
				w.begun()
				w.crash()
				w.check()
			})
		}
	}
}

func (r *growReplica) Route() codec.Route { return r.fsm.Route() }

// parked waits until each node has its part.
func (w *growWorld) parked() {
	w.Helper()
	for _, n := range w.nodes {
		eventually(w, "the part is parked", func() bool { return n.parking.Of(growChild) != nil })
	}
}

// born waits until each replica of the child has adopted its part. It opens a replica again that has waited
// too long for the part, as the node does.
func (w *growWorld) born() {
	w.Helper()
	for _, n := range w.nodes {
		eventually(w, "the child is born", func() bool {
			if n.c.Stuck() != nil && n.parking.Of(growChild) != nil {
				n.close(n.c)
				n.c = n.open(n.child, growRoute)
			}
			return !n.c.Growth.Unborn()
		})
	}
}

// keepLog takes the first snapshot of a child without truncating its log, like a process that dies before
// the snapshot is finished.
func (n *growNode) keepLog() {
	n.Helper()
	eventually(n, "a snapshot is taken", func() bool { return n.c.raft.Snapshot().Error() == nil })
}

// A node dies before its replica of the child has a snapshot, and starts when the parent's log has no Split
// any more. The replica is stuck at Adopt, takes no snapshot, and is repaired from another.
func TestRepairBeyondSplit(t *testing.T) {
	t.Parallel()
	w := newGrowWorld(t, 3, storage.LogStoreDefault)
	w.split()
	w.adopt()
	w.elected(growParent)
	late := w.nodes[0]
	late.close(late.c)
	if late.c.Snapshots().NewestIndex() > 0 {
		t.Fatal("the late child has a snapshot")
	}
	w.begun()
	late.crash()
	late.start()
	eventually(t, "the late child is stuck", func() bool { return errors.Is(late.c.Stuck(), raftfsm.ErrNoPart) })
	if late.p.Route() != (codec.Route{Modulus: 2}) || late.parking.Of(growChild) != nil {
		t.Error("the parent has parked a part from a snapshot beyond Split")
	}
	if err := late.c.Snapshotter().Take(); !errors.Is(err, raftfsm.ErrStuck) {
		t.Errorf("a snapshot of a stuck child: %v", err)
	}
	w.repair(late, w.nodes[1])
	if late.c.Growth.Unborn() || late.c.Stuck() != nil {
		t.Error("the repair left the child unborn")
	}
	w.check()
}

// A node is off from before Split until no log has Split any more. Its replica of the parent gets a snapshot from beyond
// Split, and parks nothing. Its replica of the child, which is a first voter without rows, gets a snapshot too.
func TestSnapshotBeyondSplit(t *testing.T) {
	t.Parallel()
	w := newGrowWorld(t, 3, storage.LogStoreDefault)
	for _, n := range w.nodes {
		n.crash()
		n.parent.SnapshotBytes, n.child.SnapshotBytes = 1<<10, 1<<10 // so that snapshots leave few entries
		n.start()
	}
	w.leader(growParent)
	w.elected(growChild) // all first voters have begun
	late, all := w.nodes[0], w.nodes
	late.crash()
	w.nodes = w.nodes[1:]
	w.split()
	w.adopt()
	w.save(w.nodes...)
	w.begun()
	split := w.nodes[0].p.fsm.GrewAt()
	behind := func() bool {
		return !slices.ContainsFunc(w.nodes, func(n *growNode) bool {
			first, err := n.p.log.FirstIndex()
			return err != nil || first <= split
		})
	}
	for !behind() {
		for range 20 {
			w.add(growParent, codec.Route{Modulus: 2}, 0)
			w.rows--
			w.add(growChild, growRoute, 1)
		}
		for _, n := range w.nodes {
			mustDo(t, n.p.Snapshotter().Take())
		}
	}
	w.nodes = all
	late.start()
	eventually(t, "the late parent has split", func() bool { return late.p.Route() == (codec.Route{Modulus: 2}) })
	eventually(t, "the late child is born", func() bool { return !late.c.Growth.Unborn() })
	if late.p.Snapshots().NewestIndex() <= split || late.parking.Of(growChild) != nil || late.p.fsm.Barred() {
		t.Errorf("snapshot of entry %d, Split is %d, parked %v, barred %v", late.p.Snapshots().NewestIndex(), split, late.parking.Of(growChild) != nil, late.p.fsm.Barred())
	}
	if late.c.Stuck() != nil || late.c.Snapshots().NewestIndex() == 0 {
		t.Errorf("the late child is stuck: %v, its snapshot is of entry %d", late.c.Stuck(), late.c.Snapshots().NewestIndex())
	}
	w.check()
	w.crash()
	w.check()
}

// repair installs the snapshot of another node's child and opens the child again.
func (w *growWorld) repair(to, from *growNode) {
	w.Helper()
	nodes := new(growCalls)
	nodes.serve(w.T, from.c.Snapshotter())
	mustDo(w, to.c.Snapshotter().Receive(w.Context(), "from", codec.KindCounters, growRoute, nodes.fetch))
	to.close(to.c)
	to.c = to.open(to.child, growRoute)
}

// growCalls sends snapshots from one replica to another.
type growCalls struct{ ask *rpc.Calls }

func (c *growCalls) serve(t *testing.T, from *Snapshotter) {
	t.Helper()
	lookup := map[string]string{}
	node := func(name string) *rpc.Calls {
		m := testMux(t)
		lookup[name] = m.Addr().String()
		calls, err := rpc.NewCalls(rpc.CallsConfig{Mux: m, Lookup: func(node string) (string, bool) { addr, known := lookup[node]; return addr, known }})
		mustDo(t, err)
		t.Cleanup(calls.Close)
		return calls
	}
	sender := node("from")
	sender.HandleStream("snapshot", func(ctx context.Context, _ []byte, send func([]byte) error) error { return from.Send(ctx, 0, send) })
	sender.Serve()
	c.ask = node("to")
	c.ask.Serve()
}

func (c *growCalls) fetch(ctx context.Context, _ uint64) (*rpc.Stream, error) {
	return c.ask.Stream(ctx, "from", "snapshot", nil)
}

// Each kind of request for a snapshot of the parent fails after Split, even if the log is long. After Begun,
// each succeeds.
func TestBarOfSnapshots(t *testing.T) {
	t.Parallel()
	w := newGrowWorld(t, 3, storage.LogStoreDefault)
	for _, n := range w.nodes {
		eventually(t, "a snapshot from before Split is taken", func() bool { // raft has none to take before the first entry is applied
			return n.p.Snapshotter().Take() == nil && n.p.Snapshots().NewestIndex() > 0
		})
		n.crash()
		n.parent.SnapshotBytes = 4 << 10
		n.start()
	}
	w.split()
	splitAt := w.leader(growParent).CommittedIndex(w.leader(growParent).fsm.Applied)
	before := map[*growNode]uint64{}
	for _, n := range w.nodes {
		before[n] = n.p.Snapshots().NewestIndex()
	}
	p := w.leader(growParent)
	for p.Snapshotter().logSince() < 2*p.Snapshotter().dueBytes() {
		w.add(growParent, codec.Route{Modulus: 2}, 0)
	}
	for _, n := range w.nodes {
		s := n.p.Snapshotter()
		if err := s.Take(); !errors.Is(err, raftfsm.ErrBarred) {
			t.Errorf("a snapshot between Split and Begun: %v", err)
		}
		if _, err := s.Open(t.Context(), codec.KindCounters, codec.Whole); !errors.Is(err, raftfsm.ErrBarred) {
			t.Errorf("a backup: %v", err)
		}
		if _, _, err := s.OpenFrom(t.Context(), splitAt); !errors.Is(err, raftfsm.ErrBarred) {
			t.Errorf("a repair that needs a snapshot beyond Split: %v", err)
		}
		meta, state, err := s.OpenFrom(t.Context(), 0)
		if err != nil || meta.Index != before[n] {
			t.Fatalf("a repair that any snapshot suffices: %v", err)
		}
		_, err = io.Copy(io.Discard, state)
		mustDo(t, errors.Join(err, state.Close()))
		ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
		mustDo(t, n.p.Close(ctx, true))
		cancel()
		n.crash()
		n.start()
	}
	w.parked()
	for _, n := range w.nodes {
		if got := n.p.Snapshots().NewestIndex(); got != before[n] || !n.p.fsm.Barred() {
			t.Errorf("the newest snapshot is of entry %d, was %d; Split is %d", got, before[n], splitAt)
		}
	}
	w.adopt()
	w.save(w.nodes...)
	w.begun()
	for _, n := range w.nodes {
		mustDo(t, n.p.Snapshotter().Take())
		if n.p.Snapshots().NewestIndex() < splitAt {
			t.Error("no snapshot after Begun")
		}
	}
}

// A snapshot that was asked for before Split, and that raft takes after it, is refused.
func TestSnapshotAskedBeforeSplit(t *testing.T) {
	t.Parallel()
	w := newGrowWorld(t, 1, storage.LogStoreDefault)
	n := w.nodes[0]
	splits := false
	n.crash()
	n.parent.Room = func(uint64) (func(), error) {
		if splits {
			splits = false
			w.split()
		}
		return func() {}, nil
	}
	n.start()
	w.leader(growParent)
	splits = true
	if err := n.p.Snapshotter().Take(); !errors.Is(err, raftfsm.ErrBarred) || n.p.Snapshots().NewestIndex() > 0 {
		t.Errorf("a snapshot of entry %d: %v", n.p.Snapshots().NewestIndex(), err)
	}
}

// Until it has adopted, a child leads but is not ready, and takes no snapshot.
func TestUnbornReplica(t *testing.T) {
	t.Parallel()
	w := newGrowWorld(t, 3, storage.LogStoreDefault)
	n := w.elected(growChild)
	if err := n.c.Ready(); !errors.Is(err, errs.ErrNoLeader) || !errors.Is(err, raftfsm.ErrUnborn) {
		t.Errorf("an unborn leader: %v", err)
	}
	if err := n.c.Snapshotter().Take(); !errors.Is(err, raftfsm.ErrUnborn) {
		t.Errorf("a snapshot of an unborn child: %v", err)
	}
	if n.c.IndexWith(n.c.fsm.Applied, w.nodes[0].c.ID(), 0)|n.c.IndexWith(n.c.fsm.Applied, w.nodes[1].c.ID(), 0) > 0 {
		t.Error("an unborn leader confirms reads")
	}
	if n.c.Stuck() != nil {
		t.Error("an unborn child is stuck")
	}
}

// A leader changes no members from the proposal of Split until Begun, and then does.
func TestMembersStayWhileAShardSplits(t *testing.T) {
	t.Parallel()
	w := newGrowWorld(t, 3, storage.LogStoreDefault)
	step := func() string {
		w.Helper()
		leader := w.leader(growParent)
		var target []Member
		for _, n := range w.nodes {
			if n.p == leader || len(target) == 0 && n.p != leader {
				target = append(target, Member{n.parent.ID(), n.parent.Mux.Addr().String()})
			}
		}
		did, err := leader.MembersStep(t.Context(), target, nil, func(context.Context, raft.ServerID) (uint64, error) { return 0, nil })
		if err != nil {
			return "" // the leader was deposed
		}
		return did
	}
	w.split()
	if did := step(); did != "" {
		t.Errorf("between Split and Begun: %s", did)
	}
	w.adopt()
	w.save(w.nodes...)
	if did := step(); did != "" {
		t.Errorf("between Adopt and Begun: %s", did)
	}
	w.begun()
	eventually(t, "the members change after Begun", func() bool { return step() != "" })
}

// While a leader does not know the outcome of a Split, it changes no members and proposes no second one.
func TestMembersStayWhileASplitIsProposed(t *testing.T) {
	r, stores := newFaultyReplicas(t, 3)
	l := r.leader(t, -1)
	g := r.groups[l]
	voters, err := g.Growth.Voters()
	if err != nil || len(voters) != 3 {
		t.Fatalf("the voters are %v: %v", voters, err)
	}
	hang := make(chan struct{})
	stores[l].set(hang, nil)
	split := make(chan error, 2)
	for range 2 {
		go func() { split <- g.Growth.Propose(number(1)) }()
	}
	if err := <-split; !errors.Is(err, errBusy) {
		t.Errorf("a second Split: %v", err)
	}
	if !g.Growth.keepsMembers() {
		t.Error("the members may change")
	}
	stores[l].set(nil, nil)
	close(hang)
	<-split
	eventually(t, "the outcome is known", func() bool { return !g.Growth.keepsMembers() })
}

// A leader whose disk hangs has accepted a change of members that raft does not show yet. Voters waits for it.
func TestVotersOfAHiddenChange(t *testing.T) {
	r, stores := newFaultyReplicas(t, 3)
	l := r.leader(t, -1)
	g := r.groups[l]
	out := r.others(l)[0]
	hang := make(chan struct{})
	stores[l].set(hang, nil)
	future := g.raft.DemoteVoter(out.ID(), 0, memberTimeout)
	eventually(t, "the change waits for the disk", func() bool { return stores[l].waiting.Load() > 0 })
	if inForce := g.ConfigurationInForce(); inForce == nil || SuffrageOf(inForce.Servers, out.ID()) != raft.Voter {
		t.Fatal("raft shows the change, so this test finds nothing")
	}
	answer := make(chan []raft.ServerID, 1)
	go func() {
		voters, err := g.Growth.Voters()
		if err != nil {
			voters = nil
		}
		answer <- voters
	}()
	time.Sleep(50 * time.Millisecond) // a call that does not wait for the barrier has answered by then
	stores[l].set(nil, nil)
	close(hang)
	if voters := <-answer; slices.Contains(voters, out.ID()) {
		t.Errorf("the voters are %v, and %s loses its vote", voters, out.ID())
	}
	_ = future.Error()
}

// The first snapshot of a child truncates the log through Adopt. So a new member gets the snapshot, although no
// part is on its node. The log keeps its last entry, and the replica starts again from both.
func TestFirstSnapshotCutsAdopt(t *testing.T) { eachStore(t, testFirstSnapshotCutsAdopt) }

func testFirstSnapshotCutsAdopt(t *testing.T, store storage.LogStore) {
	t.Parallel()
	w := newGrowWorld(t, 1, store)
	w.split()
	w.adopt()
	n := w.nodes[0]
	adopt := n.c.fsm.AdoptedAt()
	w.save(n)
	eventually(t, "the log begins behind Adopt", func() bool { // raft truncates it after the snapshot
		first, err := n.c.log.FirstIndex()
		return err == nil && first > adopt
	})

	late := &growNode{T: t, setsDir: t.TempDir(), child: n.child}
	late.parent = testConfig(t, testMux(t), "late")
	late.child = late.parent
	late.child.Group, late.child.Dir, late.child.LogStore = growChild, t.TempDir(), store
	late.start()
	mustDo(t, n.c.raft.AddNonvoter(late.child.ID(), raft.ServerAddress(late.child.Mux.Addr().String()), 0, memberTimeout).Error())
	eventually(t, "the new member is born", func() bool { return !late.c.Growth.Unborn() })
	if late.c.Stuck() != nil || late.c.Snapshots().NewestIndex() == 0 {
		t.Error("the new member got no snapshot")
	}
	mustDo(t, n.c.raft.RemoveServer(late.child.ID(), 0, memberTimeout).Error())
	late.crash()
	w.crash()
	w.check()
}

// A replica is settled once no snapshot from before its last Split or Adopt is on its disk. Without writes, it
// takes the snapshots that are missing.
func TestSettledAfterAGrowth(t *testing.T) {
	w := newGrowWorld(t, 1, storage.LogStoreShared)
	n := w.nodes[0]
	settled := func(r *growReplica, first codec.Route) error {
		return r.Growth.Settled(codec.KindCounters, first, r.fsm.Route())
	}
	if err := settled(n.p, codec.Whole); !errors.Is(err, ErrKeepsOlder) {
		t.Errorf("a replica without a snapshot: %v", err)
	}
	for range 2 {
		mustDo(t, n.p.Snapshotter().Take())
		mustDo(t, settled(n.p, codec.Whole))
		w.add(growParent, codec.Whole, 0)
	}
	w.split()
	w.adopt()
	if err := settled(n.p, codec.Whole); !errors.Is(err, ErrKeepsOlder) {
		t.Errorf("a parent that has split: %v", err)
	}
	if err := settled(n.c, growRoute); !errors.Is(err, ErrKeepsOlder) {
		t.Errorf("a child without a snapshot: %v", err)
	}
	w.save(n)
	mustDo(t, settled(n.c, growRoute))
	w.begun()
	eventually(t, "the parent is settled", func() bool { return settled(n.p, codec.Whole) == nil })
	w.check()
	w.crash()
	mustDo(t, settled(n.p, codec.Whole))
	mustDo(t, settled(n.c, growRoute))
}

// A snapshot that only a growth makes due, and that cannot be taken, is tried less and less often.
func TestSnapshotOfAGrowthIsTriedLessOften(t *testing.T) {
	t.Parallel()
	w := newGrowWorld(t, 1, storage.LogStoreDefault)
	n := w.nodes[0]
	n.crash()
	var tries atomic.Int64
	n.parent.Room = func(uint64) (func(), error) {
		tries.Add(1)
		return nil, ErrNoRoom
	}
	n.start()
	w.split()
	p := w.leader(growParent)
	until := time.Now().Add(5 * snapshotRetryDelay)
	for time.Now().Before(until) {
		p.Growth.Begun(growAttempt) // as each reconcile does
		time.Sleep(snapshotRetryDelay / 10)
	}
	if n := tries.Load(); n == 0 || n > 4 {
		t.Errorf("%d tries in 5 times the first pause", n)
	}
}

// A snapshot that a growth makes due is taken soon after the disk has room again. The first one of a part also is
// after other failures.
func TestPausesBetweenSnapshotsOfAGrowth(t *testing.T) {
	t.Parallel()
	other := errors.New("an error of the disk")
	last := func(p *retryPause, err error, awaited bool) (pause time.Duration) {
		for range 10 {
			pause = p.after(err, awaited)
		}
		return pause
	}
	for name, c := range map[string]struct {
		err     error
		awaited bool
		want    time.Duration
	}{
		"the disk is full":                   {fmt.Errorf("group 7: %w", ErrNoRoom), false, growthSoonMax},
		"the first of a part on a full disk": {ErrNoRoom, true, growthSoonMax},
		"the first of a part":                {other, true, growthSoonMax},
		"another failure":                    {other, false, growthRetryMax},
		"old snapshots stay":                 {nil, false, growthRetryMax},
	} {
		var p retryPause
		if first := p.after(c.err, c.awaited); first != snapshotRetryDelay {
			t.Errorf("%s: the first pause is %s", name, first)
		}
		if got := last(&p, c.err, c.awaited); got != c.want {
			t.Errorf("%s: the pause grows to %s, want %s", name, got, c.want)
		}
		if got := p.after(nil, c.awaited); c.err != nil && got != snapshotRetryDelay {
			t.Errorf("%s: the pause after a success is %s", name, got)
		}
	}
	var p retryPause
	last(&p, other, false)
	if got := p.after(ErrNoRoom, false); got != growthSoonMax {
		t.Errorf("once the disk is full, the pause is %s", got)
	}
}
