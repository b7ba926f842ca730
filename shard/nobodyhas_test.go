package shard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
)

// If no living node has a replica of a shard, the error of a stale read names the shard. A scan
// omits the shard on request. Gossip alone does not decide: the reader also asks nodes that gossip
// reports as dead.
func TestShardThatNobodyHasIsNamed(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	cfg := memberConfig(t, t.TempDir(), 4, 0)
	var dead atomic.Bool
	cfg.Alive = func(string) bool { return !dead.Load() }
	n, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { mustDo(t, n.Close(context.Background())) })
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	mustDo(t, all[0].catalogClient.MustChange(ctx, &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: n.record()}}))
	mustDo(t, n.WaitReady(ctx))
	ks := n.Keyspace("posts")

	stale := func() *ReadOptions {
		return &ReadOptions{Consistency: Stale, Deadline: time.Now().Add(10 * time.Second)}
	}
	dead.Store(true)
	if r, err := n.scanReadable(ks, 10, 4, stale()); err != nil || len(r.Unreadable) != 0 {
		t.Errorf("gossip alone hears of nobody: %+v, %v", r, err)
	}
	for _, m := range all {
		mustDo(t, m.Close(ctx))
	}
	r, err := n.scanReadable(ks, 10, 4, stale())
	if err != nil || !slices.Equal(r.Unreadable, []int{0, 1, 2}) || len(r.IDs) != 0 || r.More {
		t.Errorf("scan: %+v, %v", r, err)
	}
	opt := stale()
	if _, err := n.Scan(ks, 0, false, 10, 4, opt); !namesTheLost(err) {
		t.Errorf("scan of everything: %v", err)
	}
	rows := make([]int64, 4)
	if err := n.Get(ks, []uint64{1}, 4, opt, rows); !namesTheLost(err) {
		t.Errorf("read: %v", err)
	}
}

func namesTheLost(err error) bool {
	return errors.Is(err, errs.ErrNoQuorum) && errors.Is(err, errNobodyHas) &&
		strings.Contains(err.Error(), "of keyspace posts") && strings.Contains(err.Error(), "n1, n2, n3 dead")
}
