package engine

import (
	"math"

	"github.com/countd/countd/client/column"
)

// ColumnsMax bounds the columns of a row. A row that uses column n-1 makes every row of its segment
// take ⌈n/4⌉ words.
const ColumnsMax = 64

// OpKind selects what an Op does to its row.
type OpKind uint8

const (
	// OpAdd adds each cell's value to its column.
	OpAdd OpKind = 1
	// OpSet makes each cell's column equal to its value; other columns stay.
	OpSet OpKind = 2
	// OpDelete makes every column zero, which is the same as an absent row.
	OpDelete OpKind = 3
	// OpTake subtracts each cell's value from its column, but not below 0; a negative count stays
	// as it is. Its result row has the amounts that were subtracted, not the remaining counts.
	// Values must not be negative.
	OpTake OpKind = 4

	// OpJoin adds a member to the set of its row's column, and 1 to the count if the member was not
	// in the set. OpLeave removes a member, and subtracts 1 if the member was in the set. Each has
	// one cell, whose value is the member's 64 bits. An op made by Copy has a second cell. A Table
	// has no sets: package counters replaces these ops by an OpAdd.
	OpJoin  OpKind = 5
	OpLeave OpKind = 6
	// OpClearMembers removes all members in the shard of its id. A Table never receives it.
	OpClearMembers OpKind = 7
)

// Cell is one column of an Op and a number: the delta of an OpAdd, the new count of an OpSet, or
// the largest amount that an OpTake subtracts.
type Cell struct {
	Column uint8 // below ColumnsMax, or FloorMark plus the column of the next cell
	Value  int64
}

// If the Column of an OpAdd cell is FloorMark plus a column, the cell's Value is a floor for the
// next cell, which must be of that column. The sum never drops below the floor. A column that is
// already below its floor keeps its value. A floor never raises a count, so it affects only
// negative deltas.
const FloorMark = 0x80

// IsBound reports whether the cell bounds the next cell and changes nothing itself.
func (c *Cell) IsBound() bool { return c.Column >= ColumnsMax }

// Cut is a delta that the table changed, because of the bound in the cell before it.
type Cut struct {
	Op     int // index of the op in the argument of Apply
	Column uint8
	Added  int64 // the amount that was added instead of the delta
}

// Op is one change of one row. It is applied whole or not at all. Cells of the same column are
// applied in order. An OpDelete has no cells.
type Op struct {
	ID    uint64
	Kind  OpKind
	Cells []Cell
}

// Join returns an op that adds a member to the set of a row's column.
func Join(id uint64, column uint8, member uint64) Op {
	return Op{ID: id, Kind: OpJoin, Cells: []Cell{{Column: column, Value: int64(member)}}}
}

// Leave returns an op that removes a member from the set of a row's column.
func Leave(id uint64, column uint8, member uint64) Op {
	return Op{ID: id, Kind: OpLeave, Cells: []Cell{{Column: column, Value: int64(member)}}}
}

// Copy returns an op that adds a member with a stamp copied from another set. The op does not
// change the count. With stamp 0, the member gets a new stamp, as with Join.
func Copy(id uint64, column uint8, member uint64, stamp uint64) Op {
	op := Join(id, column, member)
	op.Cells = append(op.Cells, Cell{Column: column, Value: int64(stamp)})
	return op
}

// Copied reports whether the op was made by Copy, and returns its stamp.
func (op *Op) Copied() (stamp uint64, copied bool) {
	if op.Kind != OpJoin || len(op.Cells) < 2 {
		return 0, false
	}
	return uint64(op.Cells[1].Value), true
}

// OfMember reports whether the op is an OpJoin or OpLeave.
func (op *Op) OfMember() bool { return op.Kind == OpJoin || op.Kind == OpLeave }

// OfSets reports whether the op changes sets of members.
func (op *Op) OfSets() bool { return op.OfMember() || op.Kind == OpClearMembers }

// HasValue reports whether the op can create a row. An OpJoin can, and so can an op with a cell
// that is not a bound and whose value is not 0.
func (op *Op) HasValue() bool {
	if op.OfMember() {
		return op.Kind == OpJoin
	}
	for i := range op.Cells {
		if op.Cells[i].Value != 0 && !op.Cells[i].IsBound() {
			return true
		}
	}
	return false
}

// Refusal returns the likely refusal of an OpAdd that was refused before. row is the present row of
// the op, or nil. If row does not refuse the op, Refusal names the first cell that a count at the end
// of its range refuses.
func (op *Op) Refusal(row []int64) Overflow {
	var counts [ColumnsMax]int64
	copy(counts[:], row)
	for range 2 {
		if _, refused, ok := op.change(counts[:], 0, nil); !ok {
			return refused
		}
		for i := range op.Cells {
			end := &counts[op.Cells[i].Column%ColumnsMax] // a bound's next cell overwrites it
			if *end = math.MaxInt64; op.Cells[i].Value < 0 {
				*end = math.MinInt64
			}
		}
	}
	return Overflow{Column: op.Cells[len(op.Cells)-1].Column}
}

// change applies the op's cells to row, and appends a Cut to cuts for each delta that a bound changed.
// number is the index of the op. If a column refuses the op, change returns the refusal and false;
// row and cuts may then be partly changed.
func (op *Op) change(row []int64, number int, cuts []Cut) (_ []Cut, refused Overflow, ok bool) {
	if op.Kind == OpDelete {
		clear(row)
		return cuts, refused, true
	}
	var floor *int64 // floor of the next cell
	for i := range op.Cells {
		c := &op.Cells[i]
		switch {
		case c.IsBound():
			floor = &c.Value
			continue
		case op.Kind == OpSet:
			row[c.Column] = c.Value
			continue
		case op.Kind == OpTake:
			row[c.Column] -= min(c.Value, max(0, row[c.Column]))
			continue
		}
		was := row[c.Column]
		sum, ok := addInt64(was, c.Value)
		if floor != nil && c.Value < 0 && (!ok || sum < *floor) {
			sum, ok = min(was, *floor), true
			cuts = append(cuts, Cut{Op: number, Column: c.Column, Added: sum - was})
		}
		if floor = nil; !ok {
			return cuts, Overflow{Op: number, Column: c.Column, Why: column.Overflow}, false
		}
		row[c.Column] = sum
	}
	return cuts, refused, true
}

// Overflow describes an op that Apply refused.
type Overflow struct {
	Op     int   // index of the op in the argument of Apply
	Column uint8 // first column that refuses the op
	Why    column.Refusal
}

// addInt64 returns a+b and whether the sum fits an int64.
func addInt64(a, b int64) (int64, bool) {
	if b > 0 && a > math.MaxInt64-b || b < 0 && a < math.MinInt64-b {
		return a, false
	}
	return a + b, true
}
