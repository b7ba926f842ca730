package counters

import (
	"slices"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
)

// A replica that restores a stream with carried rows stores these on its own disk. The test packs
// the other rows, and the stream ends with carried rows.
func TestCarriedRowsBesideSealedOnes(t *testing.T) {
	a, b := newColdReplica(t, "a"), newColdReplica(t, "b")
	b.seals = true
	var ops []engine.Op
	for key := range uint64(60_000) {
		ops = append(ops, add(key<<20, 0, 1))
	}
	a.fsm.Apply(rafttest.Command(1, entryOf(0, ops)))
	ops = nil
	for key := uint64(0); key < 60_000; key += 100 { // delete enough rows of each segment that the others fit in one section
		ops = append(ops, engine.Op{ID: key << 20, Kind: engine.OpDelete})
	}
	a.fsm.Apply(rafttest.Command(2, entryOf(0, ops)))
	var all, cold []uint64 // segments
	a.fsm.Table().Watch(func(first, _ uint64) bool { all = append(all, first); return false }, true)
	for i := 0; i < len(all); i += 2 {
		cold = append(cold, all[i])
	}
	for range 2 {
		if _, err := freezeAll(a.fsm, func(first, _ uint64) bool { return slices.Contains(cold, first) }); err != nil {
			t.Fatal(err)
		}
	}
	a.snapshot()
	b.must(rafttest.Restore(b.fsm, a.carried()))
	was, is := a.fsm.Table().Stats(), b.fsm.Table().Stats()
	if was.ColdRows == 0 || is.ColdRows != was.ColdRows || is.SealedRows == 0 {
		t.Errorf("%d rows are on disk and %d packed, want %d on disk", is.ColdRows, is.SealedRows, was.ColdRows)
	}
	if moved := b.fsm.Carried(); moved != was.ColdRows {
		t.Errorf("%d rows were moved, want %d", moved, was.ColdRows)
	}
	if b.fsm.Table().Digest() != a.fsm.Table().Digest() {
		t.Error("the digests differ")
	}
}
