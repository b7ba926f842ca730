package sources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source/sink"
)

// A reconciliation names rows by their texts. It gives no numbers.
func TestRowIDs(t *testing.T) {
	t.Parallel()
	c := newSourceCluster(t)
	n := c.node()
	posts := n.Keyspaces()[0]
	ctx := context.Background()
	if got, err := n.sink.rowIDs(ctx, posts, []string{"7", "0"}); err != nil || !slices.Equal(got, []uint64{7, 0}) {
		t.Errorf("%v, %v", got, err)
	}
	refused := func(ids []string, want string) {
		t.Helper()
		_, err := n.sink.rowIDs(ctx, posts, ids)
		if why, is := errors.AsType[*errs.ArgumentError](err); !is || why.Field+": "+why.Problem != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	refused([]string{"7", "a"}, `ids[1]: not an unsigned 64-bit integer; a keyspace made with "ids":"text" takes any text`)
	c.names = &apitest.NodeNames{}
	posts = n.Keyspaces()[0]
	op := &sink.Op{Keyspace: posts.Name, Texts: &sink.Texts{ID: "a", IDAt: "id"}}
	if err := n.sink.number(ctx, textIDsOf(n.Keyspaces()), []*sink.Op{op}, true); err != nil {
		t.Fatal(err)
	}
	if got, err := n.sink.rowIDs(ctx, posts, []string{"b", "a"}); err != nil || !slices.Equal(got, []uint64{0, 1}) || c.names.Assigned() != 1 {
		t.Errorf("%v, %v, and %d numbers are given", got, err, c.names.Assigned())
	}
	refused([]string{"\xff"}, "ids[0]: not a text of 1 to 128 bytes of UTF-8")
}

// The Window of a row without a number reaches from the lowest position of the shards to the highest.
func TestWindowsWithoutAShard(t *testing.T) {
	t.Parallel()
	out := &Rows{Shards: map[int][]Window{1: {}, noShard: {}}}
	at := func(lo uint64) Position { return Position{Lo: lo} }
	for shard, lo := range []uint64{7, 5, 9} {
		out.from(shard, 0, at(lo))
		out.from(shard, 3, at(lo+1))
	}
	for shard, lo := range []uint64{7, 8, 10} {
		out.to(shard, 0, at(lo))
		out.to(shard, 3, at(lo+1))
	}
	want := map[int][]Window{
		1:       {{Partition: 0, From: at(5), To: at(8)}, {Partition: 3, From: at(6), To: at(9)}},
		noShard: {{Partition: 0, From: at(5), To: at(10)}, {Partition: 3, From: at(6), To: at(11)}},
	}
	if fmt.Sprint(out.Shards) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", out.Shards, want)
	}
}
