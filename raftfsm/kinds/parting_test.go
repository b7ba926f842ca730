package kinds

import (
	"errors"
	"sync"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
)

// A shard splits while another goroutine parts its rows:
//
//  1. The parts have all rows, with what was written meanwhile.
//  2. After the split, Part returns ErrReplaced, and moves no row of a part. So the part can be parted for another split.
func TestPartBesideSplit(t *testing.T) {
	t.Parallel()
	for _, kind := range []codec.Kind{codec.KindCounters, codec.KindUnread} {
		for round := range 5 {
			m := All.New(kind, raftfsm.Places{})
			write := func() {
				var w raftfsm.RequestWriter
				w.Reset(nil, codec.Whole, &dedup.RequestID{})
				for key := range uint64(30_000) {
					counters.Ops{{ID: key, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}}.AppendTo(&w, key, 0)
				}
				m.Apply(rafttest.Next(m, codec.AppendChecksum(append(codec.BeginEntry(nil, kind, 0), w.Section()...))))
			}
			write()
			by := raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 2}
			var parting sync.WaitGroup
			parting.Go(func() {
				for {
					if _, err := m.Part(by); errors.Is(err, raftfsm.ErrReplaced) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
				}
			})
			for range round {
				write()
			}
			want, other := m.State(), All.New(kind, raftfsm.Places{})
			s := &raftfsm.Split{Index: want.Index + 1, Attempt: 1, From: codec.Whole, Group: 1, PartOf: by.Of, By: by}
			for i := range uint32(2) {
				s.Parts = append(s.Parts, dedup.Part{Route: codec.Route{Modulus: 2, Residue: i}, Judge: 10 + i})
			}
			if err := m.Split(s, []raftfsm.Machine{other}); err != nil {
				t.Fatal(err)
			}
			parting.Wait()
			for i, part := range []raftfsm.Machine{m, other} {
				row := []int64{0}
				if part.TableOf(0).Get(uint64(i)+4, row); row[0] != int64(round)+1 || part.State().Rows != 15_000 {
					t.Errorf("%s, part %d: row of %d, %d rows", kind, i, row[0], part.State().Rows)
				}
				if _, err := engine.NewParting(part.TableOf(0), raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 3}); err != nil {
					t.Errorf("%s, part %d: %v", kind, i, err)
				}
			}
			m.Close()
		}
	}
}
