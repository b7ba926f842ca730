package counters

import (
	"slices"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
)

// Two replicas that apply the same entries have the same marks. A restored replica begins without
// marks.
func TestReplicasTakeTheSameMarks(t *testing.T) {
	one, other := newCounters(t), newCounters(t)
	for index := uint64(1); index <= 3*64; index++ {
		entry := entryOf(0, []engine.Op{add(index%7, 0, int64(index))})
		one.Apply(rafttest.Command(index, entry))
		other.Apply(rafttest.Command(index, entry))
	}
	if a, b := one.Marks(), other.Marks(); len(a) != 3 || !slices.Equal(a, b) || a[2].Digest != one.State().Digest {
		t.Errorf("marks %v and %v", a, b)
	}
	if err := rafttest.Restore(other, rafttest.Persisted(t, one)); err != nil || len(other.Marks()) != 0 {
		t.Errorf("after a restore: %v, %v", other.Marks(), err)
	}
}
