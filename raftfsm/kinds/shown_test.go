package kinds

import (
	"bytes"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
)

// The entries of a log and the snapshot after them show the same numbers.
func TestShown(t *testing.T) {
	for _, kind := range []codec.Kind{codec.KindCounters, codec.KindUnread} {
		m, route := All.New(kind, raftfsm.Places{}), codec.Route{Modulus: 3, Residue: 2}
		m.SetRoute(route)
		key := dedup.PositionKey{Source: 1<<40 | 9, Partition: 2}
		var log Shown
		for _, id := range []dedup.RequestID{{}, dedup.BySource(dedup.SourceSection{PositionKey: key, Mode: dedup.SectionBegin, Epoch: 6})} {
			var w raftfsm.RequestWriter
			w.Reset(nil, route, &id)
			if !id.IsSource() {
				ops := counters.Ops{{ID: 5, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 13, Value: 1}}}}
				ops.AppendTo(&w, 5, 0)
			} else if kind != codec.KindCounters {
				continue
			}
			entry := dedup.AppendClock(codec.BeginEntry(nil, kind, 0), time.Unix(9, 0), testLimits)
			entry = codec.AppendChecksum(append(entry, w.Section()...))
			m.Apply(rafttest.Next(m, entry))
			must.Do(t, log.Entry(entry, 1))
		}
		must.Do(t, m.Abandon(route, 77))
		must.Do(t, log.Entry((&raftfsm.AbandonEntry{From: route, Attempt: 77}).Entry(kind), 1))
		var snapshot Shown
		stream := rafttest.Persisted(t, m)
		must.Do(t, snapshot.Snapshot(kind, bytes.NewReader(stream)))
		for _, shown := range []Shown{log, snapshot} {
			if shown.Columns != 14 || shown.Attempt != 77 || shown.Split != 0 || kind == codec.KindCounters && shown.Epochs[key] != 6 {
				t.Errorf("%s: %+v", kind, shown)
			}
		}
		split := (&raftfsm.SplitEntry{From: route, Attempt: 90, Term: 4, Group: 1, Children: []uint32{91}}).Entry(kind)
		must.Do(t, log.Entry(split, 5))
		if log.Attempt != 90 || log.Split != 0 {
			t.Errorf("a split of an earlier term has no effect: %+v", log)
		}
		must.Do(t, log.Entry(split, 4))
		if log.Split != 90 {
			t.Errorf("%+v", log)
		}
		stream[len(stream)/2] ^= 1
		if err := snapshot.Snapshot(kind, bytes.NewReader(stream)); err == nil {
			t.Error("a damaged snapshot is accepted")
		}
	}
}
