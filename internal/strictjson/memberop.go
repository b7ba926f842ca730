package strictjson

// Member holds the fields of an op with a member:
//
//	{"column":"like","member":"7","set":true}
//
// They may come in any order, among the other fields of the op. Reading allocates nothing,
// except for a fault.
type Member struct {
	ID  uint64 // the member
	Set bool   // the member joins; otherwise it leaves
	// ColumnAt is the position of the column's string in the text. The caller may have to read the
	// op's keyspace before it can look the column up.
	ColumnAt int

	read uint8
}

const (
	column uint8 = 1 << iota
	member
	set
)

// If key is a field of an op with a member, Field reads its value and returns true. A field "set"
// belongs to an op with a member only if its value is true or false. path returns the JSON path of a
// field of the op.
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
		var ok bool
		if m.ID, ok = c.ID(); !ok {
			c.Fail(path("member"), NotUint64)
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

func (m *Member) once(c *Cursor, field uint8, name string, path func(string) string) {
	if m.read&field != 0 {
		c.Fail(path(name), GivenTwice)
	}
	m.read |= field
}

// Given reports whether any of the fields was read. If so, the op has a member.
func (m *Member) Given() bool { return m.read != 0 }

// Missing returns the first of the fields that was not read, or "". If the caller knows the column
// otherwise, hasColumn is false, and the column is never missing.
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
