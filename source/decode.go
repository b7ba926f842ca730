package source

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/source/sink"
)

// opsMax bounds the ops of one message. A request has the same bound.
const opsMax = 10_000

// unread is the keyspace whose ops have a user instead of an id.
const unread = "unread"

// Decoder decodes messages into ops. Only one goroutine may use it.
type Decoder struct {
	decode     func(d *Decoder, value []byte) error
	mapping    *mapping
	cursor     strictjson.Cursor
	inner      strictjson.Cursor // cursor inside a value of the message
	raw        [mapSlots][]byte
	names      map[string]string // strings of keyspaces and columns, so that each is allocated once
	member     string            // text of the member that readMember has read, "" if it is a number
	readMember func(c *strictjson.Cursor) (id uint64, problem string)

	// Ops has the ops decoded since the last Reset.
	Ops   []sink.Op
	cells []sink.Cell // current chunk of cells; ops refer to it and to full chunks
}

// NewDecoder returns a decoder for messages of the source c, which must be valid.
func NewDecoder(c *Config) *Decoder {
	d := &Decoder{names: map[string]string{}, decode: (*Decoder).json}
	d.readMember = func(c *strictjson.Cursor) (id uint64, problem string) {
		id, d.member, problem = readID(c)
		return id, problem
	}
	if c.Map != nil {
		d.mapping, _ = compileMap(c.Map, c.Format)
		d.decode = (*Decoder).mapped
	}
	if c.Format == FormatDebezium {
		d.decode = (*Decoder).debezium
	}
	return d
}

// Reset forgets Ops and reuses their memory.
func (d *Decoder) Reset() { d.Ops, d.cells = d.Ops[:0], d.cells[:0] }

// Decode appends the ops of a message to Ops. On an error it appends none. The error is a
// *StalledError, or the reason why the message is bad.
func (d *Decoder) Decode(m *Message) error {
	first := len(d.Ops)
	if err := d.decode(d, m.Value); err != nil {
		d.Ops = d.Ops[:first]
		if reason := notText(m.Value); reason != "" {
			return errors.New(reason)
		}
		return err
	}
	for i := first; i < len(d.Ops); i++ {
		d.Ops[i].Position = m.Position
	}
	return nil
}

// notText returns the problem of a message whose first bytes show that it is not a JSON text, and
// otherwise "".
func notText(value []byte) string {
	for prefix, what := range map[string]string{
		"\x00":         "as in Confluent's wire format, which needs a schema registry; write plain JSON",
		"\xef\xbb\xbf": "that of a byte order mark; write JSON without one",
		"\xff\xfe":     "that of UTF-16's byte order mark; write JSON in UTF-8 without one",
		"\xfe\xff":     "that of UTF-16's byte order mark; write JSON in UTF-8 without one",
	} {
		if bytes.HasPrefix(value, []byte(prefix)) {
			return fmt.Sprintf("byte 0 of the message is 0x%02x, %s", value[0], what)
		}
	}
	if len(value) > 0 && (value[0] < ' ' && !bytes.ContainsAny(value[:1], "\t\r\n") || value[0] >= utf8.RuneSelf) {
		return fmt.Sprintf("byte 0 of the message is 0x%02x, which begins no JSON", value[0])
	}
	return ""
}

// json decodes one op or a list of ops, in the form of the body of /v1/ops.
func (d *Decoder) json(value []byte) error {
	if len(value) == 0 {
		return errors.New("empty: an op or a list of ops is needed")
	}
	c := &d.cursor
	c.Reset(value)
	if !c.Begin('[') {
		d.op("")
		c.End()
		return c.Err
	}
	count := 0
	for ; c.Next(count, ']'); count++ {
		if count == opsMax {
			return fmt.Errorf("more than %d ops", opsMax)
		}
		d.op(fmt.Sprintf("[%d].", count))
	}
	c.End()
	if c.Err == nil && count == 0 {
		return errors.New("a list without ops")
	}
	return c.Err
}

// op reads one op. path is the prefix of its fields' names in errors.
func (d *Decoder) op(path string) {
	c := &d.cursor
	if !c.Begin('{') {
		c.Fail(path+"op", strictjson.NotObject)
		return
	}
	const (
		keyspace = 1 << iota
		row
		verb
		floor
	)
	var o sink.Op
	of := strictjson.Member{ReadID: d.readMember}
	at := func(field string) string { return path + field }
	seen, member, verbName := 0, "", ""
	d.member = ""
	once := func(bit int, key string) {
		if seen&bit != 0 {
			c.Fail(path+key, strictjson.GivenTwice)
		}
		seen |= bit
	}
	for n := 0; c.Next(n, '}'); n++ {
		key := c.Key()
		if of.Field(c, key, at) {
			continue
		}
		switch string(key) {
		case "keyspace":
			once(keyspace, "keyspace")
			if c.Peek() != '"' {
				c.Fail(path+"keyspace", strictjson.NotString)
			}
			o.Keyspace = d.name(c.Str())
		case "id", "user":
			once(row, "id")
			member = d.name(key)
			id, text, problem := readID(c)
			if problem != "" {
				c.Fail(path+member, problem)
			}
			if o.ID = id; text != "" {
				o.Texts = &sink.Texts{ID: text, IDAt: path + member}
			}
		case "add", "set":
			o.Kind = sink.Add
			if key[0] == 's' {
				o.Kind = sink.Set
			}
			verbName = d.name(key)
			once(verb, verbName)
			d.opCells(&o, path+verbName)
		case "floor":
			once(floor, "floor")
			var ok bool
			if o.Floor, ok = c.Int64(); !ok {
				c.Fail(path+"floor", strictjson.NotInt64)
			}
			o.HasFloor = true
		default:
			c.Fail(path+shown(string(key)), strictjson.NoSuchField)
		}
	}
	if member == "user" && seen&keyspace == 0 {
		o.Keyspace = unread
	}
	switch {
	case o.Keyspace == "":
		c.Fail(path+"keyspace", strictjson.Missing)
	case seen&row == 0:
		c.Fail(path+"id", strictjson.Missing)
	case (member == "user") != (o.Keyspace == unread):
		c.Fail(path+member, "rows of unread have a user, all others an id")
	case of.Given() && seen&verb != 0:
		c.Fail(path+verbName, "an op with a member changes its count by itself")
	case of.Given():
		d.opMember(&o, &of, path)
	case seen&verb == 0:
		c.Fail(path+"add", strictjson.Missing)
	case o.Kind == sink.Set && o.HasFloor:
		c.Fail(path+"floor", "of an add only")
	case o.Kind == sink.Set && o.Keyspace == unread:
		c.Fail(path+"set", "counts of unread numbers are not set")
	}
	if c.Err == nil {
		d.Ops = append(d.Ops, o)
	}
}

// opMember turns o into an op by which a member joins or leaves a set.
func (d *Decoder) opMember(o *sink.Op, of *strictjson.Member, path string) {
	c := &d.cursor
	switch lacks := of.Missing(true); {
	case o.Keyspace == unread:
		c.Fail(path+"member", "rows of unread have no members")
	case o.HasFloor:
		c.Fail(path+"floor", "of an add only")
	case lacks != "":
		c.Fail(path+lacks, strictjson.Missing)
	}
	if c.Err != nil {
		return
	}
	o.Kind = sink.Leave
	if of.Set {
		o.Kind = sink.Join
	}
	if d.member != "" {
		if o.Texts == nil {
			o.Texts = &sink.Texts{}
		}
		o.Texts.Member, o.Texts.MemberAt = d.member, path+"member"
	}
	end := c.At
	c.At = of.ColumnAt
	d.cells = append(room(d.cells, 1), sink.Cell{Column: d.name(c.Str()), Value: int64(of.ID)})
	c.At = end
	o.Cells = d.cells[len(d.cells)-1 : len(d.cells) : len(d.cells)]
}

// readID reads an id. If it is not a number, readID returns its text: only the sink knows whether the ids
// of its keyspace are texts.
func readID(c *strictjson.Cursor) (id uint64, text, problem string) {
	quoted := c.Peek() == '"'
	var raw []byte
	if quoted {
		raw = c.Str()
	} else {
		raw = c.Number()
	}
	id, ok := strictjson.ParseUint64(raw)
	switch {
	case ok:
		return id, "", ""
	case quoted && len(raw) > 0:
		return 0, string(raw), ""
	}
	return 0, "", strictjson.NotUint64
}

// opCells reads the object with the columns and values of an op.
func (d *Decoder) opCells(o *sink.Op, path string) {
	c := &d.cursor
	if !c.Begin('{') {
		c.Fail(path, strictjson.NotObject)
		return
	}
	const columnsMax = 64 // no keyspace has more columns
	d.cells = room(d.cells, columnsMax)
	first := len(d.cells)
	for n := 0; c.Next(n, '}'); n++ {
		column := d.name(c.Key())
		if n == columnsMax {
			c.Fail(path, fmt.Sprintf("more than %d columns", columnsMax))
			return
		}
		for _, before := range d.cells[first:] {
			if before.Column == column {
				c.Fail(path+"."+shown(column), strictjson.GivenTwice)
			}
		}
		value, ok := c.Int64()
		if !ok {
			c.Fail(path+"."+shown(column), strictjson.NotInt64)
		}
		d.cells = append(d.cells, sink.Cell{Column: column, Value: value})
	}
	if len(d.cells) == first {
		c.Fail(path, "at least one column is needed")
	}
	o.Cells = d.cells[first:len(d.cells):len(d.cells)]
}

// room returns cells, or a new chunk if cells has no space for n more cells. Ops may still refer
// to the old chunk.
func room(cells []sink.Cell, n int) []sink.Cell {
	const chunk = 4096
	if cap(cells)-len(cells) < n {
		return make([]sink.Cell, 0, max(chunk, 2*cap(cells)))
	}
	return cells
}

// name returns a name of a keyspace or column as a string.
func (d *Decoder) name(text []byte) string {
	const namesMax = 4096 // bounds the memory, because senders choose the names
	if s, ok := d.names[string(text)]; ok {
		return s
	}
	s := string(text)
	if len(d.names) < namesMax && len(s) <= 64 {
		d.names[s] = s
	}
	return s
}
