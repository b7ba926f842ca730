package catalog

import (
	"fmt"
	"slices"
	"testing"
)

// What nodes ask about a growth: whose attempt a group belongs to, which attempts are over, and which
// parents have split.
func TestAttempts(t *testing.T) {
	c := growable(t)
	check := func(when string, moduli []uint32, want map[uint32]string) {
		t.Helper()
		v := c.View()
		k := v.Keyspaces["k"]
		if got := k.Moduli(); !slices.Equal(got, moduli) {
			t.Errorf("%s: moduli %v, want %v", when, got, moduli)
		}
		for group, want := range want {
			s := v.SplitOf(group)
			if got := fmt.Sprintf("of %d by %d, over %d", s.Parent, s.Attempt.Number, s.Over); got != want || s.Keyspace.Name != "k" {
				t.Errorf("%s: group %d %s, want %s", when, group, got, want)
			}
		}
	}
	check("before", nil, map[uint32]string{1: "of 0 by 0, over 3", 2: "of 0 by 0, over 3"})
	mustTake(t, c, []catalogStep{{"grow", grow("k", 1, 2, 6), "", true}})
	check("intended", []uint32{2, 2}, map[uint32]string{1: "of 1 by 0, over 3"})
	mustTake(t, c, []catalogStep{{"commit", commitSplit(1, 0), "", true}}) // attempt 3, children 4 and 5
	check("committed", []uint32{2, 2}, map[uint32]string{1: "of 1 by 3, over 3", 2: "of 2 by 0, over 6", 4: "of 1 by 3, over 6", 5: "of 1 by 3, over 6"})
	mustTake(t, c, []catalogStep{{"abandon", abandonSplit(1, 3), "", true}, {"commit", commitSplit(1, 1), "", true}}) // attempt 6, children 7 and 8
	check("again", []uint32{2, 2}, map[uint32]string{1: "of 1 by 6, over 6", 7: "of 1 by 6, over 9"})
	mustTake(t, c, []catalogStep{{"a child begins", begun(8), "", true}})
	check("a child has begun", []uint32{6, 2}, map[uint32]string{1: "of 1 by 6, over 6"})
	mustTake(t, c, []catalogStep{{"the other begins", begun(7), "", true}})
	check("all have begun", []uint32{6, 2}, map[uint32]string{1: "of 1 by 6, over 9", 2: "of 2 by 0, over 9"})
	mustTake(t, c, []catalogStep{
		{"the other parent", commitSplit(2, 0), "", true}, {"begins", begun(10), "", true}, {"begins", begun(11), "", true}, // attempt 9
		{"a second growth", grow("k", 1, 6, 12), "", true},
	})
	check("a second growth", []uint32{6, 6, 6, 6, 6, 6}, map[uint32]string{1: "of 1 by 0, over 12", 7: "of 7 by 0, over 12"})
	k := c.View().Keyspaces["k"]
	for shard, want := range []int{-1, -1, 0, 1, 0, 1, 0, 1, 2, 3, 4, 5, -1} {
		if parent, made := k.Parent(shard); made != (want >= 0) || made && parent != want {
			t.Errorf("shard %d was made of %d, %v, want %d", shard, parent, made, want)
		}
	}
}
