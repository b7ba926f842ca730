package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// ID names a row. Its JSON form is a string, because not every JSON reader keeps numbers beyond
// 2^53 exact. ID also accepts an integer.
type ID uint64

// ErrBadID is returned for a text that is not an unsigned 64-bit integer in decimal digits,
// without a sign or leading zeros.
var ErrBadID = errors.New("not an unsigned 64-bit integer")

// ParseID parses an id's decimal form. Each id has one form: ParseID and the server refuse 007.
func ParseID(text string) (ID, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is %w", text, ErrBadID)
	}
	if len(text) > 1 && text[0] == '0' {
		return 0, fmt.Errorf("%q is %w: it has leading zeros", text, ErrBadID)
	}
	return ID(id), nil
}

func (id ID) String() string { return strconv.FormatUint(uint64(id), 10) }

// MarshalJSON writes the id as a string.
func (id ID) MarshalJSON() ([]byte, error) { return id.appendJSON(nil), nil }

func (id ID) appendJSON(dst []byte) []byte {
	dst = append(dst, '"')
	dst = strconv.AppendUint(dst, uint64(id), 10)
	return append(dst, '"')
}

// UnmarshalJSON reads a string or an integer.
func (id *ID) UnmarshalJSON(text []byte) error {
	if n := len(text); n >= 2 && text[0] == '"' && text[n-1] == '"' {
		text = text[1 : n-1]
	}
	parsed, err := ParseID(string(text))
	*id = parsed
	return err
}

// MarshalText writes the decimal form, for ids that are keys of an object.
func (id ID) MarshalText() ([]byte, error) { return strconv.AppendUint(nil, uint64(id), 10), nil }

// UnmarshalText reads the decimal form.
func (id *ID) UnmarshalText(text []byte) error {
	parsed, err := ParseID(string(text))
	*id = parsed
	return err
}

// Count is one column of a row.
type Count struct {
	Column string
	Value  int64
}

// Counts are the counts of a row's columns, in the server's order. The JSON form is an object that
// maps each column to an integer.
type Counts []Count

// Get returns a column's value and whether the column is there.
func (c Counts) Get(column string) (int64, bool) {
	i := slices.IndexFunc(c, func(count Count) bool { return count.Column == column })
	if i < 0 {
		return 0, false
	}
	return c[i].Value, true
}

// MarshalJSON keeps the order of the columns.
func (c Counts) MarshalJSON() ([]byte, error) { return c.appendJSON(nil), nil }

func (c Counts) appendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	for i, count := range c {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendText(dst, count.Column)
		dst = append(dst, ':')
		dst = strconv.AppendInt(dst, count.Value, 10)
	}
	return append(dst, '}')
}

// appendText appends text as a JSON string. Column names need no escapes; the server refuses other
// names.
func appendText(dst []byte, text string) []byte {
	for i := range len(text) {
		if b := text[i]; b < ' ' || b == '"' || b == '\\' || b >= utf8.RuneSelf {
			quoted, err := json.Marshal(text)
			if err != nil {
				panic("a string has no JSON form: " + err.Error())
			}
			return append(dst, quoted...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, text...)
	return append(dst, '"')
}

var errBadCounts = errors.New("counts are not an object of column to 64-bit integer")

// UnmarshalJSON keeps the order of the columns. A page holds up to ten thousand rows, so
// UnmarshalJSON parses this one shape by hand. It accepts names without escapes, as column names
// have none, and integers without fraction or exponent.
func (c *Counts) UnmarshalJSON(text []byte) error {
	rest, ok := cutByte(text, '{')
	if !ok {
		return errBadCounts
	}
	*c = (*c)[:0]
	if rest, ok := cutByte(rest, '}'); ok {
		return endOf(rest)
	}
	for {
		var count Count
		if count, rest, ok = cutCount(rest); !ok {
			return errBadCounts
		}
		*c = append(*c, count)
		if after, ok := cutByte(rest, ','); ok {
			rest = after
			continue
		}
		if rest, ok = cutByte(rest, '}'); !ok {
			return errBadCounts
		}
		return endOf(rest)
	}
}

// cutCount parses "name":value at the beginning of text.
func cutCount(text []byte) (count Count, rest []byte, ok bool) {
	if rest, ok = cutByte(text, '"'); !ok {
		return count, nil, false
	}
	end := bytes.IndexAny(rest, `"\`)
	if end < 0 || rest[end] == '\\' {
		return count, nil, false
	}
	count.Column = string(rest[:end])
	if rest, ok = cutByte(rest[end+1:], ':'); !ok {
		return count, nil, false
	}
	rest = bytes.TrimLeft(rest, jsonSpace)
	end = bytes.IndexFunc(rest, func(r rune) bool { return r != '-' && (r < '0' || r > '9') })
	if end < 0 {
		return count, nil, false
	}
	value, err := strconv.ParseInt(string(rest[:end]), 10, 64)
	count.Value = value
	return count, rest[end:], err == nil
}

const jsonSpace = " \t\r\n"

// cutByte skips white space and then b.
func cutByte(text []byte, b byte) (rest []byte, ok bool) {
	text = bytes.TrimLeft(text, jsonSpace)
	if len(text) == 0 || text[0] != b {
		return text, false
	}
	return text[1:], true
}

func endOf(rest []byte) error {
	if len(bytes.TrimLeft(rest, jsonSpace)) > 0 {
		return errBadCounts
	}
	return nil
}
