package strictjson

// Member contains the fields of an op that changes a member of a set:
//
//	{"column":"like","member":"7","set":true}
//
// They may come in any order, among the other fields of the op. Parsing them allocates nothing
// unless there is a fault.
type Member struct {
	ID  uint64 // the member
	Set bool   // the member joins; otherwise it leaves
	// ColumnAt is the position of the column's string in the text. Field does not look up the
	// column, because the op's keyspace may come after it.
	ColumnAt int
	// ReadID reads the member, and returns the problem of a bad value; nil for Cursor.ID.
	ReadID func(c *Cursor) (id uint64, problem string)

	read uint8
}

const (
	column uint8 = 1 << iota
	member
	set
)

// If key is one of the fields of Member, Field parses its value and returns true. It returns false
// for a field "set" whose value is not true or false, because other ops have such a field. path
// returns the JSON path of a field of the op.
func (m *Member) Field(c *Cursor, key []byte, path func(field string) string) bool {
	switch string(key) {
	case "column":
		m.once(c, column, "column", path)
		if c.Peek() != '"' {
			c.Fail(path("column"), NotString)
			return true
		}
		m.ColumnAt = c.At
		c.Str()
	case "member":
		m.once(c, member, "member", path)
		if problem := m.readID(c); problem != "" {
			c.Fail(path("member"), problem)
		}
	case "set":
		if next := c.Peek(); next != 't' && next != 'f' {
			return false
		}
		m.once(c, set, "set", path)
		var ok bool
		if m.Set, ok = c.Bool(); !ok {
			c.Fail(path("set"), NotBool)
		}
	default:
		return false
	}
	return true
}

func (m *Member) readID(c *Cursor) (problem string) {
	if m.ReadID != nil {
		m.ID, problem = m.ReadID(c)
		return problem
	}
	var ok bool
	if m.ID, ok = c.ID(); !ok {
		return NotUint64
	}
	return ""
}

func (m *Member) once(c *Cursor, field uint8, name string, path func(string) string) {
	if m.read&field != 0 {
		c.Fail(path(name), GivenTwice)
	}
	m.read |= field
}

// Given reports whether the op has any of the fields.
func (m *Member) Given() bool { return m.read != 0 }

// Missing returns the name of the first missing field, or "". A caller whose ops have no field
// "column" passes false for hasColumn, and the column then never counts as missing.
func (m *Member) Missing(hasColumn bool) string {
	switch {
	case hasColumn && m.read&column == 0:
		return "column"
	case m.read&member == 0:
		return "member"
	case m.read&set == 0:
		return "set"
	}
	return ""
}
