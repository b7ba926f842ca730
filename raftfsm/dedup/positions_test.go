package dedup

import (
	"bytes"
	"testing"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/source/sink"
)

func somePositions() (all []PositionRecord) {
	for i := uint64(1); i < 4; i++ {
		all = append(all, PositionRecord{PositionKey{i, uint32(i)}, Checkpoint{1, sink.Position{Hi: i, Lo: ^i}, sink.Mark{Position: sink.Position{Lo: i}, Sum: i}}})
	}
	return all
}

// digestOf returns what positions add to the digest of a group that is not closed.
func digestOf(all []PositionRecord) (digest uint64) {
	for _, r := range all {
		digest += r.digest()
	}
	return digest
}

// Positions are loaded only from bytes that a snapshot of them would have.
func FuzzPositions(f *testing.F) {
	o := New()
	o.positions.restore(&RestoredPositions{Closed: true, All: somePositions()})
	o.positions.forget(7)
	f.Add(o.positions.appendTo(nil))
	f.Fuzz(func(t *testing.T, section []byte) {
		p := newPositions()
		if p.load(section) != nil {
			return
		}
		if again := p.appendTo(nil); !bytes.Equal(again, section) {
			t.Fatalf("% x was taken for % x", section, again)
		}
		digest := p.digest
		if p.setClosed(false); digest-ClosedDigest*uint64(section[0]) != p.digest || p.digest != digestOf(p.records()) {
			t.Fatalf("digest %016x", digest)
		}
	})
}

// The identity of a section is parsed only from bytes that its encoding would have.
func FuzzSourceIdentity(f *testing.F) {
	for _, id := range []RequestID{
		BySource(SourceSection{PositionKey: PositionKey{1, 2}, Mode: SectionAdvance, Epoch: 3, Prev: sink.Position{Lo: 4}, Next: sink.Position{Hi: 5}, Mark: sink.Mark{Position: sink.Position{Hi: 4, Lo: 9}, Sum: 6}}),
		BySource(SourceSection{PositionKey: PositionKey{1, 2}, Mode: SectionBegin, Epoch: 3, Since: 2, Next: sink.Position{Hi: 5}}),
		ByRestorePositions(9, RestoredPositions{Closed: true, All: somePositions()}),
	} {
		f.Add(id.kind == bySource, append(id.AppendTo(nil), 0, 0, 0, 0))
	}
	f.Fuzz(func(t *testing.T, source bool, p []byte) {
		kind := byte(codec.SectionPositions)
		if source {
			kind = codec.SectionSource
		}
		id, rest, err := ParseIdentity(kind, p)
		if err != nil {
			return
		}
		if again := append(id.AppendTo(nil), rest...); !bytes.Equal(again, p) || !id.Exists() || !id.MovesPositions() || id.Section() != kind {
			t.Fatalf("% x was taken for % x", p, again)
		}
	})
}

// A group remembers the last deletedMax deleted sources, and refuses more than PositionsMax
// positions.
func TestPositionsAreBounded(t *testing.T) {
	p := newPositions()
	for source := range uint64(deletedMax + 5) {
		p.forget(source)
		p.forget(source)
	}
	if len(p.deleted) != deletedMax || p.deleted[0] != 5 {
		t.Errorf("%d deleted sources from %d on", len(p.deleted), p.deleted[0])
	}
	for i := range uint32(PositionsMax) {
		p.at[PositionKey{1 << 40, i}] = Checkpoint{Epoch: 1}
	}
	begin := SourceSection{PositionKey: PositionKey{Source: 1 << 41}, Mode: SectionBegin, Epoch: 1}
	if p.judge(&begin) != Moved {
		t.Error("one position too many began")
	}
	if begin.Source, begin.Epoch = 1<<40, 2; p.judge(&begin) != Applied {
		t.Error("a known position did not begin anew")
	}
}
