package counters

import (
	"errors"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// uneven is contents whose next splits make one row too many.
type uneven struct {
	*contents
	splits *int
}

func (u uneven) Split(s *raftfsm.Split, parts []raftfsm.Contents) error {
	parts = slices.Clone(parts)
	parts[0] = parts[0].(uneven).contents
	s.Copies = true // a parted table shares its rows with the parts, so both would have the row
	err := u.contents.Split(s, parts)
	if *u.splits > 0 {
		*u.splits--
		_, extra := parts[0].(*contents).table.Apply([]engine.Op{{ID: 2, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}}, 0, nil, nil)
		return errors.Join(err, extra)
	}
	return err
}

// If the parts of a split do not add up to the shard, Apply copies them once more. If they still do not,
// the replica is stuck, and has the contents from before.
func TestUnevenSplit(t *testing.T) {
	t.Parallel()
	for wrong, fails := range map[int]bool{0: false, 1: false, 2: true} {
		splits := 0
		m := &Machine{outboxes: newOutboxBodies(raftfsm.Places{}.Bodies)}
		m.parting.Lock = &m.tiering
		m.Init(codec.KindCounters, func() raftfsm.Contents {
			return uneven{newContents(raftfsm.Places{}, m.outboxes.New(), &m.parting), &splits}
		},
			func(held raftfsm.Contents) {
				m.replace(held.(uneven).contents)
				m.outboxes.Show(held.(uneven).out.bodies)
			})
		parking := new(raftfsm.Parking)
		m.SetGrowth(raftfsm.Growth{Parking: parking, NewPart: func() raftfsm.Machine { return New(raftfsm.Places{}) }})
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &dedup.RequestID{})
		for key := range uint64(10) {
			Ops{{ID: key, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}}.AppendTo(&w, key, 0)
		}
		m.Apply(rafttest.Next(m, codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindCounters, 0), w.Section()...))))
		before := m.State()
		splits = wrong
		e := raftfsm.SplitEntry{From: codec.Whole, Attempt: 3, Group: 5, Divisor: 1, Children: []uint32{6}}
		err, _ := m.Apply(&raft.Log{Index: 2, Type: raft.LogCommand, Data: e.Entry(codec.KindCounters)}).(error)
		part := parking.Of(6)
		switch {
		case fails && (!errors.Is(err, raftfsm.ErrStuck) || part != nil || m.State() != before || m.Route() != codec.Whole):
			t.Errorf("%d wrong copies: %v, %+v", wrong, err, m.State())
		case !fails && (err != nil || m.Stuck() != nil || part == nil || part.Digest+m.State().Digest != before.Digest):
			t.Errorf("%d wrong copies: %v", wrong, err)
		}
		m.Close()
	}
}

// If a fault of the memory has changed the number of rows or the digest of the shard, the replica is stuck at
// Split, also if it has parted its rows.
func TestUnevenParting(t *testing.T) {
	t.Parallel()
	for _, wrong := range []struct{ rows, digest int64 }{{1, 0}, {0, 1}, {0, 0}} {
		m := New(raftfsm.Places{})
		parking := new(raftfsm.Parking)
		m.SetGrowth(raftfsm.Growth{Parking: parking, NewPart: func() raftfsm.Machine { return New(raftfsm.Places{}) }})
		ops := []engine.Op{add(1, 0, 5), add(2, 0, 7)}
		m.Apply(rafttest.Command(1, entryOf(0, ops)))
		m.Table().Adopt(2+wrong.rows, m.Table().Digest()+uint64(wrong.digest))
		e := raftfsm.SplitEntry{From: codec.Whole, Attempt: 3, Group: 5, Divisor: 1, Children: []uint32{6}}
		if more, err := m.Part(raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 2}); more || err != nil {
			t.Fatal(more, err)
		}
		err, _ := m.Apply(&raft.Log{Index: 2, Type: raft.LogCommand, Data: e.Entry(codec.KindCounters)}).(error)
		if faulty := wrong.rows != 0 || wrong.digest != 0; errors.Is(err, raftfsm.ErrUneven) != faulty || (err != nil) != faulty || (parking.Of(6) == nil) != faulty {
			t.Errorf("%+v: %v", wrong, err)
		}
		m.Close()
	}
}
