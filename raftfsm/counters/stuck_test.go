package counters

import (
	"errors"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
)

// frozenReplica returns a replica most of whose rows are cold.
func frozenReplica(t *testing.T, name string) *coldReplica {
	t.Helper()
	r := newColdReplica(t, name)
	var ops []engine.Op
	for i := range uint64(25_000) {
		ops = append(ops, add(i<<20, 0, int64(i%500)+1))
	}
	r.fsm.Apply(rafttest.Command(1, entryOf(0, ops)))
	r.freeze()
	if r.froze < 10_000 {
		t.Fatalf("%d rows are cold", r.froze)
	}
	r.snapshot()
	return r
}

// mustBeStuck checks that a replica is stuck (see raftfsm.ErrStuck).
func mustBeStuck(t *testing.T, c *Machine, applied uint64) {
	t.Helper()
	if err := c.Stuck(); !errors.Is(err, raftfsm.ErrStuck) || !errors.Is(err, cold.ErrDamaged) {
		t.Errorf("it is stuck: %v", err)
	}
	if _, err := c.Snapshot(); !errors.Is(err, raftfsm.ErrStuck) {
		t.Errorf("a snapshot: %v", err)
	}
	next := applied + 100
	answers := c.ApplyBatch([]*raft.Log{
		{Index: next, Type: raft.LogConfiguration},
		rafttest.Command(next+1, entryOf(0, []engine.Op{add(1<<60, 0, 1)})),
	})
	for i, answer := range answers {
		if err, ok := answer.(error); !ok || !errors.Is(err, raftfsm.ErrStuck) {
			t.Errorf("answer %d is %v", i, answer)
		}
	}
	if got := c.Applied(); got != applied {
		t.Errorf("%d entries are applied, want %d", got, applied)
	}
}

// If a replica cannot read a row that an entry needs, it applies neither that entry nor any later
// one. Once it has restored another replica's snapshot, it applies entries again.
func TestUnreadRowsStopAReplica(t *testing.T) {
	a, b := frozenReplica(t, "a"), frozenReplica(t, "b")
	log := []*raft.Log{
		rafttest.Command(2, entryOf(1, []engine.Op{add(24_999<<20, 0, 1)})), // only rows in memory
		rafttest.Command(3, entryOf(1, []engine.Op{add(24_998<<20, 0, 1), add(5<<20, 0, 7)})),
		rafttest.Command(4, entryOf(1, []engine.Op{add(6<<20, 0, 1)})),
	}
	a.must(a.store.Erase(1))
	a.fsm.Apply(log[0])
	digest := a.fsm.State().Digest
	if err, ok := a.fsm.Apply(log[1]).(error); !ok || !errors.Is(err, raftfsm.ErrStuck) {
		t.Fatalf("it answers %v", err)
	}
	mustBeStuck(t, a.fsm, 2)
	if got := a.fsm.State(); got.Digest != digest {
		t.Errorf("half of an entry is applied: %+v", got)
	}
	for _, entry := range log[:2] {
		b.fsm.Apply(entry)
	}
	b.snapshot()
	a.must(rafttest.Restore(a.fsm, b.carried()))
	got, want := a.fsm.Apply(log[2]).(*raftfsm.Result), b.fsm.Apply(log[2]).(*raftfsm.Result)
	if !slices.Equal(got.Rows, want.Rows) || a.fsm.State().Digest != b.fsm.State().Digest || a.fsm.Stuck() != nil {
		t.Errorf("%v, %+v; want %v, %+v: %v", got.Rows, a.fsm.State(), want.Rows, b.fsm.State(), a.fsm.Stuck())
	}
}

// After a replica was closed and its data dropped, FreezeSome and Watch write nothing.
func TestClosedReplicaKeepsNothing(t *testing.T) {
	a := frozenReplica(t, "a")
	var ops []engine.Op
	for i := range uint64(2_000) {
		ops = append(ops, add(i<<20, 0, 1))
	}
	a.fsm.Apply(rafttest.Command(2, entryOf(0, ops)))
	old := func(uint64, uint64) bool { return true }
	a.fsm.Watch(old, true)
	idle := a.fsm.Watch(old, true)
	if idle.Segments() == 0 {
		t.Fatal("nothing has changed")
	}
	a.fsm.Close()
	a.fsm.Close()
	a.must(a.store.Erase(1))
	if rows, err := a.fsm.FreezeSome(idle, 1); rows != 0 || err != nil {
		t.Errorf("%d rows were written: %v", rows, err)
	}
	if rows, err := freezeAll(a.fsm, old); rows != 0 || err != nil {
		t.Errorf("%d rows were written: %v", rows, err)
	}
	a.fsm = New(raftfsm.Places{}) // the check at the end of the test needs a table that it can read
}
