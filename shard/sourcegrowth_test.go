package shard

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source/sink"
)

// advance writes a section of a source to each shard of a layout. It moves the shard to a position, and adds 1 to the row
// of each id.
func (w *growingKeyspace) advance(route raftfsm.Route, to uint64, wait time.Duration, ids ...uint64) (*Write, error) {
	w.mu.Lock()
	w.calls = append(w.calls, &growingCall{applied: make([]bool, len(ids)), refused: make([]bool, len(ids)), of: of("source", dedup.RequestID{}, ids...)})
	w.mu.Unlock()
	out := &Write{Spaces: []*Keyspace{w.ks}, In: make([]uint8, len(ids)), Routes: []raftfsm.Route{route}, Deadline: time.Now().Add(wait)}
	var ops counters.Ops
	for _, id := range ids {
		ops = append(ops, engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}})
	}
	out.Ops = ops
	for s := range int(route.Shards) {
		mode := dedup.SourceSection{PositionKey: dedup.PositionKey{Source: 1}, Mode: dedup.SectionAdvance, Epoch: 1, Prev: sink.Position{Lo: to - 1}, Next: sink.Position{Lo: to}}
		if to == 1 {
			mode = dedup.SourceSection{PositionKey: mode.PositionKey, Mode: dedup.SectionBegin, Epoch: 1, Next: mode.Next}
		}
		if out.Sections = append(out.Sections, nil); route.Exists(s) {
			id := dedup.BySource(mode)
			out.Sections[s], out.ID = &id, id
		}
	}
	return out, w.wr.apply(w.ks, out)
}

// layout returns the route that this node has published.
func (w *growingKeyspace) layout() raftfsm.Route {
	return w.wr.registry.groups.Load().byFirst[growingFirst].route
}

// count returns the count of an id, in the machine of its shard.
func (w *growingKeyspace) count(id uint64) int64 {
	route := w.layout()
	s, key := route.KeyOf(id)
	var row [1]int64
	w.machines[w.replicas[s].number].(*counters.Machine).Table().Get(key, row[:])
	return row[0]
}

// The sections of a source while a shard splits:
//
//  1. a write by another route than the node's is refused whole, even if the number of sections is right;
//  2. the section of a shard that has split comes back, the other sections count, and the node has then the new route;
//  3. the sections by the new route count each op once, and wait for a child that is unborn.
func TestSectionsWhileAShardSplits(t *testing.T) {
	t.Parallel()
	n := growingNode(t)
	for _, led := range [][]int{nil, {0, 1, 2, 3, 4, 5}} {
		w := newGrowing(t, n, led...)
		w.unchecked = true
		w.follow()
		before := w.layout()
		if out, err := w.advance(before, 1, hinderedMax); err != nil || out.Answers[0].At.At.Lo != 1 || out.Answers[1].At.At.Lo != 1 {
			t.Fatal(out.Answers, err)
		}
		w.splitNow(0, true)
		out, err := w.advance(before, 2, hinderedMax, 0, 1, 2)
		if a := out.Answers; err == nil || !errors.Is(a[0].Err, errs.ErrOtherLayout) || a[1].Err != nil || a[1].At.At.Lo != 2 {
			t.Fatalf("led %v: %+v, %v", led, a, err)
		}
		after := w.layout()
		if !after.Equal(before.Split(0)) {
			t.Fatal("the node has not noted the split")
		}
		out, err = w.advance(before, 2, hinderedMax, 0, 1, 2)
		if !errors.Is(err, errs.ErrOtherLayout) || out.Answers != nil {
			t.Errorf("by the old route, with %d sections: %+v, %v", len(out.Sections), out.Answers, err)
		}
		waits := 3
		w.next = func(g *shardReplica) growingFate {
			if g.shard == 2 && waits > 0 {
				waits--
				return fateRefused
			}
			return fateApplied
		}
		out, err = w.advance(after, 2, hinderedMax, 0, 2, 4)
		for _, s := range []int{0, 2, 4} {
			if out.Answers[s].Err != nil || out.Answers[s].At.At.Lo != 2 {
				t.Errorf("shard %d: %+v, %v", s, out.Answers[s], err)
			}
		}
		for id, want := range []int64{1, 1, 1, 0, 1} {
			if got := w.count(uint64(id)); got != want {
				t.Errorf("led %v: row %d has %d, want %d", led, id, got, want)
			}
		}
	}
}

// The section for a part of an abandoned attempt comes back once this node's catalog shows that. Until then it waits, and
// no section is told that the keyspace does not exist.
func TestSectionForAnAbandonedPart(t *testing.T) {
	t.Parallel()
	w, asked := newGrowing(t, growingNode(t)), 0
	w.unchecked = true
	w.follow()
	route := w.layout()
	if _, err := w.advance(route, 1, hinderedMax); err != nil {
		t.Fatal(err)
	}
	w.split(0)
	w.behind = 1 << 30
	stale := w.staleParts(0, func() {
		if asked++; asked == 3 {
			w.behind = 0
			w.follow()
		}
	})
	w.wr.registry.publish(growingTable(route, stale))
	w.wr.registry.noteSplit(growingFirst, 0, growingParents*growingFactor)
	out, err := w.advance(w.layout(), 2, hinderedMax, 2)
	if a := out.Answers; !slices.ContainsFunc(a, func(a Answer) bool { return errors.Is(a.Err, errs.ErrOtherLayout) }) || asked < 3 {
		t.Errorf("%+v, %v after %d calls", a, err, asked)
	}
	if got := w.count(2); got != 0 {
		t.Errorf("its op is counted %d times", got)
	}
}
