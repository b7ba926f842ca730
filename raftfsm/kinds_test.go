package raftfsm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/codec/codectest"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

// shardKinds are all kinds except counters.
var shardKinds = []codec.Kind{codec.KindUnread, codec.KindFeed, codec.KindBoard}

func cursorOp(kind engine.OpKind, number uint8, at int64) *engine.Op {
	return &engine.Op{Kind: kind, Cells: []engine.Cell{{Column: number, Value: at}}}
}

// goldenRequest writes each op of a kind into a request.
func goldenRequest(kind codec.Kind, w *RequestWriter) {
	switch kind {
	case codec.KindUnread:
		w.TableOp(TableCounts, 7, &engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 1, Value: 5}, {Column: 4, Value: -1}}})
		w.TableOp(TableCounts, 7, &engine.Op{Kind: engine.OpTake, Cells: []engine.Cell{{Column: 1, Value: 3}}})
		w.TableOp(TableCounts, 8, &engine.Op{Kind: engine.OpSet, Cells: []engine.Cell{{Column: 0, Value: 70_000}}})
		w.TableOp(TableCounts, 9, &engine.Op{Kind: engine.OpDelete})
		w.TableOp(TableCursors, 7, cursorOp(CursorRaise, 1, 13))
		w.TableOp(TableCursors, 7, cursorOp(CursorBegin, 2, 1))
		w.TableOp(TableCursors, 8, cursorOp(engine.OpSet, CursorDay, 19_000))
		w.Sweep(CursorIdleMin, 100)
	case codec.KindFeed:
		w.Feed(7, &FeedOp{Kind: FeedReset, Followees: []Followee{{2, 6}, {3, 7}, {1 << 40, -4}}})
		w.Feed(7, &FeedOp{Kind: FeedFollow, Followees: []Followee{{1, 100}, {3, 50}}})
		w.Feed(7, &FeedOp{Kind: FeedUnfollow, Followees: []Followee{{2, 0}}})
		w.Feed(7, &FeedOp{Kind: FeedRead, Followees: []Followee{{1, 101}}})
		w.Feed(9, &FeedOp{Kind: FeedReset, Followees: []Followee{{0, 0}}})
	case codec.KindBoard:
		for range 3 {
			w.Board(&BoardOp{Kind: BoardPublish, Name: "news"})
		}
		w.Board(&BoardOp{Kind: BoardRetract, Name: "news", Seq: 2})
		w.Board(&BoardOp{Kind: BoardFire, Name: "shop"})
		w.Board(&BoardOp{Kind: BoardDot, Name: "me"})
		w.Board(&BoardOp{Kind: BoardPutChannel, Name: "ads", Channel: &Channel{Number: 60, Latest: 9, Floor: 1, Retracted: []int64{3, 5}}})
		w.Board(&BoardOp{Kind: BoardPutDot, Name: "old", Dot: &Dot{Number: 61, Fired: 4}})
	}
}

func goldenSections(kind codec.Kind) []byte {
	id := dedup.ByKey([]byte("k"), []byte("body"))
	var w RequestWriter
	w.Reset(nil, codectest.Whole, &id)
	goldenRequest(kind, &w)
	return append(dedup.AppendClock(nil, time.UnixMilli(20_000*dayMillis), testLimits), w.Section()...)
}

func goldenMachine(t testing.TB, kind codec.Kind) Machine {
	t.Helper()
	m := New(kind)
	r := m.Apply(codectest.Command(1, codec.AppendChecksum(append(codec.BeginEntry(nil, kind, 4), goldenSections(kind)...)))).(*Result)
	if r.Outcome(0) != dedup.Applied || len(r.Overflows) > 0 {
		t.Fatalf("%s: %+v", kind, r)
	}
	return m
}

// The bytes of entries and snapshots must not change.
func TestGoldenBytesOfKinds(t *testing.T) {
	for _, kind := range shardKinds {
		t.Run(kind.String(), func(t *testing.T) {
			codectest.Golden(t, fmt.Sprintf("entry-%s.bin", kind), codec.AppendChecksum(append(codec.BeginEntry(nil, kind, 4), goldenSections(kind)...)))
			m := goldenMachine(t, kind)
			snapshot := codectest.Persisted(t, m)
			codectest.Golden(t, fmt.Sprintf("snapshot-%s.bin", kind), snapshot)
			again := New(kind)
			if err := codectest.Restore(again, snapshot); err != nil || again.State().Digest != m.State().Digest || again.State().Digest == 0 {
				t.Errorf("restored %+v, %v; was %+v", again.State(), err, m.State())
			}
			facts, err := VisitSnapshot(bytes.NewReader(snapshot), kind, codectest.Whole, SnapshotVisitor{})
			if s := m.State(); err != nil || facts != (SnapshotFacts{Index: s.Index, Rows: s.Rows, Digest: s.Digest}) {
				t.Errorf("visited %+v, %v; state %+v", facts, err, s)
			}
		})
	}
}

// Restore refuses a snapshot that is cut anywhere or has a flipped bit.
func TestKindsRefuseDamage(t *testing.T) {
	t.Parallel()
	for _, kind := range shardKinds {
		snapshot := codectest.Persisted(t, goldenMachine(t, kind))
		for i := range snapshot {
			flipped := bytes.Clone(snapshot)
			flipped[i] ^= 1 << (i % 8)
			for name, stream := range map[string][]byte{"cut": snapshot[:i], "flipped": flipped} {
				if err := codectest.Restore(New(kind), stream); !errors.Is(err, codec.ErrSnapshot) {
					t.Fatalf("%s: %s at %d: %v", kind, name, i, err)
				}
			}
		}
		for _, other := range append(shardKinds, codec.KindCounters) {
			if err := codectest.Restore(New(other), snapshot); (err == nil) != (other == kind) {
				t.Errorf("a snapshot of %s restored as %s: %v", kind, other, err)
			}
		}
	}
}

// CheckSection accepts every section that a RequestWriter makes. A section that it refuses would stop a
// replica.
func TestCheckSectionOfKinds(t *testing.T) {
	for _, kind := range shardKinds {
		id := dedup.ByProducer([]byte("p"), 1)
		var w RequestWriter
		w.Reset(nil, codectest.Whole, &id)
		goldenRequest(kind, &w)
		seen := 0
		ops, clocked, err := CheckSection(kind, codectest.Whole, w.Section(), SectionVisitor{
			Op:   func(Table, uint64, *engine.Op) error { seen++; return nil },
			Feed: func(uint64, *FeedOp) error { seen++; return nil },
		})
		if err != nil || !clocked || ops != w.Ops() || kind != codec.KindBoard && seen != ops {
			t.Errorf("%s: %d of %d ops, %d seen, %v", kind, ops, w.Ops(), seen, err)
		}
		for _, other := range append(shardKinds, codec.KindCounters) {
			if _, _, err := CheckSection(other, codectest.Whole, w.Section(), SectionVisitor{}); other != kind && !errors.Is(err, codec.ErrEntry) {
				t.Errorf("a section of %s taken for %s: %v", kind, other, err)
			}
		}
		w.Reset(nil, codectest.Whole, &dedup.RequestID{})
		goldenRequest(kind, &w)
		if _, clocked, err := CheckSection(kind, codectest.Whole, w.Section(), SectionVisitor{}); err != nil || clocked != (kind == codec.KindUnread) {
			t.Errorf("%s without an identity: clocked %v, %v", kind, clocked, err)
		}
	}
}

// Cursors store the day, so their entry needs the time.
func TestCursorsNeedAClock(t *testing.T) {
	var w RequestWriter
	for name, fill := range map[string]func(){
		"raise": func() { w.TableOp(TableCursors, 1, cursorOp(CursorRaise, 1, 1)) },
		"sweep": func() { w.Sweep(CursorIdleMin, 1) },
	} {
		w.Reset(nil, codectest.Whole, &dedup.RequestID{})
		fill()
		entry := codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindUnread, 0), w.Section()...))
		if err := codectest.ApplyError(NewUnread(), codectest.Command(1, entry)); err == nil {
			t.Errorf("%s was applied without a clock", name)
		}
	}
}

func TestWriterPanicsOnWhatHasNoForm(t *testing.T) {
	two := []Followee{{2, 0}, {2, 0}}
	for name, fill := range map[string]func(w *RequestWriter){
		"a take of counters":  func(w *RequestWriter) { w.Op(1, cursorOp(engine.OpTake, 0, 1)) },
		"a take below 0":      func(w *RequestWriter) { w.TableOp(TableCounts, 1, cursorOp(engine.OpTake, 0, -1)) },
		"a cursor on the day": func(w *RequestWriter) { w.TableOp(TableCursors, 1, cursorOp(CursorRaise, CursorDay, 1)) },
		"a cursor at 0":       func(w *RequestWriter) { w.TableOp(TableCursors, 1, cursorOp(CursorBegin, 1, 0)) },
		"followees twice":     func(w *RequestWriter) { w.Feed(1, &FeedOp{Kind: FeedReset, Followees: two}) },
		"too many followees": func(w *RequestWriter) {
			w.Feed(1, &FeedOp{Kind: FeedRead, Followees: make([]Followee, FolloweesMax+1)})
		},
		"no kind of feed op":       func(w *RequestWriter) { w.Feed(1, &FeedOp{}) },
		"a channel without a name": func(w *RequestWriter) { w.Board(&BoardOp{Kind: BoardPublish}) },
		"an empty put":             func(w *RequestWriter) { w.Board(&BoardOp{Kind: BoardPutDot, Name: "a"}) },
		"a sweep of nothing":       func(w *RequestWriter) { w.Sweep(CursorIdleMin, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			mustNotBeWritten(t, fill)
		})
	}
}

// FuzzEntryOfKinds applies sections of any bytes in a valid frame. They are refused, or applied so
// that a snapshot restores the same state.
func FuzzEntryOfKinds(f *testing.F) {
	for i, kind := range shardKinds {
		f.Add(uint8(i), goldenSections(kind))
	}
	f.Fuzz(func(t *testing.T, which uint8, sections []byte) {
		kind := shardKinds[int(which)%len(shardKinds)]
		m := New(kind)
		if err := codectest.ApplyError(m, codectest.Command(1, codec.AppendChecksum(append(codec.BeginEntry(nil, kind, 3), sections...)))); err != nil {
			if m.State().Rows > 0 {
				t.Fatalf("%d rows of an entry that was refused", m.State().Rows)
			}
			return
		}
		again := New(kind)
		if err := codectest.Restore(again, codectest.Persisted(t, m)); err != nil || again.State().Digest != m.State().Digest || again.State().Rows != m.State().Rows {
			t.Fatalf("restored %+v, %v; was %+v", again.State(), err, m.State())
		}
	})
}

// FuzzSnapshotOfKinds feeds a section of any bytes behind a valid head. What Restore accepts can be
// visited, and is the same when it is written again.
func FuzzSnapshotOfKinds(f *testing.F) {
	for i, kind := range shardKinds {
		m := goldenMachine(f, kind)
		for _, section := range codectest.SectionsOf(f, codectest.Persisted(f, m)) {
			f.Add(uint8(i), section[0], section[codec.SectionHeadSize:len(section)-codec.ChecksumSize], m.State().Rows, m.State().Digest)
		}
	}
	once := codectest.SectionsOf(f, codectest.Persisted(f, NewCounters(Tiers{})))
	f.Fuzz(func(t *testing.T, which, section uint8, payload []byte, rows, digest uint64) {
		kind := shardKinds[int(which)%len(shardKinds)]
		parts := []codectest.Part{{Kind: section, Payload: payload}}
		for _, s := range once[len(once)-4 : len(once)-1] {
			parts = append(parts, codectest.Part{Kind: s[0], Payload: s[codec.SectionHeadSize : len(s)-codec.ChecksumSize]})
		}
		stream := codectest.StreamOf(kind, 9, parts, rows, digest)
		m := New(kind)
		if err := codectest.Restore(m, stream); err != nil {
			if !errors.Is(err, codec.ErrSnapshot) {
				t.Fatal(err)
			}
			return
		}
		if _, err := VisitSnapshot(bytes.NewReader(stream), kind, codectest.Whole, SnapshotVisitor{}); err != nil {
			t.Fatalf("restored, and not visited: %v", err)
		}
		again := New(kind)
		if err := codectest.Restore(again, codectest.Persisted(t, m)); err != nil || again.State().Digest != digest {
			t.Fatalf("restored again: %v", err)
		}
	})
}

func boardOf(t *testing.T, ops ...BoardOp) (*Board, []*Result) {
	t.Helper()
	b, results := NewBoard(), []*Result(nil)
	for i := range ops {
		results = append(results, applyBoard(b, dedup.RequestID{}, &ops[i]))
	}
	return b, results
}

func applyBoard(b *Board, id dedup.RequestID, op *BoardOp) *Result {
	var w RequestWriter
	w.Reset(nil, codectest.Whole, &id)
	w.Board(op)
	entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindBoard, 2), time.UnixMilli(1000), testLimits)
	return b.Apply(&raft.Log{Index: b.Applied() + 1, Type: raft.LogCommand, Data: codec.AppendChecksum(append(entry, w.Section()...))}).(*Result)
}

// A repeated publish returns the number of its own notice, also after other publishes and after a
// restart.
func TestRepeatedPublishLearnsItsNotice(t *testing.T) {
	b := NewBoard()
	publish := &BoardOp{Kind: BoardPublish, Name: "news"}
	first := dedup.ByKey([]byte("first"))
	for range 3 {
		applyBoard(b, dedup.RequestID{}, publish)
	}
	if r := applyBoard(b, first, publish); r.Rows[1] != 4 {
		t.Fatalf("published as %d", r.Rows[1])
	}
	applyBoard(b, seq("p", 9), publish)
	applyBoard(b, dedup.RequestID{}, publish)
	restored := NewBoard()
	if err := codectest.Restore(restored, codectest.Persisted(t, b)); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*Board{"as it was": b, "restored": restored} {
		if r := applyBoard(b, first, publish); r.Outcome(0) != dedup.Duplicate || r.Rows[1] != 4 {
			t.Errorf("%s: by its key it is %d, outcome %d", name, r.Rows[1], r.Outcome(0))
		}
		if r := applyBoard(b, seq("p", 9), publish); r.Outcome(0) != dedup.Duplicate || r.Rows[1] != 5 {
			t.Errorf("%s: by its producer it is %d, outcome %d", name, r.Rows[1], r.Outcome(0))
		}
		if latest := b.View().Channels["news"].Latest; latest != 6 {
			t.Errorf("%s: %d notices", name, latest)
		}
	}
}

// A repeat of a refused retract gets the refusal of the first request, also if the board has changed since,
// and after a restart. If the board no longer remembers it, the current notices decide.
func TestRepeatedRetractLearnsItsRefusal(t *testing.T) {
	full := &Channel{Number: 1, Latest: 4*RetractedMax + 10}
	for seq := int64(2); len(full.Retracted) < RetractedMax; seq += 2 {
		full.Retracted = append(full.Retracted, seq)
	}
	b, _ := boardOf(t, BoardOp{Kind: BoardPutChannel, Name: "n", Channel: full})
	ops := map[Refusal]*BoardOp{
		RefusedFull:    {Kind: BoardRetract, Name: "n", Seq: full.Latest},
		RefusedMissing: {Kind: BoardRetract, Name: "n", Seq: full.Latest + 1},
	}
	first := func(why Refusal) dedup.RequestID { return dedup.ByKey([]byte{'k', why}) }
	for why, op := range ops {
		if r := applyBoard(b, first(why), op); len(r.Overflows) != 1 || r.Overflows[0].Column != why {
			t.Fatalf("first: %+v, want %d", r.Overflows, why)
		}
	}
	applyBoard(b, dedup.RequestID{}, &BoardOp{Kind: BoardPublish, Name: "n"})         // now the channel exists
	applyBoard(b, dedup.RequestID{}, &BoardOp{Kind: BoardRetract, Name: "n", Seq: 1}) // now the list is not full
	restored := NewBoard()
	if err := codectest.Restore(restored, codectest.Persisted(t, b)); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*Board{"as it was": b, "restored": restored} {
		for why, op := range ops {
			if r := applyBoard(b, first(why), op); r.Outcome(0) != dedup.Refused || op.RepeatedRefusal(r.Rows[1]) != why {
				t.Errorf("%s: refused for %d, repeated: outcome %d, value %d", name, why, r.Outcome(0), r.Rows[1])
			}
		}
	}
	for value, want := range map[int64]Refusal{full.Latest: RefusedMissing, full.Latest + 1: RefusedFull} {
		if got := ops[RefusedMissing].RepeatedRefusal(value); got != want {
			t.Errorf("forgotten, with %d notices: %d, want %d", value, got, want)
		}
	}
}

// Retracted notices are counted by binary search. The board drops those at the front once all up to
// them are retracted.
func TestRetractedNotices(t *testing.T) {
	ops := slices.Repeat([]BoardOp{{Kind: BoardPublish, Name: "n"}}, 6)
	for _, seq := range []int64{2, 5, 2, 1, 6} {
		ops = append(ops, BoardOp{Kind: BoardRetract, Name: "n", Seq: seq})
	}
	b, _ := boardOf(t, ops...)
	c := b.View().Channels["n"]
	if c.Floor != 2 || !slices.Equal(c.Retracted, []int64{5, 6}) {
		t.Errorf("channel %+v", c)
	}
	for after, want := range []int64{2, 2, 2, 1, 0, 0, 0, 0} {
		if got := c.Unread(int64(after)); got != want {
			t.Errorf("behind %d there are %d, want %d", after, got, want)
		}
	}
	if b.State().Digest != b.View().digest() {
		t.Error("the digest is not that of the view")
	}
}

// A channel or dot is created once, without a notice or a firing. An existing one stays as it is.
// The bytes of these ops must not change.
func TestChannelsAndDotsAreMade(t *testing.T) {
	making := []BoardOp{{Kind: BoardMakeChannel, Name: "news"}, {Kind: BoardMakeDot, Name: "shop"}}
	b, results := boardOf(t, making...)
	for i, r := range results {
		if !slices.Equal(r.Rows, []int64{int64(i) + 1, 0}) || len(r.Overflows) > 0 {
			t.Errorf("op %d: %+v", i, r)
		}
	}
	view := b.View()
	if c, d := view.Channels["news"], view.Dots["shop"]; c.Number != 1 || c.Latest != 0 || d != (Dot{Number: 2, NewUsers: true}) {
		t.Errorf("made %+v and %+v", c, d)
	}
	for _, op := range []BoardOp{{Kind: BoardPublish, Name: "news"}, {Kind: BoardDot, Name: "shop"}, {Kind: BoardFire, Name: "shop"}} {
		applyBoard(b, dedup.RequestID{}, &op)
	}
	was := b.State().Digest
	for i := range making {
		if r := applyBoard(b, dedup.RequestID{}, &making[i]); !slices.Equal(r.Rows, []int64{int64(i) + 1, 1}) {
			t.Errorf("making again: %+v", r)
		}
	}
	if b.State().Digest != was || b.View().digest() != was || b.View().Dots["shop"].NewUsers {
		t.Errorf("what was there has changed: %+v", b.View())
	}
	if restored := NewBoard(); codectest.Restore(restored, codectest.Persisted(t, b)) != nil || restored.State().Digest != was {
		t.Errorf("restored %+v", restored.View())
	}
	var w RequestWriter
	w.Reset(nil, codectest.Whole, &dedup.RequestID{})
	for i := range making {
		w.Board(&making[i])
	}
	codectest.Golden(t, "entry-board-making.bin", codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindBoard, 4), w.Section()...)))
}

func TestBoardIsBounded(t *testing.T) {
	t.Parallel()
	var ops []BoardOp
	kinds := []OpKind{BoardPublish, BoardFire, BoardDot, BoardMakeChannel, BoardMakeDot}
	for i := range CursorsMax {
		ops = append(ops, BoardOp{Kind: kinds[i%len(kinds)], Name: fmt.Sprintf("n%d", i)})
	}
	b, _ := boardOf(t, ops...)
	for i, kind := range kinds {
		if r := applyBoard(b, dedup.RequestID{}, &BoardOp{Kind: kind, Name: "more"}); len(r.Overflows) != 1 || r.Overflows[0].Column != RefusedFull {
			t.Errorf("kind %d: %+v", kind, r)
		}
		if r := applyBoard(b, dedup.RequestID{}, &BoardOp{Kind: kind, Name: fmt.Sprintf("n%d", i)}); len(r.Overflows) != 0 {
			t.Errorf("kind %d of one that is there: %+v", kind, r)
		}
	}
	b, _ = boardOf(t, BoardOp{Kind: BoardPutChannel, Name: "n", Channel: &Channel{Number: 1, Latest: 4*RetractedMax + 10}})
	for i := range int64(RetractedMax) {
		applyBoard(b, dedup.RequestID{}, &BoardOp{Kind: BoardRetract, Name: "n", Seq: 2*i + 2})
	}
	for seq, refused := range map[int64]int{3*RetractedMax + 1: 1, 2: 0} {
		if r := applyBoard(b, dedup.RequestID{}, &BoardOp{Kind: BoardRetract, Name: "n", Seq: seq}); len(r.Overflows) != refused {
			t.Errorf("retracting %d: %+v", seq, r.Overflows)
		}
	}
	if r := applyBoard(b, dedup.RequestID{}, &BoardOp{Kind: BoardRetract, Name: "n", Seq: 1}); len(r.Overflows) != 0 || b.View().Channels["n"].Floor != 2 {
		t.Errorf("the first makes room: %+v, %+v", r.Overflows, b.View().Channels["n"].Floor)
	}
}

// A user follows at most FolloweesMax. An op above that changes nothing, and its repeat gets the same
// refusal.
func TestFolloweesAreBounded(t *testing.T) {
	f := NewFeed(spill.Place{})
	apply := func(id dedup.RequestID, kind OpKind, from, n int) *Result {
		op := FeedOp{Kind: kind, User: 1}
		for i := range n {
			op.Followees = append(op.Followees, Followee{uint64(from + i), 0})
		}
		var w RequestWriter
		w.Reset(nil, codectest.Whole, &id)
		w.Feed(1, &op)
		entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindFeed, 1), time.UnixMilli(1000), testLimits)
		return f.Apply(&raft.Log{Index: f.Applied() + 1, Type: raft.LogCommand, Data: codec.AppendChecksum(append(entry, w.Section()...))}).(*Result)
	}
	apply(dedup.RequestID{}, FeedReset, 0, FolloweesMax-1)
	for range 2 {
		r := apply(keyed("k", "b"), FeedFollow, FolloweesMax-2, 3)
		if r.Rows[0] != FolloweesMax-1 || len(r.Overflows) == 0 && r.Outcome(0) != dedup.Refused {
			t.Errorf("one too many: %+v", r)
		}
	}
	if r := apply(dedup.RequestID{}, FeedFollow, FolloweesMax-2, 2); r.Rows[0] != FolloweesMax || len(r.Overflows) != 0 {
		t.Errorf("the last one: %+v", r)
	}
	if r := apply(dedup.RequestID{}, FeedClear, 0, 0); f.State().Rows != 0 || f.State().Digest != 0 {
		t.Errorf("cleared: %+v, %+v", r, f.State())
	}
}
