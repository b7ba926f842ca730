package shard

import (
	"errors"
	"testing"
	"time"
)

func TestReadByToken(t *testing.T) {
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2, "users": 1})
	ks := n.Keyspace("posts")
	w := mustWrite(t, n, ks, addTo(2, 0, 1), addTo(3, 0, 1))
	next := Token{{w.Token[0].Group, w.Token[0].Index + 1}}
	for _, level := range []Consistency{Stale, Bounded, Linearizable} {
		opt := &ReadOptions{Consistency: level, Token: next, Deadline: time.Now().Add(20 * time.Millisecond)}
		rows := make([]int64, 2)
		if err := n.Get(ks, []uint64{2}, 1, opt, rows); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("level %d, one id: %v", level, err)
		}
		if err := n.Get(ks, []uint64{2, 3}, 1, opt, rows); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("level %d, a page: %v", level, err)
		}
		if _, err := n.Scan(ks, 0, false, 10, 1, opt); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("level %d, a scan: %v", level, err)
		}
		opt.Deadline = soon()
		if err := n.Get(ks, []uint64{3}, 1, opt, rows); err != nil || rows[0] != 1 {
			t.Errorf("level %d, of the other shard: %v, %v", level, rows, err)
		}
	}
	seen := make(chan error, 1)
	rows := make([]int64, 1)
	go func() { seen <- n.Get(ks, []uint64{2}, 1, &ReadOptions{Token: next, Deadline: soon()}, rows) }()
	mustWrite(t, n, ks, addTo(2, 0, 5))
	if err := <-seen; err != nil || rows[0] != 6 {
		t.Errorf("the awaited write reads as %v, %v", rows, err)
	}
	// Groups that are not the keyspace's are not waited for.
	foreign := Token{{99, 1 << 40}, {w.Token[1].Group, 1}}
	if got := mustGet(t, n, ks, ReadOptions{Token: foreign}, 2, 3); got[0] != 6 {
		t.Errorf("rows %v", got)
	}
}
