// Package strictjson parses JSON from other programs, strictly by RFC 8259 and without building a
// tree, and appends ids as JSON. It never interprets a text.
//
// Invariant: work and memory are linear in the number of bytes read, whatever the bytes are.
package strictjson

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// These problems can occur in the values of several fields.
const (
	NotUint64   = "not an unsigned 64-bit integer"
	NotInt64    = "not a signed 64-bit integer"
	NotObject   = "not an object"
	NotArray    = "not an array"
	NotString   = "not a string"
	NotBool     = "neither true nor false"
	Missing     = "missing"
	GivenTwice  = "given twice"
	NoSuchField = "no such field"
)

// FieldError is the error for an invalid value at a JSON path.
type FieldError struct{ Path, Problem string }

func (e *FieldError) Error() string { return e.Path + ": " + e.Problem }

// Cursor parses one JSON text from front to back. Its caller reads each value directly into the
// type that it needs. A Cursor builds no tree, so it allocates nothing. Deep nesting costs nothing,
// because the caller refuses a value of the wrong type at its first byte. It is strict (RFC 8259):
// no garbage after the text, no lenient numbers, escapes or control characters. Callers must refuse
// unknown and repeated members themselves.
//
// Err keeps the first fault, which ends every loop over Next. Values that are read after a fault
// must not be used. Strings alias Data or Text and are valid until the next string is read.
type Cursor struct {
	Data []byte
	At   int    // next byte to read; At ≤ len(Data)
	Err  error  // first fault: a *FieldError, or an error that the caller set
	Text []byte // buffer for the value of the last string with escapes
}

// Reset makes the cursor parse data from the start.
func (c *Cursor) Reset(data []byte) {
	c.Data, c.At, c.Err = data, 0, nil
}

// Fail records that the value at a JSON path is invalid, unless a fault is recorded already.
func (c *Cursor) Fail(path, problem string) {
	if c.Err == nil {
		c.Err = &FieldError{path, problem}
	}
}

// Broken records that the text is not JSON at the current byte.
func (c *Cursor) Broken(problem string) {
	c.Fail("body", fmt.Sprintf("not valid JSON at byte %d: %s", c.At, problem))
}

// Peek skips white space and returns the next byte, or 0 at the end. Callers need not distinguish
// the end from a zero byte, because a zero byte is never valid.
func (c *Cursor) Peek() byte {
	for c.At < len(c.Data) {
		switch b := c.Data[c.At]; b {
		case ' ', '\n', '\r', '\t':
			c.At++
		default:
			return b
		}
	}
	return 0
}

// End checks that only white space is left.
func (c *Cursor) End() {
	if c.Peek(); c.At < len(c.Data) {
		c.Broken("more after the end of the body")
	}
}

// Begin consumes the bracket open if it is the next byte, and reports whether it was.
func (c *Cursor) Begin(open byte) bool {
	if c.Err != nil || c.Peek() != open {
		return false
	}
	c.At++
	return true
}

// Next reports whether another element follows the n elements read so far, and consumes the comma
// before it. If none follows, it consumes the closing bracket.
func (c *Cursor) Next(n int, closing byte) bool {
	if c.Err != nil {
		return false
	}
	switch b := c.Peek(); {
	case b == closing:
		c.At++
		return false
	case n == 0:
		return true
	case b == ',':
		c.At++
		if c.Peek() == closing {
			c.Broken("nothing after a comma")
			return false
		}
		return true
	}
	c.Broken("expected a comma or " + string(rune(closing)))
	return false
}

// Key parses an object's next key and the colon after it.
func (c *Cursor) Key() []byte {
	key := c.Str()
	if c.Err != nil {
		return nil
	}
	if c.Peek() != ':' {
		c.Broken("expected a colon")
		return nil
	}
	c.At++
	return key
}

// Str reads a string.
func (c *Cursor) Str() []byte {
	if c.Peek() != '"' {
		c.Broken("expected a string")
		return nil
	}
	start := c.At + 1
	for i := start; i < len(c.Data); i++ {
		switch b := c.Data[i]; {
		case b == '"':
			c.At = i + 1
			return c.Data[start:i]
		case b == '\\' || b < ' ' || b >= utf8.RuneSelf:
			c.Text = append(c.Text[:0], c.Data[start:i]...)
			c.At = i
			return c.strRest()
		}
	}
	c.At = len(c.Data)
	c.Broken("a string without an end")
	return nil
}

// strRest parses the rest of a string, from its first byte that Str cannot handle. c.Text contains
// the string up to there.
func (c *Cursor) strRest() []byte {
	for c.At < len(c.Data) {
		b := c.Data[c.At]
		switch {
		case b == '"':
			c.At++
			if !utf8.Valid(c.Text) {
				c.Broken("a string that is not UTF-8")
				return nil
			}
			return c.Text
		case b < ' ':
			c.Broken("a control character in a string")
			return nil
		case b == '\\':
			if !c.escape() {
				return nil
			}
		default:
			c.Text = append(c.Text, b)
			c.At++
		}
	}
	c.Broken("a string without an end")
	return nil
}

// escape appends the character of the escape sequence at the cursor to c.Text.
func (c *Cursor) escape() bool {
	rest := c.Data[c.At+1:]
	if len(rest) == 0 {
		c.Broken("a string without an end")
		return false
	}
	plain := byte(0)
	switch rest[0] {
	case '"', '\\', '/':
		plain = rest[0]
	case 'b':
		plain = '\b'
	case 'f':
		plain = '\f'
	case 'n':
		plain = '\n'
	case 'r':
		plain = '\r'
	case 't':
		plain = '\t'
	case 'u':
		return c.escapeRune()
	default:
		c.Broken("an unknown escape in a string")
		return false
	}
	c.Text = append(c.Text, plain)
	c.At += 2
	return true
}

// escapeRune appends the character of a \u escape, or of a surrogate pair of them, to c.Text.
func (c *Cursor) escapeRune() bool {
	r, ok := hexRune(c.Data[c.At:])
	length := 6
	if ok && utf16.IsSurrogate(r) {
		var low rune
		if low, ok = hexRune(c.Data[c.At+length:]); ok {
			r = utf16.DecodeRune(r, low)
			length, ok = 12, r != utf8.RuneError
		}
	}
	if !ok {
		c.Broken("a bad \\u escape in a string")
		return false
	}
	c.Text = utf8.AppendRune(c.Text, r)
	c.At += length
	return true
}

// hexRune parses the \u escape, which has four hexadecimal digits, at the beginning of data.
func hexRune(data []byte) (rune, bool) {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return 0, false
	}
	var r [2]byte
	_, err := hex.Decode(r[:], data[2:6])
	return rune(r[0])<<8 | rune(r[1]), err == nil
}

// Number consumes and returns the next bytes that can be part of a number. It does not check that
// they form a number.
func (c *Cursor) Number() []byte {
	c.Peek()
	start := c.At
	for c.At < len(c.Data) {
		switch b := c.Data[c.At]; {
		case b >= '0' && b <= '9', b == '-', b == '+', b == '.', b == 'e', b == 'E':
			c.At++
		default:
			return c.Data[start:c.At]
		}
	}
	return c.Data[start:]
}

// ID reads an id: a JSON string or an integer.
func (c *Cursor) ID() (uint64, bool) {
	if c.Peek() == '"' {
		return ParseUint64(c.Str())
	}
	return ParseUint64(c.Number())
}

// Int64 reads an integer literal.
func (c *Cursor) Int64() (int64, bool) {
	text := c.Number()
	negative := len(text) > 0 && text[0] == '-'
	if negative {
		text = text[1:]
	}
	v, ok := ParseUint64(text)
	switch {
	case !ok:
		return 0, false
	case negative:
		return -int64(v), v <= -math.MinInt64
	}
	return int64(v), v <= math.MaxInt64
}

// ParseUint64 parses decimal digits. It accepts neither a sign nor leading zeros, so that each
// number has one spelling.
func ParseUint64(text []byte) (uint64, bool) {
	const digitsMax = 20 // digits of 2^64-1
	if len(text) == 0 || len(text) > digitsMax || text[0] == '0' && len(text) > 1 {
		return 0, false
	}
	n := uint64(0)
	for i, b := range text {
		digit := uint64(b - '0')
		if digit > 9 {
			return 0, false
		}
		if i == digitsMax-1 && (n > math.MaxUint64/10 || n*10 > math.MaxUint64-digit) {
			return 0, false
		}
		n = n*10 + digit
	}
	return n, true
}

// ParseWhole parses a JSON number that is an integer in any spelling: 5, 5.00 and 5e0 are 5.
func ParseWhole(text []byte) (magnitude uint64, negative, ok bool) {
	if !isNumber(text) {
		return 0, false, false
	}
	text, negative = bytes.CutPrefix(text, []byte("-"))
	scale := 0
	if e := bytes.IndexAny(text, "eE"); e >= 0 {
		var err error
		if scale, err = strconv.Atoi(string(text[e+1:])); err != nil {
			return 0, false, false
		}
		text = text[:e]
	}
	whole, fraction, _ := bytes.Cut(text, []byte("."))
	digits := bytes.TrimLeft(slices.Concat(whole, fraction), "0")
	scale -= len(fraction)
	if len(digits) == 0 {
		return 0, false, true
	}
	significant := bytes.TrimRight(digits, "0")
	scale += len(digits) - len(significant)
	const scaleMax = 19 // 10^19 is the highest power of 10 below 2^64
	if scale < 0 || scale > scaleMax {
		return 0, false, false
	}
	magnitude, ok = ParseUint64(append(significant, bytes.Repeat([]byte("0"), scale)...))
	return magnitude, negative, ok
}

// Null consumes null if it is next, and reports whether it was.
func (c *Cursor) Null() bool { return c.word("null") }

// Bool reads true or false; ok is false if neither is next.
func (c *Cursor) Bool() (value, ok bool) {
	if c.word("true") {
		return true, true
	}
	return false, c.word("false")
}

func (c *Cursor) word(word string) bool {
	c.Peek()
	is := strings.HasPrefix(string(c.Data[c.At:min(len(c.Data), c.At+len(word))]), word)
	if is {
		c.At += len(word)
	}
	return is
}

// skipDepthMax bounds the nesting of a value that Skip accepts.
const skipDepthMax = 64

// Skip consumes any value and returns its bytes.
func (c *Cursor) Skip() []byte {
	c.Peek()
	start := c.At
	c.skip(skipDepthMax)
	if c.Err != nil {
		return nil
	}
	return c.Data[start:c.At]
}

func (c *Cursor) skip(depth int) {
	if depth == 0 {
		c.Fail("body", "nested too deep")
		return
	}
	switch b := c.Peek(); {
	case b == '{':
		c.At++
		for n := 0; c.Next(n, '}'); n++ {
			c.Key()
			c.skip(depth - 1)
		}
	case b == '[':
		c.At++
		for n := 0; c.Next(n, ']'); n++ {
			c.skip(depth - 1)
		}
	case b == '"':
		c.Str()
	case b == 't' || b == 'f':
		if _, ok := c.Bool(); !ok {
			c.Broken("expected a value")
		}
	case b == 'n':
		if !c.Null() {
			c.Broken("expected a value")
		}
	default:
		if !isNumber(c.Number()) {
			c.Broken("expected a value")
		}
	}
}

// isNumber reports whether text is a JSON number.
func isNumber(text []byte) bool {
	text = bytes.TrimPrefix(text, []byte("-"))
	whole := digits(text)
	if whole == 0 || whole > 1 && text[0] == '0' {
		return false
	}
	text = text[whole:]
	if len(text) > 0 && text[0] == '.' {
		n := digits(text[1:])
		if n == 0 {
			return false
		}
		text = text[1+n:]
	}
	if len(text) > 0 && text[0]|0x20 == 'e' {
		text = text[1:]
		if len(text) > 0 && (text[0] == '+' || text[0] == '-') {
			text = text[1:]
		}
		n := digits(text)
		return n > 0 && n == len(text)
	}
	return len(text) == 0
}

// digits returns the number of digits at the beginning of text.
func digits(text []byte) int {
	n := 0
	for n < len(text) && text[n] >= '0' && text[n] <= '9' {
		n++
	}
	return n
}
