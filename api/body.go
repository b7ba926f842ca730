package api

import (
	"fmt"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/shard"
)

// opsMax bounds the ops of one write. A larger request would delay the others of its shards for
// long, and the client can split it.
const opsMax = 10_000

// change is a way to change counts: the name of the member in a body, and the kind of op in
// the engine.
type change struct {
	member string
	kind   engine.OpKind
}

var (
	changeAdd = change{"add", engine.OpAdd}
	changeSet = change{"set", engine.OpSet}
)

// rowMember returns the name of the member that holds the id of a row.
func (r *request) rowMember() string { return rowMember(r.keyspace) }

// objectIn starts the decoding of a body, which is an object.
func (r *request) objectIn(body []byte) *cursor {
	c := &r.cursor
	c.Reset(body)
	if len(body) == 0 {
		c.Fail("body", "empty, an object is needed")
	}
	if !c.Begin('{') {
		c.Fail("body", notObject)
	}
	return c
}

// decoded ends the decoding of a body.
func (r *request) decoded() error {
	r.cursor.End()
	return r.cursor.fault()
}

// optional returns the body of a call that needs none: an empty body means {}.
func optional(body []byte) []byte {
	if len(body) == 0 {
		return []byte("{}")
	}
	return body
}

// seen remembers which members of an object were read, a bit for each.
type seen uint16

// once records that member bit is read. It refuses a member that was read before.
func (s *seen) once(c *cursor, bit int, path string) {
	if *s&(1<<bit) != 0 {
		c.Fail(path, givenTwice)
	}
	*s |= 1 << bit
}

// need fails if member bit of the object was not read.
func (s seen) need(c *cursor, bit int, path string) {
	if !s.has(bit) {
		c.Fail(path, missing)
	}
}

func (s seen) has(bit int) bool { return s&(1<<bit) != 0 }

// members calls read for each member of the body's object, with the index of the member's name in
// names. Each member must be in names and may occur once.
func (r *request) members(body []byte, names []string, read func(c *cursor, member int)) (seen, error) {
	c := r.objectIn(body)
	var s seen
	for n := 0; c.Next(n, '}'); n++ {
		key, member := c.Key(), -1
		for i, name := range names {
			if name == string(key) {
				member = i
			}
		}
		if member < 0 {
			c.Fail(shown(key), noField(names...))
			break
		}
		s.once(c, member, names[member])
		read(c, member)
	}
	return s, r.decoded()
}

// allMembers is members for a body that must have a member for each of the names.
func (r *request) allMembers(body []byte, names []string, read func(c *cursor, member int)) error {
	s, err := r.members(body, names, read)
	for i, name := range names {
		if err == nil && !s.has(i) {
			err = invalid(name, missing)
		}
	}
	return err
}

// decodeOps reads {"ops":[{"id":…,"<member>":{column:value,…},"floor":n?},…],"want":"none"?}
// into r.write.Ops and r.wantNone. Columns are those of r.keyspace.
func (r *request) decodeOps(body []byte, ch change) error {
	return r.decodeBatch(body, func(i int) { r.decodeOp(i, ch) })
}

// decodeBatch reads {"ops":[…],"want":"none"?}, of members with "counted":bool? too. decodeOp
// reads the ith op.
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
				c.Fail("counted", noSuchFld+bodyOfOps)
			}
			s.once(c, 2, "counted")
			r.sets.uncounted = !c.boolean("counted")
		default:
			c.Fail(shown(key), noSuchFld+bodyOfOps)
		}
	}
	s.need(c, 0, "ops")
	r.linkCells()
	return r.decoded()
}

// decodeRowSet reads {"set":{column:value,…}} as the only op, of row id.
func (r *request) decodeRowSet(body []byte, id uint64) error {
	err := r.allMembers(body, []string{"set"}, func(*cursor, int) { r.decodeCells(bodyOp, changeSet.member) })
	r.addOp(engine.Op{ID: id, Kind: changeSet.kind})
	r.linkCells()
	return err
}

func (r *request) decodeOpList(decodeOp func(i int)) {
	c := &r.cursor
	if !c.Begin('[') {
		c.Fail("ops", notArray)
	}
	for n := 0; c.Next(n, ']'); n++ {
		if n == opsMax {
			c.Fail("ops", fmt.Sprintf("more than %d", opsMax))
			return
		}
		decodeOp(n)
	}
	if len(r.write.Ops) == 0 {
		c.Fail("ops", "at least one is needed")
	}
}

// decodeOp reads the ith op.
func (r *request) decodeOp(i int, ch change) {
	c := &r.cursor
	if !c.Begin('{') {
		c.Fail(opPath(i, ""), notObject)
	}
	op := engine.Op{Kind: ch.kind}
	hasID, hasCells, floor := false, false, opFloor{}
	first := len(r.cells)
	for n := 0; c.Next(n, '}'); n++ {
		key := c.Key()
		switch {
		case string(key) == r.rowMember() && !hasID:
			hasID = true
			var ok bool
			if op.ID, ok = c.ID(); !ok {
				c.Fail(opPath(i, r.rowMember()), notUint64)
			}
		case string(key) == ch.member && !hasCells:
			hasCells = true
			r.decodeCells(i, ch.member)
		case string(key) == "floor" && ch.kind == engine.OpAdd && !floor.given:
			floor.read(c, opPath(i, "floor"))
		case string(key) == r.rowMember() || string(key) == ch.member || floor.given && string(key) == "floor":
			c.Fail(opPath(i, string(key)), givenTwice)
		default:
			c.Fail(opPath(i, shown(key)), noField(r.rowMember(), ch.member, "floor"))
		}
	}
	if c.Err == nil && !hasID {
		c.Fail(opPath(i, r.rowMember()), missing)
	}
	if c.Err == nil && !hasCells {
		c.Fail(opPath(i, ch.member), missing)
	}
	if floor.given {
		r.floorCells(first, floor.value)
	}
	r.addOp(op)
}

// opFloor is the floor of an op; given reports whether there is one.
type opFloor struct {
	value int64
	given bool
}

func (f *opFloor) read(c *cursor, path string) {
	f.given = true
	var ok bool
	if f.value, ok = c.Int64(); !ok {
		c.Fail(path, notInt64)
	}
}

// floorCells inserts a floor before each cell of an op that subtracts. A floor cannot affect other
// cells. The cells of the op begin at
// index first of r.cells.
func (r *request) floorCells(first int, floor int64) {
	for i := len(r.cells) - 1; i >= first; i-- {
		if c := r.cells[i]; c.Value < 0 {
			r.cells = slices.Insert(r.cells, i, engine.Cell{Column: engine.FloorMark | c.Column, Value: floor})
		}
	}
}

// decodeCells reads {column:value,…}, the value of a JSON member of the ith op, and appends it to r.cells.
func (r *request) decodeCells(i int, member string) {
	c := &r.cursor
	if !c.Begin('{') {
		c.Fail(opPath(i, member), notObject)
	}
	var columns uint64 // read so far, by number; engine.ColumnsMax is 64
	for n := 0; c.Next(n, '}'); n++ {
		key := c.Key()
		column := r.columnNumber(key)
		switch {
		case c.Err != nil:
			return
		case column < 0:
			c.Fail(opPath(i, member)+"."+shown(key), noColumnOf(r.keyspace))
			return
		case columns&(1<<column) != 0:
			c.Fail(opPath(i, member)+"."+string(key), givenTwice)
			return
		}
		columns |= 1 << column
		value, ok := c.Int64()
		if !ok {
			c.Fail(opPath(i, member)+"."+r.keyspace.Columns[column], notInt64)
			return
		}
		r.cells = append(r.cells, engine.Cell{Column: uint8(column), Value: value})
	}
	if columns == 0 {
		c.Fail(opPath(i, member), oneColumn)
	}
}

// columnNumber returns the number of a column of the request's keyspace, or -1 if there is no
// such column.
func (r *request) columnNumber(name []byte) int {
	column := columnOf(r.keyspace, name)
	if column < 0 && r.cursor.Err == nil {
		var err error
		if column, err = r.columnIn(&r.keyspace, name); err != nil {
			r.cursor.stop(err)
		}
	}
	return column
}

// columnIn returns the number of a column of ks, or -1 if there is no such column. If this node
// does not know the column, columnIn brings ks up to date first.
func (r *request) columnIn(ks **shard.Keyspace, name []byte) (int, error) {
	was := *ks
	if column := columnOf(was, name); column >= 0 || r.caughtUp {
		return column, nil
	}
	if err := r.catchUp(); err != nil {
		return -1, err
	}
	if *ks = r.backend.Keyspace(was.Name); !was.Same(*ks) {
		return -1, shard.ErrUnknownKeyspace // the columns read before have numbers of the earlier keyspace
	}
	return columnOf(*ks, name), nil
}

// columnOf is ks.Column for a name that is still in the request.
func columnOf(ks *shard.Keyspace, name []byte) int {
	for i, column := range ks.Columns {
		if column == string(name) && column != "" {
			return i
		}
	}
	return -1
}

// addOp appends an op whose cells end where cells ends now.
func (r *request) addOp(op engine.Op) {
	r.write.Ops = append(r.write.Ops, op)
	r.cellEnds = append(r.cellEnds, len(r.cells))
}

// linkCells sets the cells of each op, after their array has its final place.
func (r *request) linkCells() {
	start := 0
	for i, end := range r.cellEnds {
		r.write.Ops[i].Cells = r.cells[start:end:end]
		start = end
	}
}
