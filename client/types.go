package client

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// IDBytesMax bounds the bytes of a text id.
const IDBytesMax = 128

// ID names a row, a user or a member. It is a number or, in a keyspace with text ids, any text. Number and ParseID
// make IDs; the zero ID is the number 0. IDs are comparable: the text of a number's decimal digits is that number. The
// JSON form is a string, because not every JSON reader keeps numbers beyond 2^53 exact. ID also accepts an integer.
type ID struct {
	number uint64
	text   string // "" for a number
}

// ErrBadID is returned for a text that cannot be an id.
var ErrBadID = errors.New("not a text of 1 to 128 bytes of UTF-8")

// Number returns the ID of a number.
func Number(n uint64) ID { return ID{number: n} }

// ParseID returns the ID with a text. Each number has one form: 007 is a text that is no number, which only a keyspace
// with text ids takes.
func ParseID(text string) (ID, error) {
	if number, err := strconv.ParseUint(text, 10, 64); err == nil && (len(text) == 1 || text[0] != '0') {
		return ID{number: number}, nil
	}
	if text == "" || len(text) > IDBytesMax || !utf8.ValidString(text) {
		return ID{}, fmt.Errorf("%q is %w", text, ErrBadID)
	}
	return ID{text: text}, nil
}

// Number returns the number, and false if the id is no number.
func (id ID) Number() (n uint64, ok bool) { return id.number, id.text == "" }

// Compare orders numbers by value, and texts behind them by their bytes.
func (id ID) Compare(other ID) int {
	return cmp.Or(strings.Compare(id.text, other.text), cmp.Compare(id.number, other.number))
}

// path returns the id as a part of a path.
func (id ID) path() string { return url.PathEscape(id.String()) }

func (id ID) String() string {
	if id.text != "" {
		return id.text
	}
	return strconv.FormatUint(id.number, 10)
}

// MarshalJSON writes the id as a string.
func (id ID) MarshalJSON() ([]byte, error) { return id.appendJSON(nil), nil }

func (id ID) appendJSON(dst []byte) []byte {
	if id.text != "" {
		return appendText(dst, id.text)
	}
	dst = append(dst, '"')
	dst = strconv.AppendUint(dst, id.number, 10)
	return append(dst, '"')
}

// UnmarshalJSON reads a string or an integer. The empty string, by which an answer shows an id whose name was erased,
// becomes the number 0.
func (id *ID) UnmarshalJSON(form []byte) error {
	text := string(form)
	if n := len(form); n >= 2 && form[0] == '"' && form[n-1] == '"' {
		var err error
		if text, err = unquoted(form); err != nil || text == "" {
			*id = ID{}
			return err
		}
	} else if number, err := strconv.ParseUint(text, 10, 64); err != nil {
		return fmt.Errorf("%s is %w, nor an unsigned 64-bit integer", form, ErrBadID)
	} else {
		*id = Number(number)
		return nil
	}
	return id.UnmarshalText([]byte(text))
}

// unquoted returns the text of a JSON string.
func unquoted(text []byte) (string, error) {
	if plain := text[1 : len(text)-1]; bytes.IndexByte(plain, '\\') < 0 {
		return string(plain), nil
	}
	var plain string
	err := json.Unmarshal(text, &plain)
	return plain, err
}

// MarshalText writes the id's text, for ids that are keys of an object.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText writes.
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
