package kinds

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/names"
	"github.com/countd/countd/raftfsm/unread"
)

// shardKinds are all kinds except counters.
var shardKinds = []codec.Kind{codec.KindUnread, codec.KindFeed, codec.KindBoard, codec.KindNames}

func cursorOp(kind engine.OpKind, number uint8, at int64) *engine.Op {
	return &engine.Op{Kind: kind, Cells: []engine.Cell{{Column: number, Value: at}}}
}

// goldenRequest writes each op of a kind into a request.
func goldenRequest(kind codec.Kind, w *raftfsm.RequestWriter) {
	switch kind {
	case codec.KindUnread:
		counters.Ops{{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 1, Value: 5}, {Column: 4, Value: -1}}}}.AppendTo(w, 7, 0)
		counters.Ops{{Kind: engine.OpTake, Cells: []engine.Cell{{Column: 1, Value: 3}}}}.AppendTo(w, 7, 0)
		counters.Ops{{Kind: engine.OpSet, Cells: []engine.Cell{{Column: 0, Value: 70_000}}}}.AppendTo(w, 8, 0)
		counters.Ops{{Kind: engine.OpDelete}}.AppendTo(w, 9, 0)
		unread.CursorOps{*cursorOp(unread.Raise, 1, 13)}.AppendTo(w, 7, 0)
		unread.CursorOps{*cursorOp(unread.Begin, 2, 1)}.AppendTo(w, 7, 0)
		unread.CursorOps{*cursorOp(engine.OpSet, unread.CursorDay, 19_000)}.AppendTo(w, 8, 0)
		unread.AppendSweep(w, unread.CursorIdleMin, 100)
	case codec.KindFeed:
		feed.Ops{{Kind: feed.Reset, Followees: []feed.Followee{{ID: 2, Posts: 6}, {ID: 3, Posts: 7}, {ID: 1 << 40, Posts: -4}}}}.AppendTo(w, 7, 0)
		feed.Ops{{Kind: feed.Follow, Followees: []feed.Followee{{ID: 1, Posts: 100}, {ID: 3, Posts: 50}}}}.AppendTo(w, 7, 0)
		feed.Ops{{Kind: feed.Unfollow, Followees: []feed.Followee{{ID: 2, Posts: 0}}}}.AppendTo(w, 7, 0)
		feed.Ops{{Kind: feed.Read, Followees: []feed.Followee{{ID: 1, Posts: 101}}}}.AppendTo(w, 7, 0)
		feed.Ops{{Kind: feed.Reset, Followees: []feed.Followee{{ID: 0, Posts: 0}}}}.AppendTo(w, 9, 0)
	case codec.KindBoard:
		for range 3 {
			(&unread.BoardOp{Kind: unread.Publish, Name: "news"}).AppendTo(w, 0, 0)
		}
		(&unread.BoardOp{Kind: unread.Retract, Name: "news", Seq: 2}).AppendTo(w, 0, 0)
		(&unread.BoardOp{Kind: unread.Fire, Name: "shop"}).AppendTo(w, 0, 0)
		(&unread.BoardOp{Kind: unread.SetDot, Name: "me"}).AppendTo(w, 0, 0)
		(&unread.BoardOp{Kind: unread.PutChannel, Name: "ads", Channel: &unread.Channel{Number: 60, Latest: 9, Floor: 1, Retracted: []int64{3, 5}}}).AppendTo(w, 0, 0)
		(&unread.BoardOp{Kind: unread.PutDot, Name: "old", Dot: &unread.Dot{Number: 61, Fired: 4}}).AppendTo(w, 0, 0)
	case codec.KindNames:
		ops := names.Ops{
			{Kind: names.Assign, Text: "0f8fad5b-d9cb-469f-a165-70867728950e"}, {Kind: names.Assign, Text: "01ARZ3NDEKTSV4RRFFQ69G5FAV"},
			{Kind: names.Assign, Text: "a/slug:1"}, {Kind: names.Assign, Text: "gone"}, {Kind: names.Erase, Text: "gone"},
			{Kind: names.Put, Text: "über", Number: 300}, {Kind: names.Put, Number: 1 << 20}, {Kind: names.Put, Number: 1<<20 + 1, At: 1_727_900_000_000}, {Kind: names.Skip, Number: 5}, {Kind: names.Assign, Text: "7"},
		}
		for i := range ops {
			ops.AppendTo(w, 0, i)
		}
	}
}

func goldenSections(kind codec.Kind) []byte {
	id := dedup.ByKey([]byte("k"), []byte("body"))
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &id)
	goldenRequest(kind, &w)
	return append(dedup.AppendClock(nil, time.UnixMilli(20_000*(24*time.Hour).Milliseconds()), testLimits), w.Section()...)
}

func goldenMachine(t testing.TB, kind codec.Kind) raftfsm.Machine {
	t.Helper()
	m := All.New(kind, raftfsm.Places{})
	r := m.Apply(rafttest.Command(1, codec.AppendChecksum(append(codec.BeginEntry(nil, kind, 4), goldenSections(kind)...)))).(*raftfsm.Result)
	if r.Outcome(0) != dedup.Applied || len(r.Overflows) > 0 {
		t.Fatalf("%s: %+v", kind, r)
	}
	return m
}

// The bytes of entries and snapshots must not change.
func TestGoldenBytesOfKinds(t *testing.T) {
	for _, kind := range shardKinds {
		t.Run(kind.String(), func(t *testing.T) {
			rafttest.Golden(t, fmt.Sprintf("entry-%s.bin", kind), codec.AppendChecksum(append(codec.BeginEntry(nil, kind, 4), goldenSections(kind)...)))
			m := goldenMachine(t, kind)
			snapshot := rafttest.Persisted(t, m)
			rafttest.Golden(t, fmt.Sprintf("snapshot-%s.bin", kind), snapshot)
			again := All.New(kind, raftfsm.Places{})
			if err := rafttest.Restore(again, snapshot); err != nil || again.State().Digest != m.State().Digest || again.State().Digest == 0 {
				t.Errorf("restored %+v, %v; was %+v", again.State(), err, m.State())
			}
			facts, err := All.VisitSnapshot(bytes.NewReader(snapshot), kind, codec.Whole, raftfsm.SnapshotVisitor{})
			if s := m.State(); err != nil || facts != (raftfsm.SnapshotFacts{Index: s.Index, Route: codec.Whole, Rows: s.Rows, Digest: s.Digest}) {
				t.Errorf("visited %+v, %v; state %+v", facts, err, s)
			}
		})
	}
}

// Restore refuses a snapshot that is cut anywhere or has a flipped bit.
func TestKindsRefuseDamage(t *testing.T) {
	t.Parallel()
	for _, kind := range shardKinds {
		snapshot := rafttest.Persisted(t, goldenMachine(t, kind))
		for i := range snapshot {
			flipped := bytes.Clone(snapshot)
			flipped[i] ^= 1 << (i % 8)
			for name, stream := range map[string][]byte{"cut": snapshot[:i], "flipped": flipped} {
				if err := rafttest.Restore(All.New(kind, raftfsm.Places{}), stream); !errors.Is(err, codec.ErrSnapshot) {
					t.Fatalf("%s: %s at %d: %v", kind, name, i, err)
				}
			}
		}
		for _, other := range append(shardKinds, codec.KindCounters) {
			if err := rafttest.Restore(All.New(other, raftfsm.Places{}), snapshot); (err == nil) != (other == kind) {
				t.Errorf("a snapshot of %s restored as %s: %v", kind, other, err)
			}
		}
	}
}

// visits is a visitor that records its calls.
type visits []string

func (v *visits) add(call ...any) error { *v = append(*v, fmt.Sprint(call...)); return nil }
func (v *visits) Op(table raftfsm.Table, key uint64, op *engine.Op) error {
	return v.add("op on table ", table, " key ", key, ", deletes: ", op.Kind == engine.OpDelete)
}
func (v *visits) Body(key uint64, op any) error { return v.add(fmt.Sprintf("%T on key %d", op, key)) }
func (v *visits) Member(p members.Pair) error   { return v.add(p) }

// All.CheckSection accepts every section that a raftfsm.RequestWriter makes. This matters because
// an entry with an invalid section would stop every replica.
func TestCheckSectionOfKinds(t *testing.T) {
	for _, kind := range shardKinds {
		id := dedup.ByProducer([]byte("p"), 1)
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &id)
		goldenRequest(kind, &w)
		var seen visits
		ops, clocked, err := All.CheckSection(kind, codec.Whole, w.Section(), &seen)
		if err != nil || !clocked || ops != w.Ops() || kind != codec.KindBoard && len(seen) != ops {
			t.Errorf("%s: %d of %d ops, %d seen, %v", kind, ops, w.Ops(), len(seen), err)
		}
		for _, other := range append(shardKinds, codec.KindCounters) {
			if _, _, err := All.CheckSection(other, codec.Whole, w.Section(), nil); other != kind && !errors.Is(err, codec.ErrEntry) {
				t.Errorf("a section of %s taken for %s: %v", kind, other, err)
			}
		}
		w.Reset(nil, codec.Whole, &dedup.RequestID{})
		goldenRequest(kind, &w)
		if _, clocked, err := All.CheckSection(kind, codec.Whole, w.Section(), nil); err != nil || clocked != (kind == codec.KindUnread || kind == codec.KindNames) {
			t.Errorf("%s without an identity: clocked %v, %v", kind, clocked, err)
		}
	}
}

func TestWriterPanicsOnWhatHasNoForm(t *testing.T) {
	two := []feed.Followee{{ID: 2, Posts: 0}, {ID: 2, Posts: 0}}
	for name, fill := range map[string]func(w *raftfsm.RequestWriter){
		"a take below 0": func(w *raftfsm.RequestWriter) { counters.Ops{*cursorOp(engine.OpTake, 0, -1)}.AppendTo(w, 1, 0) },
		"a cursor on the day": func(w *raftfsm.RequestWriter) {
			unread.CursorOps{*cursorOp(unread.Raise, unread.CursorDay, 1)}.AppendTo(w, 1, 0)
		},
		"a cursor at 0":   func(w *raftfsm.RequestWriter) { unread.CursorOps{*cursorOp(unread.Begin, 1, 0)}.AppendTo(w, 1, 0) },
		"followees twice": func(w *raftfsm.RequestWriter) { feed.Ops{{Kind: feed.Reset, Followees: two}}.AppendTo(w, 1, 0) },
		"too many followees": func(w *raftfsm.RequestWriter) {
			feed.Ops{{Kind: feed.Read, Followees: make([]feed.Followee, feed.FolloweesMax+1)}}.AppendTo(w, 1, 0)
		},
		"no kind of feed op":       func(w *raftfsm.RequestWriter) { feed.Ops{{}}.AppendTo(w, 1, 0) },
		"a channel without a name": func(w *raftfsm.RequestWriter) { (&unread.BoardOp{Kind: unread.Publish}).AppendTo(w, 0, 0) },
		"an empty put":             func(w *raftfsm.RequestWriter) { (&unread.BoardOp{Kind: unread.PutDot, Name: "a"}).AppendTo(w, 0, 0) },
		"a name that is too long": func(w *raftfsm.RequestWriter) {
			names.Ops{{Kind: names.Assign, Text: strings.Repeat("x", names.BytesMax+1)}}.AppendTo(w, 0, 0)
		},
		"a name of other bytes": func(w *raftfsm.RequestWriter) { names.Ops{{Kind: names.Erase, Text: "\xff"}}.AppendTo(w, 0, 0) },
		"the number 0":          func(w *raftfsm.RequestWriter) { names.Ops{{Kind: names.Put, Text: "a"}}.AppendTo(w, 0, 0) },
		"a skip of 0":           func(w *raftfsm.RequestWriter) { names.Ops{{Kind: names.Skip}}.AppendTo(w, 0, 0) },
		"a skip to a text": func(w *raftfsm.RequestWriter) {
			names.Ops{{Kind: names.Skip, Text: "a", Number: 1}}.AppendTo(w, 0, 0)
		},
		"a sweep of nothing": func(w *raftfsm.RequestWriter) { unread.AppendSweep(w, unread.CursorIdleMin, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			mustNotBeWritten(t, fill)
		})
	}
}

// Restore and VisitSnapshot refuse contents that follow the request memory.
func TestContentsBehindTheRequestMemory(t *testing.T) {
	for _, kind := range shardKinds {
		m := goldenMachine(t, kind)
		sections := rafttest.SectionsOf(t, rafttest.Persisted(t, m))
		var parts []rafttest.Part
		for _, s := range sections[1 : len(sections)-1] {
			parts = append(parts, rafttest.Part{Kind: s[0], Payload: rafttest.PayloadOf(s)})
		}
		for _, rows := range []uint64{m.State().Rows, 2 * m.State().Rows} {
			mustBeRefused(t, kind, rafttest.StreamOf(kind, 9, slices.Concat(parts, parts), rows, m.State().Digest))
		}
	}
}

// FuzzEntryOfKinds applies entries with a valid frame and arbitrary sections. If a shard accepts
// the entry, a snapshot restores the same state.
func FuzzEntryOfKinds(f *testing.F) {
	for i, kind := range shardKinds {
		f.Add(uint8(i), goldenSections(kind))
	}
	f.Fuzz(func(t *testing.T, which uint8, sections []byte) {
		kind := shardKinds[int(which)%len(shardKinds)]
		m := All.New(kind, raftfsm.Places{})
		if err := rafttest.ApplyError(m, rafttest.Command(1, codec.AppendChecksum(append(codec.BeginEntry(nil, kind, 3), sections...)))); err != nil {
			if m.State().Rows > 0 {
				t.Fatalf("%d rows of an entry that was refused", m.State().Rows)
			}
			return
		}
		again := All.New(kind, raftfsm.Places{})
		if err := rafttest.Restore(again, rafttest.Persisted(t, m)); err != nil || again.State().Digest != m.State().Digest || again.State().Rows != m.State().Rows {
			t.Fatalf("restored %+v, %v; was %+v", again.State(), err, m.State())
		}
	})
}

// FuzzSnapshotOfKinds restores streams with a valid head and an arbitrary section. If Restore
// accepts a stream, VisitSnapshot accepts it too, and a new snapshot of the restored state has the
// same digest.
func FuzzSnapshotOfKinds(f *testing.F) {
	for i, kind := range shardKinds {
		m := goldenMachine(f, kind)
		for _, section := range rafttest.SectionsOf(f, rafttest.Persisted(f, m)) {
			f.Add(uint8(i), section[0], rafttest.PayloadOf(section), m.State().Rows, m.State().Digest)
		}
	}
	once := rafttest.SectionsOf(f, rafttest.Persisted(f, counters.New(raftfsm.Places{})))
	f.Fuzz(func(t *testing.T, which, section uint8, payload []byte, rows, digest uint64) {
		kind := shardKinds[int(which)%len(shardKinds)]
		parts := []rafttest.Part{{Kind: section, Payload: payload}}
		for _, s := range once[len(once)-4 : len(once)-1] {
			parts = append(parts, rafttest.Part{Kind: s[0], Payload: rafttest.PayloadOf(s)})
		}
		stream := rafttest.StreamOf(kind, 9, parts, rows, digest)
		m := All.New(kind, raftfsm.Places{})
		if err := rafttest.Restore(m, stream); err != nil {
			if !errors.Is(err, codec.ErrSnapshot) {
				t.Fatal(err)
			}
			return
		}
		if _, err := All.VisitSnapshot(bytes.NewReader(stream), kind, codec.Whole, raftfsm.SnapshotVisitor{}); err != nil {
			t.Fatalf("restored, and not visited: %v", err)
		}
		again := All.New(kind, raftfsm.Places{})
		if err := rafttest.Restore(again, rafttest.Persisted(t, m)); err != nil || again.State().Digest != digest {
			t.Fatalf("restored again: %v", err)
		}
	})
}

// Only counters have cold rows. Restore refuses a stream of another kind whose head names or carries cold rows.
// It also refuses a section of cold rows in a stream whose head has none.
func TestOtherKindsHaveNoColdRows(t *testing.T) {
	for _, kind := range shardKinds {
		m := goldenMachine(t, kind)
		stream := rafttest.Persisted(t, m)
		if err := rafttest.Restore(All.New(kind, raftfsm.Places{}), rafttest.WithCold(t, stream, 0)); err != nil {
			t.Errorf("%s without cold rows: %v", kind, err)
		}
		for _, cold := range []byte{1, 2} {
			mustBeRefused(t, kind, rafttest.WithCold(t, stream, cold))
		}
		sections := rafttest.SectionsOf(t, stream)
		for _, section := range []byte{codec.StreamCold, codec.StreamCarried, codec.StreamBlock} {
			parts := []rafttest.Part{{Kind: section, Payload: make([]byte, 40)}}
			for _, s := range sections[1 : len(sections)-1] {
				parts = append(parts, rafttest.Part{Kind: s[0], Payload: rafttest.PayloadOf(s)})
			}
			mustBeRefused(t, kind, rafttest.StreamOf(kind, 1, parts, m.State().Rows, m.State().Digest))
			if err := rafttest.Restore(All.New(kind, raftfsm.Places{}), rafttest.StreamOf(kind, 1, parts[1:], m.State().Rows, m.State().Digest)); err != nil {
				t.Errorf("%s without section %d: %v", kind, section, err)
			}
		}
	}
}

func mustBeRefused(t *testing.T, kind codec.Kind, stream []byte) {
	t.Helper()
	if err := rafttest.Restore(All.New(kind, raftfsm.Places{}), stream); !errors.Is(err, codec.ErrSnapshot) {
		t.Errorf("%s restored: %v", kind, err)
	}
	if _, err := All.VisitSnapshot(bytes.NewReader(stream), kind, codec.Whole, raftfsm.SnapshotVisitor{}); !errors.Is(err, codec.ErrSnapshot) {
		t.Errorf("%s visited: %v", kind, err)
	}
}
