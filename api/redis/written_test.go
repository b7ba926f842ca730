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

// A connection reads a keyspace with the token of its writes to it, also of writes to a part of a shard
// that the node's list of groups lacks.
func TestWroteKeepsTheGroupsOfItsKeyspace(t *testing.T) {
	judge := &shard.Keyspace{Name: "judge", FirstGroup: 9, Groups: []uint32{9, 10}}
	own := &table{ks: &shard.Keyspace{Name: "own", FirstGroup: 1, Groups: []uint32{1, 2}}, written: &written{}}
	own.wrote(&shard.Write{Spaces: []*shard.Keyspace{judge, own.ks}, Token: shard.Token{At: []shard.GroupIndex{{Group: 9, Index: 1}, {Group: 2, Index: 3}, {Group: 50, Index: 4}}}})
	if got := own.written.token.Load().At; !slices.Equal(got, []shard.GroupIndex{{Group: 2, Index: 3}, {Group: 50, Index: 4}}) {
		t.Errorf("kept %v", got)
	}
}
