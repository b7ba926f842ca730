package shard

import (
	"errors"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/counters"
)

var errRevoked = errors.New("revoked")

// asks is a Permission that refuses call number refused and all later calls.
type asks struct{ calls, refused int }

func (a *asks) Still() error {
	if a.calls++; a.calls >= a.refused {
		return errRevoked
	}
	return nil
}

// TestPermissionIsAskedAtEachTry checks that a write that waits for a leader is not proposed once its
// permission is refused, and that the error names the shards that had applied their part.
func TestPermissionIsAskedAtEachTry(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2})
	ks := n.Keyspace("posts")
	w := &Write{Ops: counters.Ops{addTo(2, 0, 1)}, Deadline: soon(), Permission: &asks{refused: 1}}
	if err := n.Write(ks, w); !errors.Is(err, errRevoked) {
		t.Fatalf("a write that is refused at once: %v", err)
	}
	hinder(n, ks, 1, heldGroup{err: raft.ErrNotLeader})
	p := &asks{refused: 4}
	w = &Write{Ops: counters.Ops{addTo(2, 0, 1), addTo(3, 0, 1)}, Deadline: soon(), Permission: p}
	var partial *PartialError
	if err := n.Write(ks, w); !errors.As(err, &partial) || !errors.Is(err, errRevoked) || !slices.Equal(partial.Applied, []uint64{2}) || len(partial.Unknown) > 0 {
		t.Errorf("refused at the fourth try: %v", err)
	}
	if p.calls != 4 {
		t.Errorf("asked %d times", p.calls)
	}
	if row := mustGet(t, n, ks, ReadOptions{Consistency: Linearizable}, 2); row[0] != 1 {
		t.Errorf("row 2 is %v", row)
	}
}
