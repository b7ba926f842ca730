package postgres

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/source"
)

// epoch is time zero of PostgreSQL.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// decoder decodes messages of pgoutput, version 1. The position of a change includes its number
// among all changes and messages of the transaction, even those that the source does not read. So a
// change has the same position each time that the transaction is decoded.
type decoder struct {
	prefix    string // prefix of the messages to read; empty to read changes of tables
	relations map[uint32]relation
	compares  bool // skip messages outside of transactions instead of stalling at them; see the method message

	inside bool // a transaction is open
	commit uint64
	number uint64
	time   time.Time
	xid    []byte
}

type relation struct {
	name    string
	columns []column
}

type column struct {
	name string
	oid  uint32
}

// PostgreSQL's text for a value of these types is a JSON number.
var plainTypes = map[uint32]bool{20: true, 21: true, 23: true, 26: true} // int8, int2, int4, oid

const boolType = 16

var errShort = errors.New("a message of pgoutput is too short")

// fields reads the fields of a message. After the first missing field, it returns zeros.
type fields struct {
	data []byte
	bad  bool
}

func (f *fields) take(n int) []byte {
	if n < 0 || n > len(f.data) {
		f.bad, f.data = true, nil
		return make([]byte, min(max(n, 0), 8))
	}
	out := f.data[:n]
	f.data = f.data[n:]
	return out
}

func (f *fields) u8() byte    { return f.take(1)[0] }
func (f *fields) u16() uint16 { return binary.BigEndian.Uint16(f.take(2)) }
func (f *fields) u32() uint32 { return binary.BigEndian.Uint32(f.take(4)) }
func (f *fields) u64() uint64 { return binary.BigEndian.Uint64(f.take(8)) }

// text reads a text that ends with a zero byte.
func (f *fields) text() string {
	end := bytes.IndexByte(f.data, 0)
	if end < 0 {
		f.bad, f.data = true, nil
		return ""
	}
	out := string(f.data[:end])
	f.data = f.data[end+1:]
	return out
}

// decode decodes one message of pgoutput. It returns an empty item if the pgoutput message
// contains no message for the source and no new position.
func (d *decoder) decode(data []byte) (item, error) {
	f := &fields{data: data}
	var out item
	var err error
	switch kind := f.u8(); kind {
	case 'B':
		d.inside, d.number = true, 0
		d.commit = f.u64()
		d.time = epoch.Add(time.Duration(f.u64()) * time.Microsecond)
		d.xid = bytes.Clone(f.take(4))
	case 'C':
		d.inside = false
		out.next = source.Position{Hi: d.commit + 1}
	case 'R':
		d.relation(f)
	case 'M':
		out, err = d.message(f)
	case 'I', 'U', 'D', 'T':
		out, err = d.change(kind, f)
	case 'Y', 'O': // type and origin messages, which are ignored
	default:
		return out, fmt.Errorf("pgoutput sent %q, which is not of version 1", kind)
	}
	if err == nil && f.bad {
		err = errShort
	}
	return out, err
}

// position returns the position of the next message or change of the transaction, and increments
// the number.
func (d *decoder) position() source.Position {
	p := source.Position{Hi: d.commit, Lo: d.number}
	d.number++
	return p
}

func (d *decoder) relation(f *fields) {
	id := f.u32()
	var r relation
	r.name = f.text() + "." + f.text()
	f.u8() // skip the replica identity
	for range f.u16() {
		if f.u8(); f.bad { // flags
			return
		}
		c := column{name: f.text(), oid: f.u32()}
		f.u32() // modifier
		r.columns = append(r.columns, c)
	}
	d.relations[id] = r
}

// message decodes a message of pg_logical_emit_message. A message outside of a transaction cannot
// be counted exactly once: as its position, PostgreSQL sends only the end of the message's record,
// but a stream that begins within the record lacks the message. So the source stalls before such a
// message. After a seek to the end of the record, the stream has all later messages.
func (d *decoder) message(f *fields) (item, error) {
	transactional := f.u8() == 1
	lsn := f.u64()
	prefix := f.text()
	content := f.take(int(f.u32()))
	var p source.Position
	if transactional {
		p = d.position()
	}
	switch end := (source.Position{Hi: lsn}); {
	case d.prefix == "" || prefix != d.prefix || f.bad:
		return item{}, nil
	case !transactional && d.compares:
		return item{next: end}, nil
	case !transactional:
		return item{}, source.Lost(end, "a message of prefix %s, which ends at position %s, was written outside of a transaction, and so cannot be counted exactly once: "+
			"write messages with pg_logical_emit_message(true, ...), and this one again", prefix, end)
	}
	next := source.Position{Hi: p.Hi, Lo: p.Lo + 1}
	return item{source.Message{Position: p, Value: bytes.Clone(content), Time: d.time, Key: d.xid}, true, next}, nil
}

// change converts a change of a table to a Debezium envelope.
func (d *decoder) change(kind byte, f *fields) (item, error) {
	p := d.position()
	if d.prefix != "" {
		f.data = nil
		return item{}, nil
	}
	envelope := map[string]any{"op": map[byte]string{'I': "c", 'U': "u", 'D': "d", 'T': "t"}[kind]}
	if kind != 'T' {
		id := f.u32()
		r, ok := d.relations[id]
		if !ok && !f.bad {
			return item{}, fmt.Errorf("a change of table %d, which pgoutput did not describe", id)
		}
		for len(f.data) > 0 {
			switch part := f.u8(); part {
			case 'N':
				envelope["after"] = r.row(f, true)
			case 'O', 'K':
				envelope["before"] = r.row(f, part == 'O')
			default:
				return item{}, fmt.Errorf("a change of table %s has a part %q", r.name, part)
			}
		}
	}
	text, err := json.Marshal(envelope)
	if err != nil {
		return item{}, err
	}
	// Derived is set, because the text of a value depends on settings of the server, such as its
	// time zone.
	return item{source.Message{Position: p, Value: text, Time: d.time, Key: d.xid, Derived: true}, true, source.Position{Hi: p.Hi, Lo: p.Lo + 1}}, nil
}

// row decodes a row. If whole is false, the row has only its key columns. PostgreSQL sends the
// others as null, and row omits them.
func (r relation) row(f *fields, whole bool) map[string]any {
	row := map[string]any{}
	for i := range int(f.u16()) {
		var value any
		switch f.u8() {
		case 'n':
			if !whole {
				continue
			}
		case 't':
			if i < len(r.columns) {
				value = r.columns[i].value(f.take(int(f.u32())))
			}
		default: // a long value that did not change, so it is not in the log
			continue
		}
		if f.bad || i >= len(r.columns) {
			f.bad = true
			return nil
		}
		row[r.columns[i].name] = value
	}
	return row
}

// value converts the text of a column to a JSON value.
func (c column) value(text []byte) any {
	switch {
	case plainTypes[c.oid] && json.Valid(text):
		return json.RawMessage(bytes.Clone(text))
	case c.oid == boolType:
		return string(text) == "t"
	}
	return string(text)
}
