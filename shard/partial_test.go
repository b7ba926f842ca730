package shard

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
)

// If one shard of a write fails, the ops of the others are answered as if each shard had
// been alone.
func TestPartialWritesAnswerTheRest(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 4)
	ks := keyspaces[3]
	hinder(n, ks, 1, heldGroup{err: raft.ErrNotLeader})
	mustWrite(t, n, ks, fullRow(4))
	w := &Write{Width: 5, Rows: make([]int64, 5*4), Deadline: time.Now().Add(hinderedMax)}
	ids := []uint64{1, 2, 4, 2}
	for _, id := range ids {
		w.Ops = append(rowOps(w), addTo(id, 0, 3))
	}
	var partial *PartialError
	if err := n.Write(ks, w); !errors.As(err, &partial) {
		t.Fatalf("told %v", err)
	}
	if !errors.Is(partial.Of(0), errs.ErrNoLeader) || partial.Of(1) != nil || partial.Of(2) != nil {
		t.Errorf("shards told %v", partial.ByOp)
	}
	if got := []int64{w.Rows[5], w.Rows[10], w.Rows[15]}; !slices.Equal(got, []int64{3, math.MaxInt64, 6}) {
		t.Errorf("rows %v", got)
	}
	if len(w.Overflows) != 1 || w.Overflows[0].Op != 2 {
		t.Errorf("refused %v", w.Overflows)
	}
	if len(w.Token.At) != 2 || w.Duplicate {
		t.Errorf("token %v, duplicate %v", w.Token, w.Duplicate)
	}
}

// If one shard of a read fails, the result has the rows of the others.
func TestPartialReadsHaveTheRest(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 4)
	ks := keyspaces[3]
	mustWrite(t, n, ks, addTo(2, 0, 7), addTo(3, 0, 8))
	groups, err := n.router.groupsOf(ks)
	mustDo(t, err)
	n.registry.changing.Lock() // the node cannot open another replica meanwhile
	defer n.registry.changing.Unlock()
	r := groups[3].replica.Swap(nil) // as if this node had no replica
	defer groups[3].replica.Store(r)
	rows := make([]int64, 3)
	err = n.Get(ks, []uint64{3, 2, 7}, 1, &ReadOptions{Deadline: time.Now().Add(hinderedMax)}, rows)
	var some *ReadError
	if !errors.As(err, &some) || !errors.Is(err, errs.ErrNoQuorum) {
		t.Fatalf("told %v", err)
	}
	if some.Of(2) != nil || !errors.Is(some.Of(3), errs.ErrNoQuorum) || rows[1] != 7 {
		t.Errorf("shards told %v, rows %v", some.ByShard, rows)
	}
}
