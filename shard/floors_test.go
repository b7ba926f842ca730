package shard

import (
	"slices"
	"testing"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/propose"
)

func floored(id uint64, column uint8, delta, floor int64) engine.Op {
	return engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: engine.FloorMark | column, Value: floor}, {Column: column, Value: delta}}}
}

// Through whichever node a write comes:
//
//  1. a count stops at the higher one of the floors of its op and its column;
//  2. the cuts of all shards name their ops by index in the request;
//  3. a repeat has the present counts and no cuts.
func TestFloorsThroughAnyNode(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	ks, err := all[0].CreateKeyspace(t.Context(), Keyspace{Name: "badges", Columns: []string{"a", "b"}, Shards: 3, Settings: column.Settings[int64]{Floors: map[string]int64{"b": 0}}})
	mustDo(t, err)
	if ks.Floors["b"] != 0 || len(ks.Floors) != 1 {
		t.Fatalf("made %+v", ks)
	}
	exact := 0
	for i, n := range all {
		eventually(t, "the node knows the keyspace", func() bool { return n.Keyspace("badges") != nil })
		at := n.Keyspace("badges")
		base := uint64(100 * i)
		write := func() *Write {
			w := &Write{ID: dedup.ByKey([]byte{byte('k' + i)}, []byte("body")), Width: 2, Deadline: soon(), Ops: counters.Ops{
				addTo(base+5, 1, 3), floored(base+4, 0, -1, 0), addTo(base+5, 1, -7), addTo(base+6, 0, -2), floored(base+6, 1, 1, 0), floored(base+4, 0, 2, 9),
			}}
			w.Rows = make([]int64, 2*len(rowOps(w)))
			mustDo(t, n.Write(at, w))
			return w
		}
		w := write()
		if w.Duplicate { // a part was proposed again, because its answer was lost
			continue
		}
		exact++
		if want := []int64{0, 3, 0, 0, 0, 0, -2, 0, -2, 1, 2, 0}; !slices.Equal(w.Rows, want) {
			t.Errorf("node %d: rows %v, want %v", i, w.Rows, want)
		}
		if want := []engine.Cut{{Op: 1, Column: 0, Added: 0}, {Op: 2, Column: 1, Added: -3}}; !slices.Equal(w.Cuts, want) {
			t.Errorf("node %d: cuts %v, want %v", i, w.Cuts, want)
		}
		if w = write(); !w.Duplicate || len(w.Cuts) > 0 || w.Rows[2] != 2 || w.Rows[1] != 0 {
			t.Errorf("node %d: a repeat has %v, cuts %v, duplicate %v", i, w.Rows, w.Cuts, w.Duplicate)
		}
	}
	if exact == 0 {
		t.Error("every write was told as a repeat")
	}
	eventually(t, "replicas hold the same", func() bool { return digestsAgree(all) })
}

// In a new cluster, every column of unread numbers has the floor 0, and so has an added column.
func TestUnreadHasFloors(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), nil)
	ks := n.Keyspace(kinds.KeyspaceUnread)
	for _, column := range ks.Columns {
		if floor, has := ks.Floors[column]; !has || floor != 0 {
			t.Fatalf("floors %v of columns %v", ks.Floors, ks.Columns)
		}
	}
	three := int64(3)
	ks, err := n.AddColumns(t.Context(), kinds.KeyspaceUnread, []column.Column{{Name: "gift"}, {Name: "call", NoFloor: true}, {Name: "ring", Floor: &three}})
	mustDo(t, err)
	_, call := ks.Floors["call"]
	if gift, has := ks.Floors["gift"]; !has || gift != 0 || call || ks.Floors["ring"] != 3 {
		t.Fatalf("floors %v", ks.Floors)
	}
	// The user clears the badge of a comment, and then the comment is deleted. The badge must not
	// go below 0.
	comment := uint8(ks.Column("comment"))
	mustWrite(t, n, ks, addTo(7, comment, 1), engine.Op{ID: 7, Kind: engine.OpTake, Cells: []engine.Cell{{Column: comment, Value: 1}}})
	mustWrite(t, n, ks, addTo(7, comment, -1))
	mustWrite(t, n, ks, addTo(7, comment, 1))
	if rows := mustGet(t, n, ks, ReadOptions{}, 7); rows[comment] != 1 {
		t.Errorf("the badge shows %d", rows[comment])
	}
}

func FuzzParseSettled(f *testing.F) {
	settled := func(cuts ...engine.Cut) []byte {
		q := propose.Settled(nil)
		q.Ops, q.Width, q.Result = 2, 1, raftfsm.NewResult(7, 1, []int64{3, -4}, []engine.Overflow{{Op: 1, Column: 2}}, dedup.Applied)
		q.Result.Cuts = cuts
		return propose.AppendOutcome(nil, q, nil)
	}
	f.Add(settled())
	f.Add(settled(engine.Cut{Op: 0, Column: 3, Added: -1}, engine.Cut{Op: 0, Column: 4}))
	f.Add(settled(engine.Cut{Op: 1, Column: 63, Added: -1 << 63}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := wire.Reader{Rest: b}
		q := propose.ParseOutcome(&r, 1)
		if r.End() != nil || q.Err != nil {
			return
		}
		for i, c := range q.Result.Cuts {
			if c.Op < 0 || c.Op >= q.Ops || c.Column >= engine.ColumnsMax || i > 0 && c.Op < q.Result.Cuts[i-1].Op {
				t.Fatalf("cuts %v of %d ops", q.Result.Cuts, q.Ops)
			}
		}
		if q.Outcome() > dedup.Misrouted {
			t.Fatalf("outcome %d", q.Outcome())
		}
		s := wire.Reader{Rest: propose.AppendOutcome(nil, q, nil)}
		if again := propose.ParseOutcome(&s, 1); s.End() != nil || !slices.Equal(again.Result.Cuts, q.Result.Cuts) || !slices.Equal(again.Result.Rows, q.Result.Rows) {
			t.Fatalf("%+v became %+v, %v", q.Result, again.Result, s.Err)
		}
	})
}
