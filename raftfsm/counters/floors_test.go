package counters

import (
	"errors"
	"slices"
	"testing"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

func floored(id uint64, column uint8, delta, floor int64) engine.Op {
	return engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: engine.FloorMark | column, Value: floor}, {Column: column, Value: delta}}}
}

func flooredOps() [][]engine.Op {
	return [][]engine.Op{{
		add(7, 1, 2), floored(7, 1, -3, 0), floored(7, 5, -1, -4),
		{ID: 8, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: 4}, {Column: engine.FloorMark | 63, Value: -1 << 63}, {Column: 63, Value: -1 << 63}}},
	}}
}

func TestFlooredEntryBytesAreGolden(t *testing.T) {
	entry := entryOf(8, flooredOps()...)
	rafttest.Golden(t, "entry-floors.bin", entry)
	c := newCounters(t)
	r := c.Apply(rafttest.Command(1, entry)).(*raftfsm.Result)
	if want := []engine.Cut{{Op: 1, Column: 1, Added: -2}}; !slices.Equal(r.Cuts, want) || len(r.Overflows) > 0 {
		t.Errorf("cuts %v, refused %v", r.Cuts, r.Overflows)
	}
}

// Only ops with a negative delta contain the floors of their columns. Other ops have the same bytes
// with and without floors.
func TestFloorsOfColumns(t *testing.T) {
	floors := raftfsm.SettingsOf([]string{"a", "b", "c"}, column.Settings[int64]{Floors: map[string]int64{"b": 0, "c": -5}})
	write := func(f *raftfsm.Settings, ops ...engine.Op) (section []byte) {
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &dedup.RequestID{})
		w.SetSettings(f)
		for i := range ops {
			Ops(ops).AppendTo(&w, ops[i].ID, i)
		}
		return w.Section()
	}
	for name, c := range map[string]struct {
		op, want engine.Op
	}{
		"a column without one":       {add(1, 0, -1), add(1, 0, -1)},
		"a column beyond":            {add(1, 9, -1), add(1, 9, -1)},
		"up":                         {add(1, 1, 3), add(1, 1, 3)},
		"down":                       {add(1, 1, -3), floored(1, 1, -3, 0)},
		"the op's own, higher":       {floored(1, 2, -3, 1), floored(1, 2, -3, 1)},
		"the op's own, lower":        {floored(1, 2, -3, -9), floored(1, 2, -3, -5)},
		"the op's own, of no column": {floored(1, 0, -3, -9), floored(1, 0, -3, -9)},
		"the op's own, up":           {floored(1, 0, 3, -9), add(1, 0, 3)},
		"a set":                      {engine.Op{ID: 1, Kind: engine.OpSet, Cells: []engine.Cell{{Column: 1, Value: -3}}}, engine.Op{ID: 1, Kind: engine.OpSet, Cells: []engine.Cell{{Column: 1, Value: -3}}}},
	} {
		t.Run(name, func(t *testing.T) {
			held, err := decoded(write(floors, c.op))
			if err != nil || !sameOps(held.batch.Ops, []engine.Op{c.want}) {
				t.Errorf("written as %v: %v", held.batch.Ops, err)
			}
		})
	}
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	w.SetSettings(floors)
	Ops{{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 1, Value: -1}}}}.AppendTo(&w, 1, 0)
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	if _, has := w.Setting(column.Floor, 1); has {
		t.Error("the next section has the floors of the one before")
	}
}

func TestFloorsWithoutAForm(t *testing.T) {
	sealed := func(cells string) []byte {
		request := "\x01\x00" + cells // the route
		return codec.AppendChecksum(append(append(codec.BeginEntry(nil, codec.KindCounters, 0), codec.SectionRequest, byte(len(request)), 0, 0, 0), request...))
	}
	key := "\x00\x00\x00\x00\x00\x00\x00\x00"
	for name, entry := range map[string][]byte{
		"of a set":         sealed("\x02" + key + "\x40\x01\x00"),
		"of a delta above": sealed("\x01" + key + "\x40\x02\x00"),
		"of no delta":      sealed("\x01" + key + "\x40\x00\x00"),
		"cut":              sealed("\x01" + key + "\x40\x01"),
		"of a take":        sealed("\x04" + key + "\x40\x01\x00"),
		"more, and none":   sealed("\x01" + key + "\xc0\x01\x00"),
	} {
		t.Run(name, func(t *testing.T) {
			if err := rafttest.ApplyError(newCounters(t), rafttest.Command(1, entry)); err == nil || !errors.Is(err, codec.ErrEntry) {
				t.Errorf("it was taken: %v", err)
			}
		})
	}
	if err := rafttest.ApplyError(newCounters(t), rafttest.Command(1, sealed("\x01"+key+"\x40\x01\x00"))); err != nil {
		t.Errorf("a good one: %v", err)
	}
	for name, op := range map[string]engine.Op{
		"alone":             {Kind: engine.OpAdd, Cells: []engine.Cell{{Column: engine.FloorMark}}},
		"last":              {Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 1, Value: 1}, {Column: engine.FloorMark | 1}}},
		"of another column": {Kind: engine.OpAdd, Cells: []engine.Cell{{Column: engine.FloorMark | 1}, {Column: 2, Value: -1}}},
		"of a set":          {Kind: engine.OpSet, Cells: []engine.Cell{{Column: engine.FloorMark | 1}, {Column: 1, Value: -1}}},
	} {
		t.Run(name, func(t *testing.T) {
			mustNotBeWritten(t, func(w *raftfsm.RequestWriter) { Ops{op}.AppendTo(w, 1, 0) })
		})
	}
}

// Refusable names the cell that may have refused an op, with the floors of columns in mind.
func TestRefusable(t *testing.T) {
	floors := raftfsm.SettingsOf([]string{"a", "b"}, column.Settings[int64]{Floors: map[string]int64{"a": 0}})
	down := engine.Op{ID: 1, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: -1}, {Column: 1, Value: -1}}}
	for name, test := range map[string]struct {
		op     engine.Op
		of     *raftfsm.Settings
		column uint8
		could  bool
	}{
		"without floors":     {down, nil, 0, true},
		"with a floor":       {down, floors, 1, true},
		"only floors now":    {add(1, 0, -1), floors, 0, true}, // the floor may be newer than the refusal
		"its own floor":      {floored(1, 1, -1, 0), nil, 1, true},
		"a read":             {add(1, 1, 0), nil, 0, false},
		"a set":              {engine.Op{Kind: engine.OpSet, Cells: []engine.Cell{{Column: 1, Value: 1}}}, nil, 0, false},
		"a delete":           {engine.Op{Kind: engine.OpDelete}, nil, 0, false},
		"a take":             {engine.Op{Kind: engine.OpTake, Cells: []engine.Cell{{Column: 1, Value: 1}}}, nil, 0, false},
		"a join":             {engine.Join(1, 1, 7), floors, 1, true},
		"a leave":            {engine.Leave(1, 1, 7), floors, 1, true},
		"a leave to a floor": {engine.Leave(1, 0, 7), floors, 0, true},
		"a copy":             {engine.Copy(1, 1, 7, 5), floors, 0, false},
		"a clear":            {engine.Op{Kind: engine.OpClearMembers}, nil, 0, false},
	} {
		if refused, could := (Ops{test.op}).Refusable(0, nil, test.of); could != test.could || refused != (engine.Overflow{Column: test.column}) {
			t.Errorf("%s: %+v, %v", name, refused, could)
		}
	}
}
