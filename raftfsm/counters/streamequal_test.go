package counters

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
)

// Two replicas that applied the same entries have different salts, so their hash arrays differ. A
// replica that restored a snapshot has yet another array, or packed rows. Nevertheless all have the
// same results and digests, and their snapshots have the same bytes.
func TestEqualRowsMakeEqualStreams(t *testing.T) {
	one, two := newCounters(t), newCounters(t)
	r := rand.New(rand.NewPCG(1, 2))
	ids := make([]uint64, 30_000)
	for i := range ids {
		ids[i] = r.Uint64() >> r.IntN(30)
	}
	for index := uint64(1); index <= 40; index++ {
		ops := make([]engine.Op, 2000)
		for i := range ops {
			ops[i] = add(ids[r.IntN(len(ids))], uint8(r.IntN(3)), r.Int64N(1<<r.IntN(40)))
			if r.IntN(4) == 0 {
				ops[i] = engine.Op{ID: ops[i].ID, Kind: engine.OpDelete}
			}
		}
		if index == 20 {
			ops[0] = add(ids[0], 9, 1)
			ops[1] = add(ids[0], 9, -1) // its segment stays wide for now
		}
		entry := entryOf(4, ops)
		a, b := one.Apply(rafttest.Command(index, entry)).(*raftfsm.Result), two.Apply(rafttest.Command(index, entry)).(*raftfsm.Result)
		if !slices.Equal(a.Rows, b.Rows) || !slices.Equal(a.Overflows, b.Overflows) || one.State().Digest != two.State().Digest {
			t.Fatalf("entry %d is answered otherwise, %+v and %+v", index, one.State(), two.State())
		}
	}
	want := rafttest.Persisted(t, one)
	for name, again := range map[string]*Machine{
		"another replica": two,
		"a restart":       newCounters(t),
		"packed rows":     New(raftfsm.Places{Seal: func(uint64, uint64) bool { return true }}),
	} {
		if again != two {
			if err := rafttest.Restore(again, want); err != nil {
				t.Fatal(err)
			}
		}
		if got := rafttest.Persisted(t, again); !bytes.Equal(got, want) {
			t.Errorf("%s: a snapshot of %d bytes is another than one of %d", name, len(got), len(want))
		}
	}
}
