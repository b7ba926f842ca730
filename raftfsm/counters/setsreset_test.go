package counters

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// A restore of a snapshot without sets removes all sets on disk. So such a snapshot, with the log
// after it, repairs a replica whose sets are damaged.
func TestSnapshotWithoutSets(t *testing.T) {
	entryOf := func(op engine.Op) []byte {
		var req raftfsm.RequestWriter
		req.Reset(nil, codec.Whole, &dedup.RequestID{})
		Ops{op}.AppendTo(&req, op.ID, 0)
		data := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 1), time.UnixMilli(20_000*(24*time.Hour).Milliseconds()), testLimits)
		return codec.AppendChecksum(append(data, req.Section()...))
	}
	store, err := members.Open(members.Config{Dir: t.TempDir(), MemoryBytes: members.MemoryBytesMin, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { panic(err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	sets, err := store.Group(3)
	if err != nil {
		t.Fatal(err)
	}
	fsm := New(raftfsm.Places{Members: sets})
	defer fsm.Close()
	fsm.Apply(rafttest.Command(1, entryOf(engine.Op{ID: 1, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 5}}})))
	snapshot := rafttest.Persisted(t, fsm)

	damage, err := sets.Begin(members.State{}, 2, 0) // an entry that is not in the log
	if err != nil {
		t.Fatal(err)
	}
	damage.Touch(members.Pair{Row: 1, Member: 7})
	if err := damage.Read(); err != nil {
		t.Fatal(err)
	}
	damage.Join(members.Pair{Row: 1, Member: 7}, 0)
	if _, err := damage.Commit(); err != nil {
		t.Fatal(err)
	}

	if err := errors.Join(rafttest.Restore(fsm, snapshot), fsm.Stuck()); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{5, 6} { // member 8 leaves, member 7 joins
		op := [...]engine.Op{engine.Leave(1, 0, 8), engine.Join(1, 0, 7)}[i]
		r, ok := fsm.Apply(rafttest.Command(uint64(2+i), entryOf(op))).(*raftfsm.Result)
		if !ok {
			t.Fatal(fsm.Stuck())
		}
		if !slices.Equal(r.Rows, []int64{want}) || len(r.Changed) != i {
			t.Errorf("entry %d: %+v, want a count of %d", 2+i, r, want)
		}
	}
	if err := sets.Verify(); err != nil || sets.State().Pairs != 1 {
		t.Errorf("%+v, %v", sets.State(), err)
	}
}
