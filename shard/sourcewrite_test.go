package shard

import (
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/wire"
	"github.com/countd/countd/source/sink"
)

// A position between nodes is what was sent, and a cut or spoiled one is refused.
func TestPositionAnswer(t *testing.T) {
	t.Parallel()
	for _, at := range []dedup.PositionAnswer{
		{},
		{Closed: true},
		{Deleted: true, Full: true},
		{Known: true, Checkpoint: dedup.Checkpoint{Epoch: 1<<32 - 1, At: sink.Position{Hi: 1<<64 - 1, Lo: 1}}},
	} {
		q := propose.Settled(nil)
		q.Result = raftfsm.NewResult(1, 0, nil, nil, dedup.Moved)
		q.Result.SetPosition(at)
		body := appendPositionAnswer(nil, q)
		if len(body) > positionAnswerMax {
			t.Errorf("%d bytes, the bound is %d", len(body), positionAnswerMax)
		}
		for n := range len(body) + 1 {
			r := wire.Reader{Rest: body[:n]}
			got := parsePositionAnswer(&r)
			if err := r.End(); (err == nil) != (n == len(body)) || err == nil && got != at {
				t.Errorf("%d bytes of %+v: %+v, %v", n, at, got, err)
			}
		}
	}
	r := wire.Reader{Rest: []byte{16}}
	if parsePositionAnswer(&r); r.End() == nil {
		t.Error("an unknown flag is taken")
	}
}

// Deltas merge only where one op gives the counts that two would.
func TestMergeCells(t *testing.T) {
	t.Parallel()
	const highest = 1<<63 - 1
	cells := func(values ...int64) (cells []engine.Cell) {
		for column, v := range values {
			cells = append(cells, engine.Cell{Column: uint8(column), Value: v})
		}
		return cells
	}
	floored := append([]engine.Cell{{Column: engine.FloorMark}}, cells(-1)...)
	for name, test := range map[string]struct {
		kind  engine.OpKind
		first []engine.Cell
		then  []engine.Cell
		want  []engine.Cell // nil if they do not merge
	}{
		"one column":   {engine.OpAdd, cells(1), cells(2), cells(3)},
		"more columns": {engine.OpAdd, cells(1), cells(2, 5), cells(3, 5)},
		"down":         {engine.OpAdd, cells(-1), cells(-2), cells(-3)},
		"up and down":  {engine.OpAdd, cells(1), cells(-2), nil},
		"one of two":   {engine.OpAdd, cells(1, 1), cells(1, -1), nil},
		"the highest":  {engine.OpAdd, cells(highest - 1), cells(1), cells(highest)},
		"overflow":     {engine.OpAdd, cells(highest), cells(1), nil},
		"underflow":    {engine.OpAdd, cells(-highest - 1), cells(-1), nil},
		"a floor":      {engine.OpAdd, floored, cells(-1), nil},
		"a value":      {engine.OpSet, cells(1), cells(1), nil},
	} {
		t.Run(name, func(t *testing.T) {
			op := engine.Op{Kind: test.kind, Cells: test.first}
			was := len(test.first)
			if merged := mergeCells(&op, test.then); merged != (test.want != nil) || !merged && len(op.Cells) != was {
				t.Fatalf("merged %v: %v", merged, op.Cells)
			}
			for i := range test.want {
				if op.Cells[i] != test.want[i] {
					t.Errorf("%v, want %v", op.Cells, test.want)
				}
			}
		})
	}
}
