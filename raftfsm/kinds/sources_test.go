package kinds

import (
	"bytes"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/source/sink"
)

// sourceEntry returns an entry of requests. Each request has an op for each of its deltas, which
// adds the delta to column 0 of key 1.
func sourceEntry(kind codec.Kind, requests ...sums) []byte {
	entry := dedup.AppendClock(codec.BeginEntry(nil, kind, 1), time.UnixMilli(1), testLimits)
	for _, r := range requests {
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &r.id)
		for _, delta := range r.deltas {
			op := &engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: delta}}}
			counters.Ops{*op}.AppendTo(&w, 1, 0)
		}
		entry = append(entry, w.Section()...)
	}
	return codec.AppendChecksum(entry)
}

func at(lo uint64) sink.Position { return sink.Position{Lo: lo} }

func section(mode dedup.SectionMode, source uint64, epoch uint32, prev, next uint64) dedup.RequestID {
	s := dedup.SourceSection{PositionKey: dedup.PositionKey{Source: source}, Mode: mode, Epoch: epoch, Next: at(next)}
	if s.Mode == dedup.SectionAdvance {
		s.Prev = at(prev)
	} else {
		s.Since = uint32(prev)
	}
	return dedup.BySource(s)
}

// A section is applied once, even if its copies are in the same entry or come after a restart. It
// is not applied after a seek, after a deletion of the source, or while the shard is being
// restored.
func TestSectionIsAppliedOnce(t *testing.T) {
	for _, kind := range []codec.Kind{codec.KindCounters, codec.KindUnread} {
		t.Run(kind.String(), func(t *testing.T) {
			m, index, total := All.New(kind, raftfsm.Places{}), uint64(0), int64(0)
			do := func(id dedup.RequestID, delta int64, want dedup.Outcome, checkpoint dedup.Checkpoint) {
				t.Helper()
				index++
				var deltas []int64
				if delta != 0 {
					deltas = []int64{delta}
				}
				r := m.Apply(rafttest.Command(index, sourceEntry(kind, summed(id, deltas...)))).(*raftfsm.Result)
				if want == dedup.Applied {
					total += delta
				}
				got, ok := r.Position(0)
				if r.Outcome(0) != want || !ok || got.Checkpoint != checkpoint {
					t.Errorf("outcome %d at %+v, want %d at %+v", r.Outcome(0), got, want, checkpoint)
				}
				if len(r.Rows) > 0 && r.Rows[0] != total {
					t.Errorf("count %d, want %d", r.Rows[0], total)
				}
				again := All.New(kind, raftfsm.Places{})
				if err := rafttest.Restore(again, rafttest.Persisted(t, m)); err != nil || again.State() != m.State() {
					t.Fatalf("restored %+v, %v; was %+v", again.State(), err, m.State())
				}
				m = again
			}
			do(section(dedup.SectionAdvance, 1, 1, 0, 5), 1, dedup.Moved, dedup.Checkpoint{})
			do(section(dedup.SectionBegin, 1, 1, 0, 5), 0, dedup.Applied, dedup.Checkpoint{Epoch: 1, At: at(5)})
			do(section(dedup.SectionBegin, 1, 1, 0, 3), 0, dedup.Moved, dedup.Checkpoint{Epoch: 1, At: at(5)})
			do(section(dedup.SectionAdvance, 1, 1, 5, 9), 10, dedup.Applied, dedup.Checkpoint{Epoch: 1, At: at(9)})
			do(section(dedup.SectionAdvance, 1, 1, 5, 9), 10, dedup.Moved, dedup.Checkpoint{Epoch: 1, At: at(9)})
			do(section(dedup.SectionRead, 1, 0, 0, 0), 0, dedup.Moved, dedup.Checkpoint{Epoch: 1, At: at(9)})
			do(section(dedup.SectionBegin, 1, 2, 0, 5), 0, dedup.Applied, dedup.Checkpoint{Epoch: 2, At: at(5)})
			do(section(dedup.SectionAdvance, 1, 1, 5, 9), 10, dedup.Moved, dedup.Checkpoint{Epoch: 2, At: at(5)})
			do(section(dedup.SectionAdvance, 1, 2, 5, 9), 10, dedup.Applied, dedup.Checkpoint{Epoch: 2, At: at(9)})
			do(section(dedup.SectionRead, 1, 4, 4, 0), 0, dedup.Moved, dedup.Checkpoint{Epoch: 2, At: at(9)}) // it was sought
			do(section(dedup.SectionRead, 1, 3, 2, 0), 0, dedup.Applied, dedup.Checkpoint{Epoch: 3, At: at(9)})
			do(section(dedup.SectionRead, 1, 2, 2, 0), 0, dedup.Moved, dedup.Checkpoint{Epoch: 3, At: at(9)})
			do(section(dedup.SectionAdvance, 1, 2, 9, 12), 10, dedup.Moved, dedup.Checkpoint{Epoch: 3, At: at(9)})
			do(section(dedup.SectionBegin, 1, 4, 2, 7), 0, dedup.Applied, dedup.Checkpoint{Epoch: 4, At: at(9)})
			do(section(dedup.SectionBegin, 1, 6, 6, 7), 0, dedup.Applied, dedup.Checkpoint{Epoch: 6, At: at(7)})
			if got := m.Sources(); !slices.Equal(got, []uint64{1}) {
				t.Errorf("sources %v", got)
			}
			do(section(dedup.SectionForget, 1, 0, 0, 0), 0, dedup.Applied, dedup.Checkpoint{})
			do(section(dedup.SectionBegin, 1, 2, 0, 5), 0, dedup.Moved, dedup.Checkpoint{})
			do(section(dedup.SectionBegin, 2, 1, 0, 0), 0, dedup.Applied, dedup.Checkpoint{Epoch: 1})
			do(section(dedup.SectionAdvance, 2, 1, 0, 4), 10, dedup.Applied, dedup.Checkpoint{Epoch: 1, At: at(4)})

			restored := []dedup.PositionRecord{
				{PositionKey: dedup.PositionKey{Source: 1}, Checkpoint: dedup.Checkpoint{Epoch: 2, At: at(1)}}, // it was deleted
				{PositionKey: dedup.PositionKey{Source: 2}, Checkpoint: dedup.Checkpoint{Epoch: 1, At: at(2)}},
			}
			set := func(seq uint64, p dedup.RestoredPositions, want dedup.Outcome) {
				t.Helper()
				index++
				if r := m.Apply(rafttest.Command(index, sourceEntry(kind, summed(dedup.ByRestorePositions(seq, p))))).(*raftfsm.Result); r.Outcome(0) != want {
					t.Errorf("outcome %d of a restore, want %d", r.Outcome(0), want)
				}
			}
			set(7, dedup.RestoredPositions{Closed: true}, dedup.Applied)
			do(section(dedup.SectionBegin, 2, 1, 0, 0), 0, dedup.Moved, dedup.Checkpoint{})
			set(8, dedup.RestoredPositions{All: restored}, dedup.Applied)
			set(7, dedup.RestoredPositions{Closed: true}, dedup.Duplicate)
			do(section(dedup.SectionAdvance, 2, 1, 4, 6), 10, dedup.Moved, dedup.Checkpoint{Epoch: 1, At: at(2)})
			do(section(dedup.SectionAdvance, 2, 1, 2, 6), 10, dedup.Applied, dedup.Checkpoint{Epoch: 1, At: at(6)})
			do(section(dedup.SectionRead, 1, 0, 0, 0), 0, dedup.Moved, dedup.Checkpoint{})
		})
	}
}

// naivePositions is a simple model of the positions of a shard.
type naivePositions struct {
	checkpoints map[dedup.PositionKey]dedup.Checkpoint
	deleted     map[uint64]bool
	closed      bool
	sum         int64
}

func (n *naivePositions) section(s dedup.SourceSection, delta int64) bool {
	m, known := n.checkpoints[s.PositionKey]
	switch s.Mode {
	case dedup.SectionAdvance:
		if n.closed || !known || m.Epoch != s.Epoch || m.At != s.Prev {
			return false
		}
		n.sum += delta
		if mark := s.Mark; mark.Sum != 0 {
			m.Mark = mark
		}
		n.checkpoints[s.PositionKey] = dedup.Checkpoint{Epoch: s.Epoch, At: s.Next, Mark: m.Mark}
		return true
	case dedup.SectionBegin, dedup.SectionRead:
		if n.closed || n.deleted[s.Source] || known && m.Epoch >= s.Epoch {
			return false
		}
		since := s.Since
		if since == 0 {
			since = s.Epoch
		}
		if known && m.Epoch >= since {
			n.checkpoints[s.PositionKey] = dedup.Checkpoint{Epoch: s.Epoch, At: m.At, Mark: m.Mark}
			return true
		}
		if s.Mode == dedup.SectionRead {
			return false
		}
	case dedup.SectionForget:
		n.deleted[s.Source] = true
		maps.DeleteFunc(n.checkpoints, func(k dedup.PositionKey, _ dedup.Checkpoint) bool { return k.Source == s.Source })
		return true
	}
	n.checkpoints[s.PositionKey] = dedup.Checkpoint{Epoch: s.Epoch, At: s.Next}
	return true
}

// drawMark draws a mark below a position, or no mark.
func drawMark(t *rapid.T, at sink.Position) sink.Mark {
	if at.Lo == 0 || rapid.Bool().Draw(t, "no mark") {
		return sink.Mark{}
	}
	return sink.Mark{Position: sink.Position{Lo: rapid.Uint64Range(0, at.Lo-1).Draw(t, "mark")}, Sum: rapid.Uint64Range(1, 9).Draw(t, "sum")}
}

// The shard agrees with the naive model after any sections, alone or together in an entry. A
// snapshot contains all positions, and equal positions have equal digests.
func TestPositionsModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]codec.Kind{codec.KindCounters, codec.KindUnread}).Draw(t, "kind")
		m := All.New(kind, raftfsm.Places{})
		model := naivePositions{checkpoints: map[dedup.PositionKey]dedup.Checkpoint{}, deleted: map[uint64]bool{}}
		small := rapid.Uint64Range(0, 3)
		key := rapid.Custom(func(t *rapid.T) dedup.PositionKey {
			return dedup.PositionKey{Source: 1 + small.Draw(t, "source"), Partition: uint32(small.Draw(t, "partition") % 2)}
		})
		seq := uint64(0)
		for range rapid.IntRange(1, 40).Draw(t, "entries") {
			var requests []sums
			var want []bool
			for range rapid.IntRange(1, 3).Draw(t, "requests") {
				if rapid.IntRange(0, 15).Draw(t, "restores") == 0 {
					seq++
					p := dedup.RestoredPositions{Closed: rapid.Bool().Draw(t, "closed")}
					keys := rapid.SliceOfNDistinct(key, 0, 3, rapid.ID).Draw(t, "keys")
					slices.SortFunc(keys, dedup.PositionKey.Compare)
					clear(model.checkpoints)
					for _, k := range keys {
						checkpoint := dedup.Checkpoint{Epoch: 1, At: sink.Position{Lo: small.Draw(t, "at")}}
						checkpoint.Mark = drawMark(t, checkpoint.At)
						p.All = append(p.All, dedup.PositionRecord{PositionKey: k, Checkpoint: checkpoint})
						if !model.deleted[k.Source] {
							model.checkpoints[k] = checkpoint
						}
					}
					model.closed = p.Closed
					requests, want = append(requests, summed(dedup.ByRestorePositions(seq, p))), append(want, true)
					continue
				}
				s := dedup.SourceSection{PositionKey: key.Draw(t, "key"), Mode: rapid.SampledFrom([]dedup.SectionMode{
					dedup.SectionAdvance, dedup.SectionAdvance, dedup.SectionAdvance, dedup.SectionAdvance, dedup.SectionBegin, dedup.SectionRead, dedup.SectionForget,
				}).Draw(t, "mode")}
				if s.Mode == dedup.SectionForget && s.Source < 4 {
					s.Mode = dedup.SectionBegin // few are deleted
				}
				s.Epoch = 1 + uint32(small.Draw(t, "epoch")/2)
				prev, step := small.Draw(t, "prev"), small.Draw(t, "step")
				s.Next.Lo = prev + step
				if s.Mode == dedup.SectionAdvance {
					s.Prev.Lo, s.Mark = prev, drawMark(t, s.Next)
				} else {
					s.Since = min(s.Epoch, uint32(prev))
				}
				var deltas []int64
				if s.Mode == dedup.SectionAdvance && step > 0 {
					deltas = rapid.SliceOfN(rapid.Int64Range(1, 9), 0, 2).Draw(t, "deltas")
				}
				requests = append(requests, summed(dedup.BySource(s), deltas...))
				sum := int64(0)
				for _, d := range deltas {
					sum += d
				}
				want = append(want, model.section(s, sum))
			}
			r := m.Apply(rafttest.Next(m, sourceEntry(kind, requests...))).(*raftfsm.Result)
			for i := range requests {
				if (r.Outcome(i) == dedup.Applied) != want[i] {
					t.Fatalf("request %d: outcome %d, want applied %v", i, r.Outcome(i), want[i])
				}
			}
			if rapid.Bool().Draw(t, "restart") {
				again := All.New(kind, raftfsm.Places{})
				if err := rafttest.Restore(again, rafttest.Persisted(t, m)); err != nil || again.State() != m.State() || !slices.Equal(again.Sources(), m.Sources()) {
					t.Fatalf("restored %+v, %v; was %+v", again.State(), err, m.State())
				}
				m = again
			}
		}
		got := map[dedup.PositionKey]dedup.Checkpoint{}
		visit := raftfsm.SnapshotVisitor{Positions: func(all []dedup.PositionRecord, _ uint64) error {
			for _, record := range all {
				got[record.PositionKey] = record.Checkpoint
			}
			return nil
		}}
		if _, err := All.VisitSnapshot(bytes.NewReader(rafttest.Persisted(t, m)), kind, codec.Whole, visit); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, model.checkpoints) {
			t.Fatalf("positions %v, want %v", got, model.checkpoints)
		}
		r := m.Apply(rafttest.Next(m, sourceEntry(kind, summed(dedup.RequestID{}, 0)))).(*raftfsm.Result)
		if r.Rows[0] != model.sum {
			t.Fatalf("sum %d, want %d", r.Rows[0], model.sum)
		}
	})
}

// The encodings of sections and positions must not change.
func TestSourceGolden(t *testing.T) {
	m := counters.New(raftfsm.Places{})
	long := dedup.BySource(dedup.SourceSection{
		PositionKey: dedup.PositionKey{Source: 0x0102030405060708, Partition: 9}, Mode: dedup.SectionAdvance, Epoch: 1,
		Prev: sink.Position{Hi: 1, Lo: 2}, Next: sink.Position{Hi: 3, Lo: 4}, Mark: sink.Mark{Position: sink.Position{Hi: 3, Lo: 3}, Sum: 5},
	})
	// A mark must be below the section's new position.
	beyond := dedup.BySource(dedup.SourceSection{PositionKey: dedup.PositionKey{Source: 1}, Mode: dedup.SectionAdvance, Epoch: 1, Prev: at(5), Next: at(6), Mark: sink.Mark{Position: at(6), Sum: 1}})
	if _, _, err := dedup.ParseIdentity(codec.SectionSource, append(beyond.AppendTo(nil), 0, 0, 0, 0)); err == nil {
		t.Error("a mark at the position itself was taken")
	}
	marked := dedup.BySource(dedup.SourceSection{
		PositionKey: dedup.PositionKey{Source: 1}, Mode: dedup.SectionAdvance, Epoch: 1, Prev: at(5), Next: at(6), Mark: sink.Mark{Position: at(5), Sum: 0x1122334455667788},
	})
	entry := sourceEntry(codec.KindCounters, summed(section(dedup.SectionForget, 3, 0, 0, 0)),
		summed(section(dedup.SectionBegin, 1, 1, 0, 5)), summed(marked, 7), summed(long, 8),
		summed(section(dedup.SectionRead, 1, 0, 0, 0)))
	rafttest.Golden(t, "entry-source.bin", entry)
	m.Apply(rafttest.Command(1, entry))
	rafttest.Golden(t, "snapshot-positions.bin", rafttest.Persisted(t, m))
	rafttest.Golden(t, "entry-positions.bin", sourceEntry(codec.KindCounters, summed(dedup.ByRestorePositions(5, dedup.RestoredPositions{
		Closed: true, All: []dedup.PositionRecord{{PositionKey: dedup.PositionKey{Source: 1, Partition: 2}, Checkpoint: dedup.Checkpoint{Epoch: 3, At: at(4), Mark: sink.Mark{Position: at(3), Sum: 2}}}},
	}))))
}

// A section with ops must move the position. Otherwise the shard would apply a copy of the section
// too.
func TestSectionWithOpsMoves(t *testing.T) {
	for _, tt := range []struct {
		next uint64
		ops  int
		want bool
	}{{5, 0, true}, {6, 1, true}, {5, 1, false}, {4, 0, false}} {
		var w raftfsm.RequestWriter
		id := section(dedup.SectionAdvance, 1, 1, 5, tt.next)
		w.Reset(nil, codec.Whole, &id)
		for range tt.ops {
			counters.Ops{{Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}}.AppendTo(&w, 1, 0)
		}
		if _, _, err := All.CheckSection(codec.KindCounters, codec.Whole, w.Section(), nil); (err == nil) != tt.want {
			t.Errorf("from 5 to %d with %d ops: %v", tt.next, tt.ops, err)
		}
	}
}

// Shards of counters and of unread numbers accept a section of a source. Other shards refuse it.
func TestSectionOfSourceIsChecked(t *testing.T) {
	var w raftfsm.RequestWriter
	id := section(dedup.SectionBegin, 1, 1, 0, 5)
	w.Reset(nil, codec.Whole, &id)
	for kind, want := range map[codec.Kind]bool{codec.KindCounters: true, codec.KindUnread: true, codec.KindFeed: false, codec.KindBoard: false, codec.KindNames: false} {
		_, clocked, err := All.CheckSection(kind, codec.Whole, w.Section(), nil)
		if (err == nil) != want || want && !clocked {
			t.Errorf("%s: clocked %v, %v", kind, clocked, err)
		}
	}
}
