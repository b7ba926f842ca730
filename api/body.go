package api

import (
	"errors"
	"fmt"

	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/internal/strictjson"
)

// rowMember returns the name of the JSON member with the id of a row.
func (r *request) rowMember() string { return rowMember(r.keyspace) }

// objectIn starts to decode a body that is an object.
func (r *request) objectIn(body []byte) *cursor {
	c := &r.cursor
	c.Reset(body)
	if len(body) == 0 {
		c.Fail("body", "empty, an object is needed")
	}
	if !c.Begin('{') {
		c.Fail("body", strictjson.NotObject)
	}
	return c
}

// decoded ends decoding, and returns the body's fault.
func (r *request) decoded() error {
	r.cursor.End()
	return r.cursor.fault()
}

// optional returns the body of a call whose body may be empty: an empty body means {}.
func optional(body []byte) []byte {
	if len(body) == 0 {
		return []byte("{}")
	}
	return body
}

// seen is a set of members of an object that were read, one bit for each.
type seen uint32

// once records that the member with this bit was read. It refuses a second occurrence.
func (s *seen) once(c *cursor, bit int, path string) {
	if *s&(1<<bit) != 0 {
		c.Fail(path, strictjson.GivenTwice)
	}
	*s |= 1 << bit
}

// need records a fault if the member with this bit was not read.
func (s seen) need(c *cursor, bit int, path string) {
	if !s.has(bit) {
		c.Fail(path, strictjson.Missing)
	}
}

func (s seen) has(bit int) bool { return s&(1<<bit) != 0 }

// members passes each member of the body to the function read, with the index of the member's name
// in names. Members must be in names, and occur at most once.
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
			c.Fail(operate.Shown(key), operate.NoField(names...))
			break
		}
		s.once(c, member, names[member])
		read(c, member)
	}
	return s, r.decoded()
}

// allMembers does the same as members, and requires all of names.
func (r *request) allMembers(body []byte, names []string, read func(c *cursor, member int)) error {
	s, err := r.members(body, names, read)
	for i, name := range names {
		if err == nil && !s.has(i) {
			err = invalid(name, strictjson.Missing)
		}
	}
	return err
}

// cursor parses a body. Its Err is a *strictjson.FieldError or a *fault.
type cursor struct{ strictjson.Cursor }

// boolean reads true or false.
func (c *cursor) boolean(path string) bool {
	value, ok := c.Bool()
	if !ok {
		c.Fail(path, strictjson.NotBool)
	}
	return value
}

// countIn reads an integer from 1 to limit.
func (c *cursor) countIn(path string, limit int64) int {
	v, ok := c.Int64()
	if !ok || v < 1 || v > limit {
		c.Fail(path, fmt.Sprintf("not an integer from 1 to %d", limit))
		return 0
	}
	return int(v)
}

// stop records a fault of the whole body. It replaces an earlier fault.
func (c *cursor) stop(err error) {
	c.Err, _ = faultOf(err)
}

// fault returns the body's fault as a *fault, or nil.
func (c *cursor) fault() error {
	if e, ok := errors.AsType[*strictjson.FieldError](c.Err); ok {
		return invalid(e.Path, e.Problem)
	}
	return c.Err
}

// decodeIDs reads a list of countMin to countMax ids of a space into r.ids.
func (r *request) decodeIDs(path, space string, countMin, countMax int) {
	c := &r.cursor
	if !c.Begin('[') {
		c.Fail(path, strictjson.NotArray)
	}
	for n := 0; c.Next(n, ']'); n++ {
		if n == countMax {
			c.Fail(path, fmt.Sprintf("more than %d", countMax))
			return
		}
		id, problem := r.texts.Read(&c.Cursor, space, listSlot+n)
		if problem != "" {
			c.Fail(fmt.Sprintf("%s[%d]", path, n), problem)
			return
		}
		r.ids = append(r.ids, id)
	}
	if len(r.ids) < countMin {
		c.Fail(path, "at least one is needed")
	}
}

// decodeColumns parses the columns of a read.
func (r *request) decodeColumns() {
	c := &r.cursor
	if !c.Begin('[') {
		c.Fail("columns", strictjson.NotArray)
	}
	var columns uint64 // columns requested so far, one bit for each column number
	for n := 0; c.Next(n, ']'); n++ {
		if c.Peek() != '"' {
			c.Fail(fmt.Sprintf("columns[%d]", n), strictjson.NotString)
			return
		}
		column := r.columnNumber(c.Str())
		switch {
		case c.Err != nil:
			return
		case column < 0:
			c.Fail(fmt.Sprintf("columns[%d]", n), noColumnOf(r.keyspace))
			return
		case columns&(1<<column) != 0:
			c.Fail(fmt.Sprintf("columns[%d]", n), strictjson.GivenTwice)
			return
		}
		columns |= 1 << column
		r.columns = append(r.columns, uint8(column))
	}
	if columns == 0 {
		c.Fail("columns", oneColumn)
	}
}

// allColumns selects every column of the keyspace that was not dropped.
func (r *request) allColumns() {
	for i, name := range r.keyspace.Columns {
		if name != "" {
			r.columns = append(r.columns, uint8(i))
		}
	}
}
