package shard

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
)

// across returns a write whose ops go to posts, users and unread numbers in turn.
func across(n *Node, id dedup.RequestID, ops ...engine.Op) *Write {
	w := &Write{ID: id, Ops: counters.Ops(ops), Width: 5, Rows: make([]int64, 5*len(ops)), Deadline: soon()}
	for _, name := range []string{"posts", "users", kinds.KeyspaceUnread} {
		w.Spaces = append(w.Spaces, n.Keyspace(name))
	}
	for i := range ops {
		w.In = append(w.In, uint8(i%3))
	}
	return w
}

// For a write to several keyspaces, through any node:
//
//  1. each op applies to its keyspace, with the floors of that keyspace;
//  2. rows come in the order of the ops;
//  3. a repeat counts nothing, and other ops with the same key are refused, whatever their
//     keyspaces;
//  4. the token names all shards.
func TestWritesOverKeyspaces(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	for i, n := range all {
		eventually(t, "the node knows the keyspaces", func() bool { return n.Keyspace(kinds.KeyspaceUnread) != nil })
		base := uint64(1000 * i)
		ops := []engine.Op{addTo(base+1, 0, 5), addTo(base+1, 1, 6), addTo(base+1, 2, -7), addTo(base+2, 0, 1), addTo(base+1, 1, 1), addTo(base+2, 3, 2)}
		for _, by := range []dedup.RequestID{dedup.ByKey(fmt.Appendf(nil, "k%d", i), []byte("a")), dedup.ByProducer(fmt.Appendf(nil, "p%d", i), 1)} {
			for repeat := range 2 {
				w := across(n, by, ops...)
				mustDo(t, n.Write(w.Spaces[0], w))
				if repeat == 1 && !w.Duplicate {
					t.Errorf("node %d: a repeat is none", i)
				}
				groups := map[uint32]bool{}
				for _, at := range w.Token.At {
					groups[at.Group] = true
				}
				if len(groups) < 3 || len(groups) != len(w.Token.At) {
					t.Errorf("node %d: the token has %v", i, w.Token.At)
				}
			}
		}
		// The ops have counted twice: once with the key, and once with the producer.
		for _, c := range []struct {
			keyspace string
			id       uint64
			column   int
			want     int64
		}{{"posts", base + 1, 0, 10}, {"users", base + 1, 1, 14}, {kinds.KeyspaceUnread, base + 1, 2, 0}, {"posts", base + 2, 0, 2}, {kinds.KeyspaceUnread, base + 2, 3, 4}, {"users", base + 2, 0, 0}} {
			if row := mustGet(t, n, n.Keyspace(c.keyspace), ReadOptions{Consistency: Linearizable}, c.id); row[c.column] != c.want {
				t.Errorf("node %d: %s/%d holds %v, want %d in column %d", i, c.keyspace, c.id, row, c.want, c.column)
			}
		}
		w := across(n, dedup.ByKey(fmt.Appendf(nil, "k%d", i), []byte("b")), addTo(base+77, 0, 1), addTo(base+77, 0, 1))
		if err := n.Write(w.Spaces[0], w); !errors.Is(err, errs.ErrConflict) {
			t.Errorf("node %d: other ops under the key: %v", i, err)
		}
	}
	w := across(all[0], dedup.RequestID{}, addTo(9001, 0, 1), addTo(9001, 0, 2), addTo(9001, 0, -3), addTo(9001, 0, 4))
	mustDo(t, all[0].Write(w.Spaces[0], w))
	if want := []int64{1, 2, 0, 5}; !slices.Equal([]int64{w.Rows[0], w.Rows[5], w.Rows[10], w.Rows[15]}, want) || len(w.Cuts) != 1 || w.Cuts[0].Op != 2 {
		t.Errorf("rows %v, cuts %v", w.Rows, w.Cuts)
	}
}

// If a shard of one keyspace fails in a write to several keyspaces, the error also names the ops by
// number, because one id may be in several keyspaces.
func TestWritesOverKeyspacesInPart(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ks := n.Keyspace("users")
	hinder(n, ks, 0, heldGroup{err: raft.ErrNotLeader})
	w := across(n, dedup.RequestID{}, addTo(7, 0, 1), addTo(7, 0, 1), addTo(7, 0, 1))
	w.Deadline = time.Now().Add(hinderedMax)
	var partial *PartialError
	if err := n.Write(w.Spaces[0], w); !errors.As(err, &partial) || !errors.Is(err, errs.ErrNoLeader) {
		t.Fatalf("told %v", err)
	}
	if !slices.Equal(partial.Applied, []uint64{7, 7}) || !slices.Equal(partial.AppliedOps, []int{0, 2}) || len(partial.UnknownOps) > 0 {
		t.Errorf("told %+v", partial)
	}
}
