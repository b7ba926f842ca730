package kinds

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/spill"
)

// bodiesGrowing is a shard of feeds or outboxes that splits into three on a node with a disk.
type bodiesGrowing struct {
	testing.TB
	kind    codec.Kind
	store   *cold.Store
	parking *raftfsm.Parking
}

const growBodies = 2000

func newBodiesGrowing(t testing.TB, kind codec.Kind) *bodiesGrowing {
	g := &bodiesGrowing{TB: t, kind: kind, parking: new(raftfsm.Parking)}
	var err error
	g.store, err = cold.Open(cold.Config{Dir: "cold", FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
	must.Do(t, err)
	t.Cleanup(func() { must.Do(t, g.store.Close()) })
	return g
}

// machine returns a replica of a group with a disk, or of none with group 0.
func (g *bodiesGrowing) machine(group uint32, route codec.Route, unborn bool) raftfsm.Machine {
	places := raftfsm.Places{}
	if group > 0 {
		places.Bodies = spill.Place{Store: g.store, Group: group}
	}
	m := All.New(g.kind, places)
	m.SetRoute(route)
	m.SetGrowth(raftfsm.Growth{Parking: g.parking, Unborn: unborn, NewPart: func() raftfsm.Machine { return All.New(g.kind, raftfsm.Places{}) }})
	g.Cleanup(m.Close)
	return m
}

// write gives a body to each key of the shard's route, which depends on the round.
func (g *bodiesGrowing) write(m raftfsm.Machine, round uint64) {
	g.Helper()
	g.writeKeys(m, round, 0, growBodies)
}

func (g *bodiesGrowing) writeKeys(m raftfsm.Machine, round, from, to uint64) {
	g.Helper()
	var w raftfsm.RequestWriter
	route := m.Route()
	w.Reset(nil, route, &dedup.RequestID{})
	for key := from; key < to; key++ {
		switch {
		case key%uint64(route.Modulus) != uint64(route.Residue):
		case g.kind == codec.KindFeed:
			f := feed.Op{User: key, Kind: feed.Reset, Since: 1, Modulus: route.Modulus}
			for id := range 10 + key%20 {
				f.Followees = append(f.Followees, feed.Followee{ID: 3*id + key, Posts: int64(key + round)})
			}
			feed.Ops{f}.AppendTo(&w, key, 0)
		default:
			op := counters.PostOp{Kind: counters.PutOutbox, Outbox: counters.Outbox{IDs: descending(20 + key%20 + round)}}
			counters.OutboxOps{{Author: key, PostOp: op}}.AppendTo(&w, key, 0)
		}
	}
	data := dedup.AppendClock(codec.BeginEntry(nil, g.kind, 0), m.LogTime(), testLimits)
	if err, failed := m.Apply(rafttest.Next(m, codec.AppendChecksum(append(data, w.Section()...)))).(error); failed {
		g.Fatal(err)
	}
}

func (g *bodiesGrowing) apply(m raftfsm.Machine, entry []byte) {
	g.Helper()
	if err, failed := m.Apply(rafttest.Next(m, entry)).(error); failed {
		g.Fatal(err)
	}
}

func (g *bodiesGrowing) spill(m raftfsm.Machine) {
	g.Helper()
	_, err := m.Bodies().Spill(0, math.MaxInt64, func() bool { return true })
	must.Do(g, err)
}

// mustEqual compares machines with the undivided shard.
func (g *bodiesGrowing) mustEqual(undivided raftfsm.Machine, parts ...raftfsm.Machine) {
	g.Helper()
	want, digest, keys := visited(g, g.kind, undivided), uint64(0), uint64(0)
	for _, part := range parts {
		route := part.Route()
		mine := maps.Clone(want)
		maps.DeleteFunc(mine, func(s stored, _ string) bool { return s.key%uint64(route.Modulus) != uint64(route.Residue) })
		if got := visited(g, g.kind, part); !maps.Equal(got, mine) {
			g.Fatalf("%s of %s has %d bodies, want %d", g.kind, route, len(got), len(mine))
		}
		digest += part.State().Digest
		keys += part.Bodies().Stats().Keys
	}
	if digest != undivided.State().Digest || keys != growBodies {
		g.Fatalf("%s: the parts have %d bodies, digest %x, the shard %x", g.kind, keys, digest, undivided.State().Digest)
	}
}

// A shard may split however many and large its feeds or outboxes are.
func TestBodiesHaveNoBound(t *testing.T) {
	t.Parallel()
	for _, kind := range []codec.Kind{codec.KindFeed, codec.KindCounters} {
		m := All.New(kind, raftfsm.Places{})
		for key := range uint64(raftfsm.SplitRowsMax + 1) {
			m.Bodies().Current().Set(key, []byte{1, 2, 3}, 0)
		}
		for key := range uint64(80) {
			m.Bodies().Current().Set(key, bytes.Repeat([]byte{1}, 1<<20), 0)
		}
		if s := m.Bodies().Stats(); s.Keys <= raftfsm.SplitRowsMax || s.Bytes <= 64<<20 {
			t.Fatalf("%+v", s)
		}
		must.Do(t, raftfsm.CheckSplit(m, raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 3}))
		m.Close()
	}
}

// If the parts do not add up, Split copies all bodies of the shard, although it has handed its pages over, and disposes
// of the first parts.
func TestBodiesAreCopiedAfterASplit(t *testing.T) {
	t.Parallel()
	for _, kind := range []codec.Kind{codec.KindFeed, codec.KindCounters} {
		g := newBodiesGrowing(t, kind)
		m := g.machine(5, codec.Whole, false)
		g.write(m, 0)
		g.spill(m)
		of, by := m.Bodies().Current(), raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 3}
		empty := func() (all []*spill.Bodies) {
			for range by.Parts {
				all = append(all, All.New(kind, raftfsm.Places{}).Bodies().Current())
			}
			return all
		}
		s := &raftfsm.Split{By: by, PartOf: by.Of}
		parts, err := raftfsm.SplitBodies(s, of, empty(), nil)
		must.Do(t, err)
		for _, part := range parts {
			part.Dispose()
		}
		s.Copies = true
		parts, err = raftfsm.SplitBodies(s, of, empty(), func(part *spill.Bodies, key uint64, body []byte) { part.Set(key, body, 0) })
		must.Do(t, err)
		keys := 0
		for _, part := range parts {
			if keys += part.Keys(); part.Stats().Spilled > 0 {
				t.Errorf("%s: %+v", kind, part.Stats())
			}
		}
		if keys != growBodies {
			t.Errorf("%s: %d bodies were copied", kind, keys)
		}
	}
}

// A shard with bodies on disk splits, and two shards adopt the others' parts:
//
//  1. All parts have the bodies and digests of the undivided shard, however much of it was parted before, and later writes reach
//     one part. A replica without a disk, which parted nothing, has the same parts.
//  2. The bodies that were on disk stay there.
//  3. The parent may restore a snapshot, close and lose its data on disk while the children live, and the reverse.
//  4. A replay of Split, from a snapshot before it, makes the same parts again.
func TestBodiesGrow(t *testing.T) {
	t.Parallel()
	for _, kind := range []codec.Kind{codec.KindFeed, codec.KindCounters} {
		for steps := range 3 {
			t.Run(fmt.Sprint(kind, " with ", steps, " of 2 halves parted"), func(t *testing.T) {
				t.Parallel()
				growBodiesAfter(newBodiesGrowing(t, kind), steps)
			})
		}
	}
}

func growBodiesAfter(g *bodiesGrowing, halves int) {
	undivided, parent := g.machine(0, codec.Whole, false), g.machine(5, codec.Whole, false)
	for _, m := range []raftfsm.Machine{undivided, parent} {
		for round := range uint64(4) {
			g.write(m, round)
		}
	}
	before := rafttest.Persisted(g, parent)
	g.spill(parent)
	by := raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 3}
	for step, more := 0, halves > 0; more && (halves > 1 || step < 2); step++ {
		var err error
		more, err = parent.Part(by)
		must.Do(g, err)
	}
	spilled := parent.Bodies().Stats().Spilled
	e := raftfsm.SplitEntry{From: codec.Whole, Attempt: 3, Group: 5, Divisor: 1, Children: []uint32{6, 7}}
	split := e.Entry(g.kind)
	g.apply(parent, split)
	parts := []raftfsm.Machine{parent}
	for i := range uint32(2) {
		parts = append(parts, g.machine(6+i, codec.Route{Modulus: 3, Residue: 1 + i}, true))
		g.apply(parts[1+i], g.parking.Of(6+i).Entry(g.kind))
	}
	sum := uint64(0)
	for _, part := range parts {
		sum += part.Bodies().Stats().Spilled
	}
	if sum != spilled || spilled != growBodies {
		g.Fatalf("%d of %d bodies are on disk after the split", sum, spilled)
	}
	parent.Begun(3)
	g.mustEqual(undivided, parts...)
	if f, is := parts[1].(*feed.Machine); is { // R13 of shard/GROWTH.md
		_, moved, err := f.Fetch(g.Context(), nil, 1)
		g.write(undivided, 4)
		for _, part := range parts {
			g.write(part, 4)
		}
		if _, now, _ := f.Fetch(g.Context(), nil, 1); err != nil || moved != 2 || now != f.Applied() {
			g.Fatalf("a feed has the stamp %d, and %d after a write at %d, %v", moved, now, f.Applied(), err)
		}
		g.mustEqual(undivided, parts...)
	}

	again := g.machine(8, codec.Whole, false)
	must.Do(g, rafttest.Restore(again, before))
	g.apply(again, split)
	again.Begun(3)
	for i := range uint32(2) {
		other := g.parking.Of(6 + i)
		if now := other.Machine.Bodies().Stats(); now.Keys != parts[1+i].Bodies().Stats().Keys {
			g.Fatalf("the replay has parked %+v", now)
		}
		g.parking.Discard(other)
		if _, err := other.Machine.Bodies().Current().HandOver(g.machine(9, codec.Whole, false).Bodies().Current()); !errors.Is(err, spill.ErrEnded) {
			g.Fatalf("a discarded part keeps its records: %v", err)
		}
	}

	g.write(undivided, 5)
	for _, part := range parts {
		g.write(part, 5)
		g.spill(part)
	}
	g.mustEqual(undivided, parts...)
	must.Do(g, rafttest.Restore(parent, rafttest.Persisted(g, parent)))
	g.mustEqual(undivided, parts...)
	g.spill(parts[1]) // removes what the parent has left
	g.mustEqual(undivided, parts...)
	must.Do(g, rafttest.Restore(parts[1], rafttest.Persisted(g, parts[1])))
	must.Do(g, g.store.Drop(5))
	g.mustEqual(undivided, parts...)
	saved := rafttest.Persisted(g, parts[2])
	parts[2].Close()
	parts[2] = g.machine(7, parts[2].Route(), true)
	must.Do(g, rafttest.Restore(parts[2], saved))
	g.mustEqual(undivided, parts...)
}
