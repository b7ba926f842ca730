package engine

import (
	"math"

	"github.com/countd/countd/client/column"
)

// ColumnsMax bounds the columns of a row. A row of n columns takes ⌈n/4⌉ words in every
// slot of its segment, so wide rows pay for unused columns.
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
	// as it is. Its result row holds the taken counts, not the remaining ones. Values must not be
	// negative.
	OpTake OpKind = 4

	// OpJoin adds a member to the set of its row's column, and 1 to the count if the member was not in
	// the set. OpLeave removes a member, and subtracts 1 if the member was in the set. Each has one
	// cell: the column, and the member's 64 bits as its value. A Copy has a second cell. A Table has
	// no sets: package counters passes it an OpAdd in place of these ops.
	OpJoin  OpKind = 5
	OpLeave OpKind = 6
	// OpClearMembers removes all members of the shard of its id. A Table never receives it.
	OpClearMembers OpKind = 7
)

// Cell is one column of an Op and its delta (OpAdd), its value (OpSet) or the most that OpTake takes.
type Cell struct {
	Column uint8 // below ColumnsMax, or FloorMark plus the column of the next cell
	Value  int64
}

// FloorMark in the Column of an OpAdd cell makes that cell the floor of the next cell, which names
// the same column. The sum never drops below the floor. A column that is already below its floor
// keeps its value. A floor never raises a count, so it affects only negative deltas.
const FloorMark = 0x80

// IsBound reports whether the cell bounds the next cell and changes nothing itself.
func (c *Cell) IsBound() bool { return c.Column >= ColumnsMax }

// Cut is a delta that a floor cut short.
type Cut struct {
	Op     int // index into the ops given to Apply
	Column uint8
	Added  int64 // the amount that was added instead of the delta
}

// Op is one change of one row. It applies whole or not at all. Cells of one column apply in order;
// an OpDelete has no cells.
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

// Copy returns an op that adds a member with the stamp that it has in another set. The op does not
// change the count. Stamp 0 stands for the time of the log entry.
func Copy(id uint64, column uint8, member uint64, stamp uint64) Op {
	op := Join(id, column, member)
	op.Cells = append(op.Cells, Cell{Column: column, Value: int64(stamp)})
	return op
}

// Copied reports whether the op is a Copy, and returns its stamp.
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

// HasValue reports whether any cell that is not a bound has a value other than 0. Only such an op
// can create a row.
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

// change applies the op's cells to row, and appends the deltas that floors cut short to
// cuts, under the op's number. If a column refuses the op, change returns the refusal and
// false; row and cuts are then half changed.
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

// Overflow names an op that Apply refused.
type Overflow struct {
	Op     int   // index into the ops given to Apply
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
