package inbox

import (
	"math"

	"github.com/countd/countd/engine"
)

// ResetOps returns the two ops of a user's reset. The first op returns the cleared counts, the
// second op the remaining counts. The reset subtracts each cell's value from its column, but not
// below 0. If everything is set, it sets the columns to 0, even if they are negative. The returned
// slice contains the cells of both ops: first cells, then as many appended ones.
func ResetOps(user uint64, cells []engine.Cell, everything bool) ([2]engine.Op, []engine.Cell) {
	n := len(cells)
	left := engine.OpAdd
	if everything {
		left = engine.OpSet
		for i := range cells {
			cells[i].Value = math.MaxInt64
		}
	}
	for _, cell := range cells[:n] {
		cells = append(cells, engine.Cell{Column: cell.Column})
	}
	return [2]engine.Op{
		{ID: user, Kind: engine.OpTake, Cells: cells[:n:n]},
		{ID: user, Kind: left, Cells: cells[n : 2*n : 2*n]},
	}, cells
}
