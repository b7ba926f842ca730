package shard

import (
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard/propose"
)

// mustForward serves a write of one op as if another node had forwarded it.
func mustForward(t *testing.T, n *Node, ks *Keyspace, key uint64, add func(*raftfsm.RequestWriter)) {
	t.Helper()
	var w raftfsm.RequestWriter
	w.Reset(nil, n.registry.shardOf(ks.FirstGroup).first, &dedup.RequestID{})
	add(&w)
	part := &propose.ForwardedPart{Section: w.Section(), Ops: 1}
	q := n.writer.check(n.registry.shardOf(ks.FirstGroup), part, soon()).propose(t.Context())
	if err := q.Wait(time.NewTimer(eventuallyMax)); err != nil {
		t.Fatalf("a forwarded op on key %d: %v", key, err)
	}
}

// Once rows of a shard are cold, an op that only counts reads the author's row, and neither reads
// nor needs the author's outbox. Each op on an outbox brings back only its author's outbox.
func TestCountsLeaveOutboxesOnDisk(t *testing.T) {
	t.Parallel()
	n := openFeedNode(t, t.TempDir(), 1, "")
	m := fillAuthors(t, n)
	ks := n.Keyspace(kinds.KeyspaceUsers)
	r := fillCold(t, n, ks)
	if !r.fsm.TableOf(rows.Counts).MayBeCold(spillAuthors) {
		t.Fatal("rows of authors are not cold")
	}
	spillAll(t, n)
	reads := n.cold.Stats().RecordReads
	counted := int64(0)
	count := func() {
		t.Helper()
		counted++
		for author := range uint64(spillAuthors) {
			if w := mustWrite(t, n, ks, addTo(author, 1, 1)); w.Rows[1] != 2*counted-1 {
				t.Errorf("author %d counts %v, want %d", author, w.Rows, 2*counted-1)
			}
			op := addTo(author, 1, 1)
			mustForward(t, n, ks, author, func(w *raftfsm.RequestWriter) { counters.Ops{op}.AppendTo(w, author, 0) })
		}
	}
	count()
	if spilled, _ := outboxesOnDisk(n); spilled != spillAuthors || n.cold.Stats().RecordReads != reads {
		t.Errorf("counts left %d of %d outboxes on disk, after %d reads", spilled, spillAuthors, n.cold.Stats().RecordReads-reads)
	}

	m.changeSome(t, n, 5)
	if spilled, authors := outboxesOnDisk(n); spilled != spillAuthors-3 || authors != spillAuthors-1 {
		t.Errorf("a publish, a removal and a delete left %d of %d outboxes on disk", spilled, authors)
	}
	id := m.posts[9][3]
	mustForward(t, n, ks, 9, func(w *raftfsm.RequestWriter) {
		counters.OutboxOps{{PostOp: counters.PostOp{Kind: counters.Unpublish, ID: id}}}.AppendTo(w, 9, 0)
	})
	m.posts[9] = append(m.posts[9][:3:3], m.posts[9][4:]...)
	mustForward(t, n, ks, 10, func(w *raftfsm.RequestWriter) { counters.Ops{{Kind: engine.OpDelete}}.AppendTo(w, 10, 0) })
	m.posts[10] = nil
	if spilled, authors := outboxesOnDisk(n); spilled != spillAuthors-5 || authors != spillAuthors-2 {
		t.Errorf("a forwarded removal and a delete left %d of %d outboxes on disk", spilled, authors)
	}
	if n.cold.Stats().RecordReads != reads+5 {
		t.Errorf("%d outboxes were read, want 5", n.cold.Stats().RecordReads-reads)
	}
	m.check(t, n, ReadOptions{Consistency: Linearizable})

	spillAll(t, n)
	r.fsm.Bodies().Current().Dispose() // all records are lost
	mustWrite(t, n, ks, addTo(7, 1, 1), addTo(9, 1, 1))
	op := addTo(10, 1, 1)
	mustForward(t, n, ks, 10, func(w *raftfsm.RequestWriter) { counters.Ops{op}.AppendTo(w, 10, 0) })
	if r.damage.Found() {
		t.Error("a count needed a lost outbox")
	}
}
