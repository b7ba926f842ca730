package sourcesink

import (
	"testing"

	"github.com/countd/countd/engine"
)

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
