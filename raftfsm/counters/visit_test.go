package counters

import (
	"bytes"
	"errors"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/rows"
)

// rebuilt returns the table that the pages of a snapshot make.
func rebuilt(stream []byte) (*engine.Table, raftfsm.SnapshotFacts, error) {
	table := engine.New()
	facts, err := self.VisitSnapshot(bytes.NewReader(stream), codec.KindCounters, codec.Whole, raftfsm.SnapshotVisitor{Rows: func(_ raftfsm.Table, p *engine.Page) error { return table.Load(p) }})
	return table, facts, err
}

func TestVisitedRowsMakeTheTable(t *testing.T) {
	for name, rows := range map[string]int{"empty": 0, "one": 1, "many": 3 * 1 << 15} {
		t.Run(name, func(t *testing.T) {
			c := filledCounters(t, rows)
			table, facts, err := rebuilt(rafttest.Persisted(t, c))
			if err != nil {
				t.Fatal(err)
			}
			state := c.State()
			if want := (raftfsm.SnapshotFacts{Index: state.Index, Route: codec.Whole, Rows: state.Rows, Digest: state.Digest}); facts != want || table.Digest() != want.Digest {
				t.Errorf("facts %+v, want %+v; the rows make digest %016x", facts, want, table.Digest())
			}
		})
	}
}

func TestVisitRefusesDamage(t *testing.T) {
	snapshot := rafttest.Persisted(t, goldenCounters(t))
	for i := range snapshot {
		flipped := bytes.Clone(snapshot)
		flipped[i] ^= 1 << (i % 8)
		for name, stream := range map[string][]byte{"cut": snapshot[:i], "flipped": flipped} {
			if _, err := self.VisitSnapshot(bytes.NewReader(stream), codec.KindCounters, codec.Whole, raftfsm.SnapshotVisitor{}); !errors.Is(err, codec.ErrSnapshot) {
				t.Fatalf("%s at %d: %v", name, i, err)
			}
		}
	}
}

func TestVisitEndsWithTheVisitorsError(t *testing.T) {
	enough := errors.New("enough")
	_, err := self.VisitSnapshot(bytes.NewReader(rafttest.Persisted(t, filledCounters(t, 3))), codec.KindCounters, codec.Whole,
		raftfsm.SnapshotVisitor{Rows: func(raftfsm.Table, *engine.Page) error { return enough }})
	if !errors.Is(err, enough) || errors.Is(err, codec.ErrSnapshot) {
		t.Errorf("got %v", err)
	}
}

// FuzzVisitSnapshot compares VisitSnapshot with Restore for two sections of any bytes, between a valid head
// and a valid request memory. VisitSnapshot accepts every stream that Restore accepts, and returns the same
// facts.
func FuzzVisitSnapshot(f *testing.F) {
	c := goldenCounters(f)
	hot := []byte(nil)
	_ = c.Table().Snapshot().Pages(func(p *engine.Page) error { hot = rows.AppendRows(hot, p, 0, len(p.IDs)); return nil })
	once := rafttest.SectionsOf(f, rafttest.Persisted(f, c))
	f.Add(uint64(3), uint8(codec.StreamRows), hot, uint8(codec.StreamRows), []byte{}, c.State().Rows, c.Table().Digest())
	f.Fuzz(func(t *testing.T, index uint64, kind1 uint8, one []byte, kind2 uint8, two []byte, count, digest uint64) {
		for _, parts := range [][]rafttest.Part{{{Kind: kind1, Payload: one}}, {{Kind: kind1, Payload: one}, {Kind: kind2, Payload: two}}} {
			for _, section := range once[len(once)-4 : len(once)-1] {
				parts = append(parts, rafttest.Part{Kind: section[0], Payload: rafttest.PayloadOf(section)})
			}
			stream := rafttest.StreamOf(codec.KindCounters, index, parts, count, digest)
			table, facts, err := rebuilt(stream)
			c := newCounters(t)
			if rafttest.Restore(c, stream) != nil {
				continue
			}
			if state := c.State(); err != nil || facts != (raftfsm.SnapshotFacts{Index: state.Index, Route: codec.Whole, Rows: state.Rows, Digest: state.Digest}) || table.Digest() != state.Digest {
				t.Fatalf("%+v, %v, restored %+v", facts, err, state)
			}
		}
	})
}
