package api

import (
	"fmt"
	"slices"

	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/strictjson"
)

// change is a way to change counts. It has the name of the JSON member in an op, and the op's kind
// in the engine.
type change struct {
	member string
	kind   engine.OpKind
}

var (
	changeAdd = change{"add", engine.OpAdd}
	changeSet = change{"set", engine.OpSet}
)

// decodeOps reads {"ops":[{"id":…,"<member>":{column:value,…},"floor":n?},…],"want":"none"?}
// into r.ops and r.wantNone. Columns are those of r.keyspace.
func (r *request) decodeOps(body []byte, ch change) error {
	return r.decodeBatch(body, func(i int) { r.decodeOp(i, ch) })
}

// decodeBatch reads {"ops":[…],"want":"none"?}. A batch of members may also have "counted":bool.
// decodeOp reads the ith op.
func (r *request) decodeBatch(body []byte, decodeOp func(i int)) error {
	c := r.objectIn(body)
	var s seen
	for n := 0; c.Next(n, '}'); n++ {
		switch key := c.Key(); string(key) {
		case "ops":
			s.once(c, 0, "ops")
			r.decodeOpList(decodeOp)
		case "want":
			s.once(c, 1, "want")
			if c.Peek() != '"' || string(c.Str()) != "none" {
				c.Fail("want", `it can only be "none"`)
			}
			r.wantNone = true
		case "counted":
			if r.takes&takesColumn == 0 {
				c.Fail("counted", strictjson.NoSuchField+bodyOfOps)
			}
			s.once(c, 2, "counted")
			r.sets.uncounted = !c.boolean("counted")
		default:
			c.Fail(operate.Shown(key), strictjson.NoSuchField+bodyOfOps)
		}
	}
	s.need(c, 0, "ops")
	r.linkCells()
	return r.decoded()
}

// decodeRowSet reads {"set":{column:value,…}} as the only op, on row id.
func (r *request) decodeRowSet(body []byte, id uint64) error {
	err := r.allMembers(body, []string{"set"}, func(*cursor, int) { r.decodeCells(bodyOp, changeSet.member) })
	r.addOp(engine.Op{ID: id, Kind: changeSet.kind})
	r.linkCells()
	return err
}

func (r *request) decodeOpList(decodeOp func(i int)) {
	c := &r.cursor
	if !c.Begin('[') {
		c.Fail("ops", strictjson.NotArray)
	}
	for n := 0; c.Next(n, ']'); n++ {
		if n == opsMax {
			c.Fail("ops", fmt.Sprintf("more than %d", opsMax))
			return
		}
		decodeOp(n)
	}
	if len(r.ops) == 0 {
		c.Fail("ops", "at least one is needed")
	}
}

// decodeOp reads the ith op.
func (r *request) decodeOp(i int, ch change) {
	c := &r.cursor
	if !c.Begin('{') {
		c.Fail(opPath(i, ""), strictjson.NotObject)
	}
	op := engine.Op{Kind: ch.kind}
	hasID, hasCells, floor := false, false, opFloor{}
	first := len(r.cells)
	for n := 0; c.Next(n, '}'); n++ {
		key := c.Key()
		switch {
		case string(key) == r.rowMember() && !hasID:
			hasID = true
			var problem string
			if op.ID, problem = r.texts.Read(&r.cursor.Cursor, namesOf(r.keyspace), opSlot+2*i); problem != "" {
				c.Fail(opPath(i, r.rowMember()), problem)
			}
		case string(key) == ch.member && !hasCells:
			hasCells = true
			r.decodeCells(i, ch.member)
		case string(key) == "floor" && ch.kind == engine.OpAdd && !floor.given:
			floor.read(c, opPath(i, "floor"))
		case string(key) == r.rowMember() || string(key) == ch.member || floor.given && string(key) == "floor":
			c.Fail(opPath(i, string(key)), strictjson.GivenTwice)
		default:
			c.Fail(opPath(i, operate.Shown(key)), operate.NoField(r.rowMember(), ch.member, "floor"))
		}
	}
	if c.Err == nil && !hasID {
		c.Fail(opPath(i, r.rowMember()), strictjson.Missing)
	}
	if c.Err == nil && !hasCells {
		c.Fail(opPath(i, ch.member), strictjson.Missing)
	}
	if floor.given {
		r.floorCells(first, floor.value)
	}
	r.addOp(op)
}

// opFloor is the floor of an op; given is false if it has none.
type opFloor struct {
	value int64
	given bool
}

func (f *opFloor) read(c *cursor, path string) {
	f.given = true
	var ok bool
	if f.value, ok = c.Int64(); !ok {
		c.Fail(path, strictjson.NotInt64)
	}
}

// floorCells inserts a floor before each cell that subtracts. A floor does not affect other cells.
// The cells of the op begin at index first of r.cells.
func (r *request) floorCells(first int, floor int64) {
	for i := len(r.cells) - 1; i >= first; i-- {
		if c := r.cells[i]; c.Value < 0 {
			r.cells = slices.Insert(r.cells, i, engine.Cell{Column: engine.FloorMark | c.Column, Value: floor})
		}
	}
}

// decodeCells reads {column:value,…}, the value of a JSON member of the ith op, and appends its
// cells to r.cells.
func (r *request) decodeCells(i int, member string) {
	c := &r.cursor
	if !c.Begin('{') {
		c.Fail(opPath(i, member), strictjson.NotObject)
	}
	var columns uint64 // columns read so far, a bit for each number; engine.ColumnsMax is 64
	for n := 0; c.Next(n, '}'); n++ {
		key := c.Key()
		column := r.columnNumber(key)
		switch {
		case c.Err != nil:
			return
		case column < 0:
			c.Fail(opPath(i, member)+"."+operate.Shown(key), noColumnOf(r.keyspace))
			return
		case columns&(1<<column) != 0:
			c.Fail(opPath(i, member)+"."+string(key), strictjson.GivenTwice)
			return
		}
		columns |= 1 << column
		value, ok := c.Int64()
		if !ok {
			c.Fail(opPath(i, member)+"."+r.keyspace.Columns[column], strictjson.NotInt64)
			return
		}
		r.cells = append(r.cells, engine.Cell{Column: uint8(column), Value: value})
	}
	if columns == 0 {
		c.Fail(opPath(i, member), oneColumn)
	}
}

// addOp appends an op. The op gets all cells that r.cells has gained since the previous addOp.
func (r *request) addOp(op engine.Op) {
	r.ops = append(r.ops, op)
	r.cellEnds = append(r.cellEnds, len(r.cells))
}

// linkCells sets the cells of each op. Call it after the last append to r.cells.
func (r *request) linkCells() {
	start := 0
	for i, end := range r.cellEnds {
		r.ops[i].Cells = r.cells[start:end:end]
		start = end
	}
}
