package kinds

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
)

const (
	growParent = 5 // group of the shard that grows
	growChild  = 6
)

// growing is a shard of counters that splits into two, and the second part, on one node.
type growing struct {
	testing.TB
	parking       *raftfsm.Parking
	parent, child raftfsm.Machine
}

func newGrowing(t testing.TB) *growing {
	g := &growing{TB: t, parking: new(raftfsm.Parking)}
	g.parent, g.child = g.machine(codec.Whole, false), g.machine(codec.Route{Modulus: 2, Residue: 1}, true)
	for key := range uint64(100) {
		g.must(g.parent, g.add(codec.Whole, key))
	}
	return g
}

func (g *growing) machine(route codec.Route, unborn bool) raftfsm.Machine {
	m := All.New(codec.KindCounters, raftfsm.Places{})
	m.SetRoute(route)
	m.SetGrowth(raftfsm.Growth{
		Parking: g.parking, Unborn: unborn,
		NewPart: func() raftfsm.Machine { return All.New(codec.KindCounters, raftfsm.Places{}) },
	})
	g.Cleanup(m.Close)
	return m
}

func (g *growing) add(route codec.Route, key uint64) []byte {
	var w raftfsm.RequestWriter
	w.Reset(nil, route, &dedup.RequestID{})
	counters.Ops{{ID: key, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1 + int64(key)}}}}.AppendTo(&w, key, 0)
	return codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindCounters, 1), w.Section()...))
}

func (g *growing) must(m raftfsm.Machine, entry []byte) {
	g.Helper()
	if err, failed := m.Apply(rafttest.Next(m, entry)).(error); failed {
		g.Fatal(err)
	}
}

func (g *growing) refuses(m raftfsm.Machine, entry []byte, want error) {
	g.Helper()
	before := m.Applied()
	err, _ := m.Apply(rafttest.Next(m, entry)).(error)
	if !errors.Is(err, want) || m.Applied() != before+1 {
		g.Fatalf("%v at %d after %d, want %v", err, m.Applied(), before, want)
	}
}

func (g *growing) split() []byte {
	e := raftfsm.SplitEntry{From: codec.Whole, Attempt: 3, Group: growParent, Divisor: 1, Children: []uint32{growChild}}
	return e.Entry(codec.KindCounters)
}

// adopt returns the entry by which the child adopts what is parked.
func (g *growing) adopt() []byte {
	g.Helper()
	part := g.parking.Of(growChild)
	if part == nil {
		g.Fatal("no part is parked")
	}
	return part.Entry(codec.KindCounters)
}

func snapshotOf(m raftfsm.Machine) error {
	s, err := m.Snapshot()
	if err == nil {
		s.Release()
	}
	return err
}

// Split and Adopt move the rows of the other part:
//
//  1. The parts have the rows of the parent, each where the route says.
//  2. From Split until Begun, the parent takes no snapshot. It does before and after.
//  3. Until Adopt, the child refuses sections and reads, and takes no snapshot.
//  4. A second Adopt and a second Split change nothing.
func TestSplitAndAdopt(t *testing.T) {
	t.Parallel()
	g := newGrowing(t)
	before := g.parent.State()
	must.Do(t, snapshotOf(g.parent))
	if err := snapshotOf(g.child); !errors.Is(err, raftfsm.ErrUnborn) || !errors.Is(err, raftfsm.ErrNotNow) {
		t.Errorf("a snapshot of an unborn shard: %v", err)
	}
	if g.child.Routed(g.child.Route()) || !g.child.Unborn() {
		t.Error("an unborn shard answers reads")
	}
	r := g.child.Apply(rafttest.Next(g.child, g.add(g.child.Route(), 1))).(*raftfsm.Result)
	if r.Outcome(0) != dedup.Misrouted || r.Modulus != 0 || g.child.State().Rows != 0 {
		t.Errorf("an unborn shard answers %v, modulus %d", r.Outcome(0), r.Modulus)
	}

	late := raftfsm.SplitEntry{From: codec.Whole, Attempt: 3, Term: 1, Group: growParent, Divisor: 1, Children: []uint32{growChild}}
	g.refuses(g.parent, late.Entry(codec.KindCounters), raftfsm.ErrLate)
	g.must(g.parent, g.split())
	if !g.parent.Barred() || g.parent.GrewAt() != 0 {
		t.Error("the parent is not barred")
	}
	if err := snapshotOf(g.parent); !errors.Is(err, raftfsm.ErrBarred) || !errors.Is(err, raftfsm.ErrNotNow) {
		t.Errorf("a snapshot of a parent: %v", err)
	}
	adopt := g.adopt()
	g.must(g.child, adopt)
	if g.parking.Of(growChild) != nil || g.child.Unborn() || !g.child.Routed(codec.Route{Modulus: 2, Residue: 1}) || g.child.AdoptedAt() != g.child.Applied() || g.child.GrewAt() != g.child.Applied() {
		t.Error("the child has not adopted the part")
	}
	p, c := g.parent.State(), g.child.State()
	if p.Rows != 50 || c.Rows != 50 || p.Digest+c.Digest != before.Digest {
		t.Errorf("%+v and %+v, before %+v", p, c, before)
	}
	must.Do(t, snapshotOf(g.child))
	g.must(g.child, g.add(g.child.Route(), 1))
	after := g.child.State()
	g.must(g.child, adopt)
	g.refuses(g.parent, g.split(), raftfsm.ErrVoid)
	if again := g.child.State(); again.Digest != after.Digest {
		t.Errorf("a second Adopt changed %+v into %+v", after, again)
	}

	g.parent.Begun(2)
	if !g.parent.Barred() {
		t.Error("an earlier attempt has begun, and the parent is not barred")
	}
	g.parent.Begun(3)
	g.parent.Begun(2)
	must.Do(t, snapshotOf(g.parent))
	if at := g.parent.Applied() - 1; g.parent.GrewAt() != at { // the void Split follows
		t.Errorf("grew at %d, want %d", g.parent.GrewAt(), at)
	}
}

// Of Split and Abandon of an attempt, the first one counts.
func TestAbandonedSplit(t *testing.T) {
	t.Parallel()
	abandon := raftfsm.AbandonEntry{From: codec.Whole, Attempt: 3}
	g := newGrowing(t)
	g.must(g.parent, abandon.Entry(codec.KindCounters))
	before := g.parent.State()
	g.refuses(g.parent, g.split(), raftfsm.ErrVoid)
	if after := g.parent.State(); after.Digest != before.Digest || g.parent.Barred() || g.parking.Of(growChild) != nil {
		t.Error("an abandoned attempt has an effect")
	}
	g = newGrowing(t)
	g.must(g.parent, g.split())
	g.refuses(g.parent, abandon.Entry(codec.KindCounters), raftfsm.ErrVoid)
}

// If Begun is known before Split is replayed, the parent is not barred.
func TestBegunBeforeTheReplay(t *testing.T) {
	t.Parallel()
	g := newGrowing(t)
	g.parent.Begun(3)
	g.must(g.parent, g.split())
	must.Do(t, snapshotOf(g.parent))
}

// A snapshot from before Split bars again once Split is replayed, and a snapshot makes a child born.
func TestRestoreWhileGrowing(t *testing.T) {
	t.Parallel()
	g := newGrowing(t)
	before := rafttest.Persisted(t, g.parent)
	g.must(g.parent, g.split())
	must.Do(t, rafttest.Restore(g.parent, before))
	if g.parent.Barred() || g.parent.Route() != codec.Whole {
		t.Error("the state from before Split is barred")
	}
	g.must(g.parent, g.split())
	if !g.parent.Barred() {
		t.Error("no bar after the replay")
	}
	g.must(g.child, g.adopt())
	saved := rafttest.Persisted(t, g.child)
	again := g.machine(g.child.Route(), true)
	must.Do(t, rafttest.Restore(again, saved))
	if again.Unborn() || !again.Routed(g.child.Route()) || again.AdoptedAt() != 0 {
		t.Error("a snapshot left the child unborn")
	}
	if !bytes.Equal(rafttest.Persisted(t, again), saved) {
		t.Error("the snapshots differ")
	}
}

// A replica that applies Adopt waits for its part. Without the part it becomes stuck, and takes no snapshot.
func TestAdoptWaitsForItsPart(t *testing.T) {
	t.Parallel()
	g := newGrowing(t)
	g.must(g.parent, g.split())
	part := g.parking.Of(growChild)
	adopt := g.adopt()
	g.parking.Discard(part)

	stuck := g.machine(g.child.Route(), true)
	began := time.Now()
	err, _ := stuck.Apply(rafttest.Next(stuck, adopt)).(error)
	if waited := time.Since(began); !errors.Is(err, raftfsm.ErrStuck) || !errors.Is(err, raftfsm.ErrNoPart) || waited < time.Second || waited > 2500*time.Millisecond {
		t.Errorf("%v after %v", err, waited)
	}
	if err := snapshotOf(stuck); !errors.Is(err, raftfsm.ErrStuck) || !stuck.Unborn() {
		t.Errorf("a snapshot of a stuck child: %v", err)
	}

	done := make(chan any)
	go func() { done <- g.child.Apply(rafttest.Next(g.child, adopt)) }()
	before := rafttest.Persisted(t, func() raftfsm.Machine { // the parent is opened again, and parks
		m := g.machine(codec.Whole, false)
		for key := range uint64(100) {
			g.must(m, g.add(codec.Whole, key))
		}
		return m
	}())
	again := g.machine(codec.Whole, false)
	must.Do(t, rafttest.Restore(again, before))
	g.must(again, g.split())
	if answer := <-done; answer != nil || g.child.Unborn() {
		t.Errorf("adopted with %v", answer)
	}
}

// A part that differs from the leader's makes the replica stuck at once.
func TestAdoptRefusesAnotherPart(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(e *raftfsm.AdoptEntry){
		"another digest":         func(e *raftfsm.AdoptEntry) { e.Digest++ },
		"another number of rows": func(e *raftfsm.AdoptEntry) { e.Rows++ },
	} {
		g := newGrowing(t)
		g.must(g.parent, g.split())
		e := g.parking.Of(growChild).AdoptEntry
		change(&e)
		err, _ := g.child.Apply(rafttest.Next(g.child, e.Entry(codec.KindCounters))).(error)
		if !errors.Is(err, raftfsm.ErrStuck) || !errors.Is(err, raftfsm.ErrOtherPart) || !g.child.Unborn() {
			t.Errorf("%s: %v", name, err)
		}
		if g.parking.Of(growChild) != nil {
			t.Errorf("%s: the part is still parked, so the next replica takes it again", name)
		}
	}
}

// A replica that was opened without a place for parts stops at the entry, like an older program.
func TestSplitWithoutParking(t *testing.T) {
	t.Parallel()
	m := All.New(codec.KindCounters, raftfsm.Places{})
	defer m.Close()
	e := raftfsm.SplitEntry{From: codec.Whole, Attempt: 3, Group: growParent, Divisor: 1, Children: []uint32{growChild}}
	defer func() {
		if _, is := recover().(*codec.EntryError); !is {
			t.Error("the entry was applied")
		}
	}()
	m.Apply(&raft.Log{Index: 1, Type: raft.LogCommand, Data: e.Entry(codec.KindCounters)})
}

// A shard that is too large or is being restored does not split.
func TestCheckSplit(t *testing.T) {
	t.Parallel()
	g := newGrowing(t)
	must.Do(t, raftfsm.CheckSplit(g.parent, raftfsm.Partition{}))
	closed := func(number uint64, closed bool) []byte {
		var w raftfsm.RequestWriter
		id := dedup.ByRestorePositions(number, dedup.RestoredPositions{Closed: closed})
		w.Reset(nil, codec.Whole, &id)
		clock := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 0), time.Now(), testLimits)
		return codec.AppendChecksum(append(clock, w.Section()...))
	}
	g.must(g.parent, closed(1, true))
	if err := raftfsm.CheckSplit(g.parent, raftfsm.Partition{}); !errors.Is(err, raftfsm.ErrRestoring) {
		t.Errorf("while it is restored: %v", err)
	}
	g.must(g.parent, closed(2, false))
	must.Do(t, raftfsm.CheckSplit(g.parent, raftfsm.Partition{}))
	for first := uint64(0); first <= raftfsm.SplitRowsMax; first += 100_000 {
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &dedup.RequestID{})
		for key := first; key < min(first+100_000, raftfsm.SplitRowsMax+1); key++ {
			counters.Ops{{ID: key, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}}.AppendTo(&w, key, 0)
		}
		g.must(g.parent, codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindCounters, 0), w.Section()...)))
	}
	if err := raftfsm.CheckSplit(g.parent, raftfsm.Partition{}); err != nil {
		t.Errorf("with %d rows in memory: %v", g.parent.State().Rows, err)
	}
	by := raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 2}
	must.Do(t, raftfsm.CheckSplit(g.parent, by))
	other := by
	other.Parts = 3
	partOtherwise := func() {
		t.Helper()
		if more, err := g.parent.Part(other); !more || err != nil {
			t.Fatal(more, err)
		}
		if err := raftfsm.CheckSplit(g.parent, by); !errors.Is(err, raftfsm.ErrTooLarge) || !errors.Is(err, engine.ErrParted) {
			t.Errorf("parted in another way: %v", err)
		}
	}
	before := rafttest.Persisted(t, g.parent)
	partOtherwise()
	must.Do(t, raftfsm.CheckSplit(g.parent, other))
	rows := g.parent.State().Rows
	err, _ := g.parent.Apply(rafttest.Next(g.parent, g.split())).(error)
	if !errors.Is(err, raftfsm.ErrStuck) || !errors.Is(err, raftfsm.ErrTooLarge) || g.parking.Of(growChild) != nil {
		t.Errorf("a replica copies %d rows: %v", rows, err)
	}
	must.Do(t, rafttest.Restore(g.parent, before)) // as when it is opened again
	g.must(g.parent, g.split())
	if part := g.parking.Of(growChild); part == nil || part.Rows+g.parent.State().Rows != rows {
		t.Errorf("the parts of %d rows: %+v", rows, part)
	}
}
