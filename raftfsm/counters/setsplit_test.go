package counters

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// The sets of a shard that splits and then applies ops are those of a shard that applies the ops and then
// leaves out the rows of other parts: the same answers, members and numbers of pairs. The digests add up when the shard
// splits. Afterwards they need not: a stamp counts the joins of its millisecond, and the undivided shard has more.
func TestSetsSplitThenApply(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		undivided, split := &setsReplica{fs: vfs.NewMem()}, &setsReplica{fs: vfs.NewMem()}
		all := []*setsReplica{undivided, split}
		for _, r := range all {
			r.open(t)
			defer r.close(t)
		}
		for group := range uint32(2) {
			sets, err := split.store.Group(10 + group)
			if err != nil {
				t.Fatal(err)
			}
			part := &setsReplica{fsm: New(raftfsm.Places{Members: sets})}
			all = append(all, part)
			defer part.fsm.Close()
		}
		index := 0
		entry := func(m *Machine, ops ...engine.Op) *raftfsm.Result {
			var w raftfsm.RequestWriter
			w.Reset(nil, m.Route(), &dedup.RequestID{})
			for i := range ops {
				Ops(ops).AppendTo(&w, ops[i].ID, i)
			}
			now := time.UnixMilli(20_000*(24*time.Hour).Milliseconds() + int64(index/3))
			data := append(dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 2), now, testLimits), w.Section()...)
			r, ok := m.Apply(rafttest.Next(m, codec.AppendChecksum(data))).(*raftfsm.Result)
			if !ok {
				t.Fatal(m.Stuck())
			}
			return r
		}
		parts := []*setsReplica{split}
		partOf := func(uint64) int { return 0 }
		apply := func(ops ...engine.Op) {
			index++
			want := entry(undivided.fsm, ops...)
			for part, r := range parts {
				var mine []engine.Op
				var at []int
				for i := range ops {
					if partOf(ops[i].ID) == part {
						mine, at = append(mine, ops[i]), append(at, i)
					}
				}
				got := entry(r.fsm, mine...)
				for i, of := range at {
					if !slices.Equal(got.Rows[2*i:2*i+2], want.Rows[2*of:2*of+2]) || slices.Contains(got.Changed, i) != slices.Contains(want.Changed, of) {
						t.Fatalf("op %+v: row %v, want %v", mine[i], got.Rows[2*i:2*i+2], want.Rows[2*of:2*of+2])
					}
				}
			}
		}
		for range rapid.IntRange(0, 12).Draw(t, "entries before") {
			apply(drawSetOps(t)...)
		}

		partOf = func(row uint64) int { return int(row % 3) }
		s := splitOf(split.fsm, codec.Whole, 3)
		s.PartOf = partOf
		before := split.fsm.State()
		if err := split.fsm.Split(s, []raftfsm.Machine{all[2].fsm, all[3].fsm}); err != nil {
			t.Fatal(err)
		}
		parts = all[1:]
		digest := uint64(0)
		for _, r := range parts {
			digest += r.fsm.State().Digest
		}
		if digest != before.Digest {
			t.Fatalf("digests add up to %x, want %x", digest, before.Digest)
		}
		for part, r := range all[2:] {
			r.fsm.Between(func(held raftfsm.Contents) {
				c := held.(*contents)
				if c.sets.at == (members.State{}) {
					return
				}
				var err error
				if c.sets.at, err = r.fsm.Members().AdoptPart(setsGroup, s.Index, part+1, 1); err != nil {
					t.Fatal(err)
				}
			})
		}
		apply() // the entries that split the shard and that adopt the parts

		for range rapid.IntRange(0, 12).Draw(t, "entries after") {
			apply(drawSetOps(t)...)
		}
		pairs := uint64(0)
		for part, r := range parts {
			if err := errors.Join(r.fsm.Members().Verify(), rafttest.CheckTable(r.fsm.Table())); err != nil {
				t.Fatal(err)
			}
			_, n := r.fsm.Besides()
			pairs += n
			for row := range uint64(setsRows) {
				for column := range uint8(2) {
					for member := range uint64(setsMembers) {
						got, want := make([]bool, 1), make([]bool, 1)
						err := errors.Join(r.fsm.Members().Contains(member, column, []uint64{row}, got), undivided.fsm.Members().Contains(member, column, []uint64{row}, want))
						if err != nil || got[0] != (want[0] && partOf(row) == part) {
							t.Fatalf("part %d has member %d in column %d of row %d: %v, undivided %v, %v", part, member, column, row, got[0], want[0], err)
						}
					}
				}
			}
		}
		if _, want := undivided.fsm.Besides(); pairs != want {
			t.Fatalf("%d pairs, want %d", pairs, want)
		}
	})
}

// A shard answers reads while Split copies its members, which may take minutes. It refuses them while Split changes the
// sets that they use.
func TestReadsWhileSetsAreCopied(t *testing.T) {
	t.Parallel()
	r := &setsReplica{fs: vfs.NewMem()}
	r.open(t)
	defer func() { r.close(t) }()
	var joins []engine.Op
	for member := range uint64(600) { // more than the deletion of a row removes at once
		joins = append(joins, engine.Join(1, 0, member))
	}
	for _, ops := range [][]engine.Op{append(joins, engine.Join(2, 0, 7)), {{ID: 1, Kind: engine.OpDelete}}} {
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &dedup.RequestID{})
		for i := range ops {
			Ops(ops).AppendTo(&w, ops[i].ID, i)
		}
		data := append(dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 2), time.UnixMilli(20_000*(24*time.Hour).Milliseconds()), testLimits), w.Section()...)
		if _, ok := r.fsm.Apply(rafttest.Next(r.fsm, codec.AppendChecksum(data))).(*raftfsm.Result); !ok {
			t.Fatal(r.fsm.Stuck())
		}
	}
	if dying := r.fsm.Members().Dying(); dying != 1 {
		t.Fatalf("%d deleted rows have members", dying)
	}
	s, routed := splitOf(r.fsm, codec.Whole, 3), []bool(nil)
	partOf := s.PartOf
	s.PartOf = func(row uint64) int {
		routed = append(routed, r.fsm.Routed(s.From))
		return partOf(row)
	}
	if err := r.fsm.Split(s, []raftfsm.Machine{New(raftfsm.Places{}), New(raftfsm.Places{})}); err != nil {
		t.Fatal(err)
	}
	last := len(routed) - 1 // for the deleted row, whose mark is a part of the change
	if slices.Contains(routed[:last], false) {
		t.Error("the shard refuses reads while its members are copied")
	}
	if routed[last] {
		t.Error("the shard answers reads while its sets change")
	}
}

// A replica that restarts from a snapshot from before a Split refuses reads of sets until it has replayed the Split,
// because its sets lack the members of other parts. A replica that receives such a snapshot gets the sets from before
// the Split, and serves them.
func TestReadsOfSetsBeforeAReplay(t *testing.T) {
	a, b := &setsReplica{fs: vfs.NewMem()}, &setsReplica{fs: vfs.NewMem()}
	for _, r := range []*setsReplica{a, b} {
		r.open(t)
		defer func() { r.close(t) }()
	}
	entry := func(m *Machine, ops ...engine.Op) {
		t.Helper()
		var w raftfsm.RequestWriter
		w.Reset(nil, m.Route(), &dedup.RequestID{})
		for i := range ops {
			Ops(ops).AppendTo(&w, ops[i].ID, i)
		}
		data := append(dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 2), time.UnixMilli(20_000*(24*time.Hour).Milliseconds()), testLimits), w.Section()...)
		if _, ok := m.Apply(rafttest.Next(m, codec.AppendChecksum(data))).(*raftfsm.Result); !ok {
			t.Fatal(m.Stuck())
		}
	}
	read := func(m *Machine, route codec.Route, want error) {
		t.Helper()
		page := members.Page{Limit: 10}
		for _, q := range []raftfsm.Query{
			&ContainsQuery{Member: 7, In: make([]bool, 1)}, &MembersQuery{Page: page}, &RowsOfMemberQuery{Member: 7, Page: page, lists: []memberRows{{page: page}}},
		} {
			p := &raftfsm.Part{Route: route, Keys: []uint64{1}}
			if _, rows := q.(*RowsOfMemberQuery); rows {
				p.Keys[0] = 7
			}
			if err := raftfsm.Answer(q, m, p, true, soon()); !errors.Is(err, want) {
				t.Errorf("%T of %s: %v, want %v", q, route, err, want)
			}
		}
	}
	entry(a.fsm, engine.Join(0, 0, 7), engine.Join(1, 0, 7))
	a.index = a.fsm.Applied()
	a.takeSnapshot(t)
	s := splitOf(a.fsm, codec.Whole, 3)
	split := func(m *Machine) {
		t.Helper()
		if err := m.Split(s, []raftfsm.Machine{New(raftfsm.Places{}), New(raftfsm.Places{})}); err != nil {
			t.Fatal(err)
		}
		entry(m) // the entry that splits
	}
	read(a.fsm, codec.Whole, nil)
	split(a.fsm)
	read(a.fsm, codec.Whole, codec.ErrRoute)
	read(a.fsm, s.Parts[0].Route, nil)

	a.close(t)
	a.open(t)
	read(a.fsm, codec.Whole, codec.ErrRoute)
	b.receive(t, a)
	read(b.fsm, codec.Whole, nil) // it has received the sets from before the Split
	for _, r := range []*setsReplica{a, b} {
		split(r.fsm)
		read(r.fsm, codec.Whole, codec.ErrRoute)
		read(r.fsm, s.Parts[0].Route, nil)
	}
}
