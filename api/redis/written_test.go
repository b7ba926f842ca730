package redis

import (
	"slices"
	"testing"

	"github.com/countd/countd/shard"
)

// The sum of all tokens has the newest index of each group. A token without a newer index does not
// replace the sum.
func TestWrittenKeepsTheNewest(t *testing.T) {
	var w written
	for _, step := range []struct {
		at       []shard.GroupIndex
		replaces bool
		sum      []shard.GroupIndex
	}{
		{[]shard.GroupIndex{{Group: 1, Index: 5}}, true, []shard.GroupIndex{{Group: 1, Index: 5}}},
		{[]shard.GroupIndex{{Group: 1, Index: 5}}, false, []shard.GroupIndex{{Group: 1, Index: 5}}},
		{[]shard.GroupIndex{{Group: 1, Index: 4}}, false, []shard.GroupIndex{{Group: 1, Index: 5}}},
		{[]shard.GroupIndex{{Group: 1, Index: 3}, {Group: 2, Index: 1}}, true, []shard.GroupIndex{{Group: 1, Index: 5}, {Group: 2, Index: 1}}},
		{[]shard.GroupIndex{{Group: 2, Index: 2}, {Group: 1, Index: 5}}, true, []shard.GroupIndex{{Group: 1, Index: 5}, {Group: 2, Index: 2}}},
		{nil, false, []shard.GroupIndex{{Group: 1, Index: 5}, {Group: 2, Index: 2}}},
	} {
		before := w.token.Load()
		w.add(&shard.Token{Cluster: 7, At: step.at})
		sum := w.token.Load()
		if !slices.Equal(sum.At, step.sum) || sum.Cluster != 7 || (sum != before) != step.replaces {
			t.Errorf("after %v: %v, replaced %v", step.at, *sum, sum != before)
		}
	}
	before := w.token.Load()
	w.add(&shard.Token{Cluster: 8, At: []shard.GroupIndex{{Group: 1, Index: 5}}})
	if sum := w.token.Load(); sum == before || sum.Cluster != 8 {
		t.Errorf("the token of another cluster: %v", *sum)
	}
}
