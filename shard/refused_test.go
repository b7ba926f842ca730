package shard

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
)

func fullRow(id uint64) engine.Op {
	return engine.Op{ID: id, Kind: engine.OpSet, Cells: []engine.Cell{{Column: 0, Value: math.MaxInt64}}}
}

// A producer that repeats a refused number with a delete is told of a repeat: an
// op without cells cannot have been refused.
func TestRefusedNumberRepeatedWithADelete(t *testing.T) {
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ks := n.Keyspace("posts")
	mustWrite(t, n, ks, fullRow(7))
	send := func(ops ...engine.Op) *Write {
		w := &Write{Ops: ops, ID: ByProducer([]byte("p"), 1), Width: 4, Rows: make([]int64, 4*len(ops)), Deadline: soon()}
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

// An error that names what was applied does not name ops that overflowed, the
// first time and when the write is repeated.
func TestRefusedOpsAreNotNamedApplied(t *testing.T) {
	n, keyspaces := shardedNode(t, 4)
	ks := keyspaces[3]
	hinder(n, ks, 1, heldGroup{err: raft.ErrNotLeader})
	mustWrite(t, n, ks, fullRow(0), fullRow(2))
	for _, test := range []struct {
		name    string
		ids     []uint64
		applied []uint64 // nil for an error that is no PartialError
		wholly  bool     // shards refused all or nothing, which a repeat is told again
	}{
		{"one of a shard", []uint64{0, 1, 4}, []uint64{4}, false},
		{"one of each shard", []uint64{0, 4, 2, 1, 6}, []uint64{4, 6}, false},
		{"all of a shard", []uint64{0, 1, 6}, []uint64{6}, true},
		{"all", []uint64{0, 1, 2}, nil, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := ByKey([]byte(test.name))
			for id.Shard(4) == 1 { // the one without a leader would judge it
				test.name += "'"
				id = ByKey([]byte(test.name))
			}
			for round := range 2 {
				w := &Write{ID: id, Deadline: time.Now().Add(500 * time.Millisecond)}
				for _, id := range test.ids {
					w.Ops = append(w.Ops, addTo(id, 0, 1))
				}
				err := n.Write(ks, w)
				var partial *PartialError
				if !errors.Is(err, ErrNoLeader) || errors.As(err, &partial) != (test.applied != nil) {
					t.Fatalf("told %v", err)
				}
				if partial != nil && (round == 0 || test.wholly) && !slices.Equal(partial.Applied, test.applied) {
					t.Errorf("round %d: applied %v, want %v", round, partial.Applied, test.applied)
				}
			}
		})
	}
}
