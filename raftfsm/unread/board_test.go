package unread

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

func boardOf(t *testing.T, ops ...BoardOp) (*BoardMachine, []*raftfsm.Result) {
	t.Helper()
	b, results := NewBoard(), []*raftfsm.Result(nil)
	for i := range ops {
		results = append(results, applyBoard(b, dedup.RequestID{}, &ops[i]))
	}
	return b, results
}

func applyBoard(b *BoardMachine, id dedup.RequestID, op *BoardOp) *raftfsm.Result {
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &id)
	op.AppendTo(&w, 0, 0)
	entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindBoard, 2), time.UnixMilli(1000), dedup.Limits{KeyHorizon: 10 * time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 5})
	return b.Apply(&raft.Log{Index: b.Applied() + 1, Type: raft.LogCommand, Data: codec.AppendChecksum(append(entry, w.Section()...))}).(*raftfsm.Result)
}

// A repeated publish returns the number of its own notice, even after other publishes and after a
// restart.
func TestRepeatedPublishLearnsItsNotice(t *testing.T) {
	b := NewBoard()
	publish := &BoardOp{Kind: Publish, Name: "news"}
	first := dedup.ByKey([]byte("first"))
	for range 3 {
		applyBoard(b, dedup.RequestID{}, publish)
	}
	if r := applyBoard(b, first, publish); r.Rows[1] != 4 {
		t.Fatalf("published as %d", r.Rows[1])
	}
	applyBoard(b, dedup.ByProducer([]byte("p"), 9), publish)
	applyBoard(b, dedup.RequestID{}, publish)
	restored := NewBoard()
	if err := rafttest.Restore(restored, rafttest.Persisted(t, b)); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*BoardMachine{"as it was": b, "restored": restored} {
		if r := applyBoard(b, first, publish); r.Outcome(0) != dedup.Duplicate || r.Rows[1] != 4 {
			t.Errorf("%s: by its key it is %d, outcome %d", name, r.Rows[1], r.Outcome(0))
		}
		if r := applyBoard(b, dedup.ByProducer([]byte("p"), 9), publish); r.Outcome(0) != dedup.Duplicate || r.Rows[1] != 5 {
			t.Errorf("%s: by its producer it is %d, outcome %d", name, r.Rows[1], r.Outcome(0))
		}
		if latest := b.View().Channels["news"].Latest; latest != 6 {
			t.Errorf("%s: %d notices", name, latest)
		}
	}
}

// A repeat of a refused retract returns the refusal of the first request, even if the board has
// changed since, and after a restart. If the board no longer remembers the answer, the current
// notices determine the refusal.
func TestRepeatedRetractLearnsItsRefusal(t *testing.T) {
	full := &Channel{Number: 1, Latest: 4*RetractedMax + 10}
	for seq := int64(2); len(full.Retracted) < RetractedMax; seq += 2 {
		full.Retracted = append(full.Retracted, seq)
	}
	b, _ := boardOf(t, BoardOp{Kind: PutChannel, Name: "n", Channel: full})
	ops := map[BoardRefusal]*BoardOp{
		RefusedFull:    {Kind: Retract, Name: "n", Seq: full.Latest},
		RefusedMissing: {Kind: Retract, Name: "n", Seq: full.Latest + 1},
	}
	first := func(why BoardRefusal) dedup.RequestID { return dedup.ByKey([]byte{'k', why}) }
	for why, op := range ops {
		if r := applyBoard(b, first(why), op); len(r.Overflows) != 1 || r.Overflows[0].Column != why {
			t.Fatalf("first: %+v, want %d", r.Overflows, why)
		}
	}
	applyBoard(b, dedup.RequestID{}, &BoardOp{Kind: Publish, Name: "n"})         // now the notice of the second op exists
	applyBoard(b, dedup.RequestID{}, &BoardOp{Kind: Retract, Name: "n", Seq: 1}) // now Retracted is not full
	restored := NewBoard()
	if err := rafttest.Restore(restored, rafttest.Persisted(t, b)); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*BoardMachine{"as it was": b, "restored": restored} {
		for why, op := range ops {
			if r := applyBoard(b, first(why), op); r.Outcome(0) != dedup.Refused || op.RepeatedRefusal(r.Rows[1]) != why {
				t.Errorf("%s: refused for %d, repeated: outcome %d, value %d", name, why, r.Outcome(0), r.Rows[1])
			}
		}
	}
	for value, want := range map[int64]BoardRefusal{full.Latest: RefusedMissing, full.Latest + 1: RefusedFull} {
		if got := ops[RefusedMissing].RepeatedRefusal(value); got != want {
			t.Errorf("forgotten, with %d notices: %d, want %d", value, got, want)
		}
	}
}

// Unread does not count retracted notices. Once all notices up to a number are retracted, Retracted
// no longer contains them.
func TestRetractedNotices(t *testing.T) {
	ops := slices.Repeat([]BoardOp{{Kind: Publish, Name: "n"}}, 6)
	for _, seq := range []int64{2, 5, 2, 1, 6} {
		ops = append(ops, BoardOp{Kind: Retract, Name: "n", Seq: seq})
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

// MakeChannel and MakeDot create a channel or dot without a notice or a firing. If it exists, they
// do not change it. The encodings of these ops must not change.
func TestChannelsAndDotsAreMade(t *testing.T) {
	making := []BoardOp{{Kind: MakeChannel, Name: "news"}, {Kind: MakeDot, Name: "shop"}}
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
	for _, op := range []BoardOp{{Kind: Publish, Name: "news"}, {Kind: SetDot, Name: "shop"}, {Kind: Fire, Name: "shop"}} {
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
	if restored := NewBoard(); rafttest.Restore(restored, rafttest.Persisted(t, b)) != nil || restored.State().Digest != was {
		t.Errorf("restored %+v", restored.View())
	}
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	for i := range making {
		making[i].AppendTo(&w, 0, 0)
	}
	rafttest.Golden(t, "entry-board-making.bin", codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindBoard, 4), w.Section()...)))
}

func TestBoardIsBounded(t *testing.T) {
	t.Parallel()
	var ops []BoardOp
	kinds := []BoardOpKind{Publish, Fire, SetDot, MakeChannel, MakeDot}
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
	b, _ = boardOf(t, BoardOp{Kind: PutChannel, Name: "n", Channel: &Channel{Number: 1, Latest: 4*RetractedMax + 10}})
	for i := range int64(RetractedMax) {
		applyBoard(b, dedup.RequestID{}, &BoardOp{Kind: Retract, Name: "n", Seq: 2*i + 2})
	}
	for seq, refused := range map[int64]int{3*RetractedMax + 1: 1, 2: 0} {
		if r := applyBoard(b, dedup.RequestID{}, &BoardOp{Kind: Retract, Name: "n", Seq: seq}); len(r.Overflows) != refused {
			t.Errorf("retracting %d: %+v", seq, r.Overflows)
		}
	}
	if r := applyBoard(b, dedup.RequestID{}, &BoardOp{Kind: Retract, Name: "n", Seq: 1}); len(r.Overflows) != 0 || b.View().Channels["n"].Floor != 2 {
		t.Errorf("the first makes room: %+v, %+v", r.Overflows, b.View().Channels["n"].Floor)
	}
}
