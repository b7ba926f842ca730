package counters

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/codec/codectest"
	"github.com/countd/countd/raftfsm/dedup"
)

// setSplitterInMemory stands in for the setSplitter of engine/members. It copies all pairs through memory to
// the groups of the parts, which already exist. It does not survive a crash in between.
type setSplitterInMemory struct {
	from   *members.Group
	others []*members.Group
	routed func() bool // reports whether reads still reach the shard during its split
}

func (d *setSplitterInMemory) Split(s *raftfsm.Split, at members.State) ([]members.State, error) {
	if d.routed() {
		return nil, errors.New("the shard answers reads while its sets change")
	}
	view, err := d.from.OpenView(at)
	if err != nil {
		return nil, err
	}
	states := make([]members.State, len(s.Parts))
	blocks := make([][2][]byte, len(s.Parts)) // of each part: deleted rows, pairs
	for {
		b, err := view.Next(nil)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		kind, size := 0, 14
		if b[0] == 'p' {
			kind, size = 1, 23
			if err := members.EachPair(b, func(p members.Pair, at members.Stamp) error {
				states[s.PartOf(p.Row)].Add(p, at)
				return nil
			}); err != nil {
				return nil, err
			}
		}
		for item := range slices.Chunk(b[1:], size) {
			to := &blocks[s.PartOf(binary.BigEndian.Uint64(item))][kind]
			if len(*to) == 0 {
				*to = append(*to, b[0])
			}
			*to = append(*to, item...)
		}
	}
	view.Close()
	for i, group := range append([]*members.Group{d.from}, d.others...) {
		states[i].Index, states[i].Stamp = 1, at.Stamp // the entry that adopts the part has the index 1
		if i == 0 {
			states[0].Index = s.Index
		}
		load, err := group.Load()
		if err != nil {
			return nil, err
		}
		for _, b := range blocks[i] {
			if len(b) > 0 {
				err = errors.Join(err, load.Block(b))
			}
		}
		if err = errors.Join(err, load.Switch(states[i])); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// The sets of a shard that splits and then applies ops are those of a shard that applies the ops and then
// leaves out the rows of other parts: the same answers, members and numbers of pairs. The digests add up when the shard
// splits. Afterwards they need not: a stamp counts the joins of its millisecond, and the undivided shard has more.
func TestSetsSplitThenApply(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		undivided, split := &setsReplica{fs: vfs.NewMem()}, &setsReplica{fs: vfs.NewMem()}
		all := []*setsReplica{undivided, split, {fs: vfs.NewMem()}, {fs: vfs.NewMem()}}
		for _, r := range all {
			r.open(t)
			defer r.close(t)
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
			r, ok := m.Apply(codectest.Next(m, codec.AppendChecksum(data))).(*raftfsm.Result)
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
		if held := split.fsm.Members().State(); held != (members.State{}) {
			err := split.fsm.Split(s, []raftfsm.Machine{New(raftfsm.Places{}), New(raftfsm.Places{})})
			if !errors.Is(err, errSetsStay) || split.fsm.State() != before {
				t.Fatalf("split without a splitter: %v, %+v, before it %+v", err, split.fsm.State(), before)
			}
		}
		splitter := &setSplitterInMemory{
			from: split.fsm.Members(), others: []*members.Group{all[2].fsm.Members(), all[3].fsm.Members()},
			routed: func() bool { return split.fsm.Routed(s.From) || split.fsm.Routed(s.Parts[0].Route) },
		}
		split.fsm.Between(func(held raftfsm.Contents) { held.(*contents).sets.splitter = splitter })
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
		apply() // the entries that split the shard and that adopt the parts

		for range rapid.IntRange(0, 12).Draw(t, "entries after") {
			apply(drawSetOps(t)...)
		}
		pairs := uint64(0)
		for part, r := range parts {
			if err := errors.Join(r.fsm.Members().Verify(), codectest.CheckTable(r.fsm.Table())); err != nil {
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
