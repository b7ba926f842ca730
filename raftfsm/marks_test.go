package raftfsm

import "testing"

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
