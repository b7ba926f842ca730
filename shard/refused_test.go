package shard

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
)

func fullRow(id uint64) engine.Op {
	return engine.Op{ID: id, Kind: engine.OpSet, Cells: []engine.Cell{{Column: 0, Value: math.MaxInt64}}}
}

// A producer repeats a refused number with a delete in front of the refused op. It gets the answer
// of a repeat: only the op with cells is reported as refused, because a delete cannot overflow.
func TestRefusedNumberRepeatedWithADelete(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ks := n.Keyspace("posts")
	mustWrite(t, n, ks, fullRow(7))
	send := func(ops ...engine.Op) *Write {
		w := &Write{Ops: counters.Ops(ops), ID: dedup.ByProducer([]byte("p"), 1), Width: 4, Rows: make([]int64, 4*len(ops)), Deadline: soon()}
		mustDo(t, n.Write(ks, w))
		return w
	}
	if w := send(addTo(7, 0, 1)); len(w.Overflows) != 1 || w.Duplicate {
		t.Errorf("first: %+v", w)
	}
	w := send(engine.Op{ID: 7, Kind: engine.OpDelete}, addTo(7, 0, 1))
	if !w.Duplicate || len(w.Overflows) != 1 || w.Overflows[0].Op != 1 || w.Rows[0] != math.MaxInt64 {
		t.Errorf("repeat: %+v", w)
	}
}

// A repeat of a write with overflows reports, for each shard, what the shard still remembers:
// nothing if only some of its ops overflowed.
func TestPartlyRefusedWritesRepeated(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 4)
	ks := keyspaces[3]
	mustWrite(t, n, ks, fullRow(0), fullRow(1))
	ids := []uint64{0, 3, 1, 4, 2, 4} // shard 0 refuses some ops, shard 1 all, shards 2 and 3 none
	for name, id := range map[string]dedup.RequestID{"key": dedup.ByKey([]byte("k")), "producer": dedup.ByProducer([]byte("p"), 1)} {
		for round := range 3 {
			w := &Write{ID: id, Width: 4, Rows: make([]int64, 4*len(ids)), Deadline: soon()}
			for _, id := range ids {
				w.Ops = append(rowOps(w), addTo(id, 0, 1))
			}
			mustDo(t, n.Write(ks, w))
			refused, unknown := []int{0, 2}, []int(nil)
			if round > 0 {
				refused, unknown = []int{2}, []int{0, 3, 5}
			}
			got := []int{}
			for _, o := range w.Overflows {
				got = append(got, o.Op)
			}
			if w.Duplicate != (round > 0) || !slices.Equal(got, refused) || !slices.Equal(w.Unknown, unknown) {
				t.Errorf("%s, round %d: duplicate %v, refused %v, unknown %v", name, round, w.Duplicate, got, w.Unknown)
			}
			if w.Rows[0] != math.MaxInt64 || round > 0 && w.Rows[4*3] != w.Rows[4*5] {
				t.Errorf("%s, round %d: rows %v", name, round, w.Rows)
			}
		}
	}
}

// If a repeated write was refused in part, only ops that add something are unknown: a read, a set,
// a take and a delete cannot have overflowed.
func TestOpsThatCannotOverflowAreKnownWhenRepeated(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1})
	ks := n.Keyspace("posts")
	mustWrite(t, n, ks, fullRow(0))
	of := func(kind engine.OpKind, id uint64, cells ...engine.Cell) engine.Op {
		return engine.Op{ID: id, Kind: kind, Cells: cells}
	}
	for name, id := range map[string]dedup.RequestID{"key": dedup.ByKey([]byte("k")), "producer": dedup.ByProducer([]byte("p"), 1)} {
		for round := range 3 {
			w := &Write{ID: id, Width: 4, Rows: make([]int64, 4*6), Deadline: soon(), Ops: counters.Ops{
				addTo(0, 0, 1),
				of(engine.OpAdd, 0, engine.Cell{}, engine.Cell{Column: 2}),
				of(engine.OpSet, 1, engine.Cell{Value: 9}),
				of(engine.OpDelete, 2),
				addTo(3, 0, 1),
				of(engine.OpAdd, 0, engine.Cell{Column: 1}, engine.Cell{Value: 1}),
			}}
			mustDo(t, n.Write(ks, w))
			unknown := []int(nil)
			if round > 0 {
				unknown = []int{0, 4, 5}
			}
			if w.Duplicate != (round > 0) || !slices.Equal(w.Unknown, unknown) {
				t.Errorf("%s, round %d: duplicate %v, unknown %v, want %v", name, round, w.Duplicate, w.Unknown, unknown)
			}
		}
	}
	// The first request is refused completely. The second request has the same number, but
	// different ops.
	send := func(ops ...engine.Op) *Write {
		w := &Write{Ops: counters.Ops(ops), ID: dedup.ByProducer([]byte("q"), 1), Deadline: soon()}
		mustDo(t, n.Write(ks, w))
		return w
	}
	send(addTo(0, 0, 1))
	w := send(of(engine.OpAdd, 0, engine.Cell{Column: 1}), of(engine.OpAdd, 0, engine.Cell{Column: 1}, engine.Cell{Value: 1}))
	if len(w.Overflows) != 1 || w.Overflows[0] != (engine.Overflow{Op: 1}) {
		t.Errorf("refused: %+v", w.Overflows)
	}
}

// A PartialError does not name ops that overflowed as applied, neither for the first write nor for
// its repeat.
func TestRefusedOpsAreNotNamedApplied(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 4)
	ks := keyspaces[3]
	hinder(n, ks, 1, heldGroup{err: raft.ErrNotLeader})
	mustWrite(t, n, ks, fullRow(0), fullRow(2))
	var all sync.WaitGroup
	for _, test := range []struct {
		name    string
		ids     []uint64
		applied []uint64
		unknown []uint64 // for a repeat: the ops of unknown outcome; if not nil, no op is reported as applied
	}{
		{"one of a shard", []uint64{0, 1, 4}, []uint64{4}, []uint64{0, 4}},
		{"one of each shard", []uint64{0, 4, 2, 1, 6}, []uint64{4, 6}, []uint64{0, 4, 2, 6}},
		{"all of a shard", []uint64{0, 1, 6}, []uint64{6}, nil},
		{"all", []uint64{0, 1, 2}, nil, nil},
	} {
		check := func(t *testing.T) {
			id := dedup.ByKey([]byte(test.name))
			for id.Shard(4) == 1 { // the shard without a leader must not judge the key
				test.name += "'"
				id = dedup.ByKey([]byte(test.name))
			}
			for round := range 2 {
				w := &Write{ID: id, Deadline: time.Now().Add(hinderedMax)}
				for _, id := range test.ids {
					w.Ops = append(rowOps(w), addTo(id, 0, 1))
				}
				err := n.Write(ks, w)
				applied, unknown := test.applied, []uint64(nil)
				if round > 0 && test.unknown != nil {
					applied, unknown = nil, test.unknown
				}
				partial := &PartialError{}
				if !errors.Is(err, errs.ErrNoLeader) || errors.As(err, &partial) != (applied != nil || unknown != nil) {
					t.Fatalf("told %v", err)
				}
				if !slices.Equal(partial.Applied, applied) || !slices.Equal(partial.Unknown, unknown) {
					t.Errorf("round %d: applied %v, unknown %v, want %v and %v", round, partial.Applied, partial.Unknown, applied, unknown)
				}
			}
		}
		all.Go(func() { t.Run(test.name, check) }) // concurrently, because each mostly waits
	}
	all.Wait()
}

// Each outcome of a part can be sent to another node. The receiver refuses other values.
func TestOutcomesTravel(t *testing.T) {
	t.Parallel()
	settled := func(outcome dedup.Outcome) *propose.Proposal {
		q := propose.Settled(nil)
		q.Ops, q.Result = 1, raftfsm.NewResult(7, 0, nil, nil, outcome)
		return q
	}
	for outcome := dedup.Applied; outcome <= dedup.Misrouted; outcome++ {
		r := wire.Reader{Rest: propose.AppendOutcome(nil, settled(outcome), nil)}
		if q := propose.ParseOutcome(&r, 0); r.End() != nil || q.Outcome() != outcome || q.Result.Index != 7 {
			t.Errorf("outcome %d: %+v, %v", outcome, q.Result, r.Err)
		}
	}
	r := wire.Reader{Rest: propose.AppendOutcome(nil, settled(dedup.Misrouted+1), nil)}
	if propose.ParseOutcome(&r, 0); r.End() == nil {
		t.Error("an outcome that there is none is taken")
	}
}
