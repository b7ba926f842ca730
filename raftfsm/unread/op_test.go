package unread

import (
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rows"
)

var testLimits = dedup.Limits{KeyHorizon: 10 * time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 5}

func cursorOp(kind engine.OpKind, number uint8, at int64) *engine.Op {
	return &engine.Op{Kind: kind, Cells: []engine.Cell{{Column: number, Value: at}}}
}

// Cursors store the day, so an entry with ops on cursors needs a clock section.
func TestCursorsNeedAClock(t *testing.T) {
	var w raftfsm.RequestWriter
	for name, fill := range map[string]func(){
		"raise": func() { CursorOps{*cursorOp(Raise, 1, 1)}.AppendTo(&w, 1, 0) },
		"sweep": func() { AppendSweep(&w, CursorIdleMin, 1) },
	} {
		w.Reset(nil, codec.Whole, &dedup.RequestID{})
		fill()
		entry := codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindUnread, 0), w.Section()...))
		if err := rafttest.ApplyError(New(), rafttest.Command(1, entry)); err == nil {
			t.Errorf("%s was applied without a clock", name)
		}
	}
}

// A repeat has no cuts, because its ops are not applied. The cuts name ops by their number in the
// entry, even if ops on other tables are between them.
func TestCutsOfRequests(t *testing.T) {
	id := dedup.ByKey([]byte("k"), []byte("body"))
	var w raftfsm.RequestWriter
	entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindUnread, 2), time.UnixMilli(20_000*dayMillis), testLimits)
	w.Reset(nil, codec.Whole, &id)
	op := engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: engine.FloorMark | 1}, {Column: 1, Value: -3}}}
	rows.AppendOp(&w, rows.Add, 7, &engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 1, Value: 1}}}, false)
	CursorOps{*cursorOp(Raise, 1, 13)}.AppendTo(&w, 7, 0)
	rows.AppendOp(&w, rows.Add, 7, &op, false)
	section := w.Section()
	entry = codec.AppendChecksum(append(append(entry, section...), section...))
	u := New()
	r := u.Apply(rafttest.Command(1, entry)).(*raftfsm.Result)
	if want := []engine.Cut{{Op: 2, Column: 1, Added: -1}}; !slices.Equal(r.Cuts, want) || r.Outcome(1) != dedup.Duplicate {
		t.Errorf("cuts %v, the repeat's outcome %v", r.Cuts, r.Outcome(1))
	}
	if r = u.Apply(rafttest.Command(2, entry)).(*raftfsm.Result); len(r.Cuts) > 0 {
		t.Errorf("cuts %v of a repeat", r.Cuts)
	}
}
