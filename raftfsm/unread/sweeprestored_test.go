package unread

import (
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// While a shard is being restored, the sweep drops no cursor, even after a restart, because the
// restore compares the shard with its backup. Once the restore has ended, the sweep drops the
// cursors of idle users.
func TestSweepOfAShardThatIsRestored(t *testing.T) {
	m, index, now := New(), uint64(0), time.Now()
	idle, today := CursorIdleMin, dayOf(now.UnixMilli())
	entry := func(sections ...func(w *raftfsm.RequestWriter) *dedup.RequestID) {
		t.Helper()
		index++
		e := dedup.AppendClock(codec.BeginEntry(nil, codec.KindUnread, 1), now, testLimits)
		for _, section := range sections {
			var w raftfsm.RequestWriter
			id := section(nil)
			w.Reset(nil, codec.Whole, id)
			section(&w)
			e = append(e, w.Section()...)
		}
		if r := m.Apply(rafttest.Command(index, codec.AppendChecksum(e))).(*raftfsm.Result); r.Outcome(0) != dedup.Applied {
			t.Fatalf("entry %d: outcome %v", index, r.Outcome(0))
		}
	}
	positions := func(seq uint64, closed bool) func(*raftfsm.RequestWriter) *dedup.RequestID {
		return func(*raftfsm.RequestWriter) *dedup.RequestID {
			id := dedup.ByRestorePositions(seq, dedup.RestoredPositions{Closed: closed})
			return &id
		}
	}
	sweep := func(w *raftfsm.RequestWriter) *dedup.RequestID {
		if w != nil {
			AppendSweep(w, idle, 100)
		}
		return &dedup.RequestID{}
	}
	cursors := func(w *raftfsm.RequestWriter) *dedup.RequestID {
		for user := uint64(0); w != nil && user < 10; user++ {
			day := today - int64(user)
			CursorOps{{Kind: engine.OpSet, Cells: []engine.Cell{{Column: CursorDay, Value: day}, {Column: 1, Value: 1}}}}.AppendTo(w, user, 0)
		}
		return &dedup.RequestID{}
	}
	rows := func() int { return int(m.Cursors().Stats().Rows) }
	entry(positions(1, true))
	entry(cursors, sweep)
	entry(sweep)
	again := New()
	if err := rafttest.Restore(again, rafttest.Persisted(t, m)); err != nil {
		t.Fatal(err)
	}
	m = again
	entry(sweep)
	if got := rows(); got != 10 {
		t.Errorf("%d of 10 users have cursors while the shard is restored", got)
	}
	entry(positions(2, false))
	entry(sweep)
	if got := rows(); got >= 10 || got == 0 {
		t.Errorf("after that %d of 10 have", got)
	}
}
