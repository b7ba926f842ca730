package raftfsm

import (
	"slices"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec/codectest"
)

func TestMarksAreTheNewestByIndex(t *testing.T) {
	var m marks
	if got := m; len(got) != 0 {
		t.Fatalf("marks before the first entry: %v", got)
	}
	for index := range uint64(markEvery*(2*marksKept+5) + 1) {
		m.note(index, func() uint64 { return index + 1 })
		newest := index - index%markEvery
		got := m
		if len(got) == 0 || got[len(got)-1] != (Mark{newest, newest + 1}) {
			t.Fatalf("after %d the last mark is %v", index, got)
		}
		if want := int(min(index/markEvery+1, marksKept)); len(got) != want {
			t.Fatalf("after %d there are %d marks, want %d", index, len(got), want)
		}
		for i, mark := range got {
			if mark.Index != newest-uint64(len(got)-1-i)*markEvery {
				t.Fatalf("after %d the marks are %v", index, got)
			}
		}
	}
}

// Two replicas that apply the same entries in different batches take the same marks. A restored replica
// begins without marks.
func TestReplicasTakeTheSameMarks(t *testing.T) {
	one, other := newCounters(t), newCounters(t)
	for index := uint64(1); index <= 3*markEvery; index++ {
		entry := entryOf(0, []engine.Op{add(index%7, 0, int64(index))})
		one.Apply(codectest.Command(index, entry))
		other.Apply(codectest.Command(index, entry))
	}
	if a, b := one.Marks(), other.Marks(); len(a) != 3 || !slices.Equal(a, b) || a[2].Digest != one.State().Digest {
		t.Errorf("marks %v and %v", a, b)
	}
	if err := codectest.Restore(other, codectest.Persisted(t, one)); err != nil || len(other.Marks()) != 0 {
		t.Errorf("after a restore: %v, %v", other.Marks(), err)
	}
}
