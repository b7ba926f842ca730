package unread

import (
	"math"

	"github.com/countd/countd/engine"
)

// ResetOps returns the ops of a user's reset: the first answers what it took, the
// second what is left. What is taken is cells, each column up to its value and never
// below 0, or with all the whole columns of cells, whatever their values, also of what
// is below 0. The ops hold parts of the slice that is returned, which is cells with as
// many behind.
func ResetOps(user uint64, cells []engine.Cell, all bool) ([2]engine.Op, []engine.Cell) {
	n := len(cells)
	left := engine.OpAdd
	if all {
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
