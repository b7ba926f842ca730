package api

import (
	"fmt"
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// cursor parses one JSON text from front to back, directly into the types of a call. It
// builds no tree, so it allocates nothing, and deep nesting costs nothing because a value of
// the wrong type is refused at its first byte. It is strict (RFC 8259): no garbage after the
// text, no lenient numbers, escapes or control characters. The decoders in body.go refuse
// unknown members.
//
// The first fault stays and ends every loop over next; values read after it are zero and
// must not be used. Strings alias data or text and are valid until the next string is read.
type cursor struct {
	data []byte
	at   int    // next byte to read; at ≤ len(data)
	err  *fault // first fault
	text []byte // the last string that had escapes, without them
}

func (c *cursor) reset(data []byte) {
	c.data, c.at, c.err = data, 0, nil
}

// fail records a fault of the value at a JSON path, unless there is one.
func (c *cursor) fail(path, problem string) {
	if c.err == nil {
		c.err = invalid(path, problem)
	}
}

// broken records that data is not JSON at the current byte.
func (c *cursor) broken(problem string) {
	c.fail("body", fmt.Sprintf("not valid JSON at byte %d: %s", c.at, problem))
}

// peek skips white space and returns the next byte, or 0 at the end: a zero
// byte is never valid there.
func (c *cursor) peek() byte {
	for c.at < len(c.data) {
		switch b := c.data[c.at]; b {
		case ' ', '\n', '\r', '\t':
			c.at++
		default:
			return b
		}
	}
	return 0
}

// end checks that only white space is left.
func (c *cursor) end() {
	if c.peek(); c.at < len(c.data) {
		c.broken("more after the end of the body")
	}
}

// begin consumes an opening bracket and reports whether it was there.
func (c *cursor) begin(open byte) bool {
	if c.err != nil || c.peek() != open {
		return false
	}
	c.at++
	return true
}

// next reports whether a member follows, n having been read, and consumes the
// comma before it; without one it consumes the closing bracket.
func (c *cursor) next(n int, closing byte) bool {
	if c.err != nil {
		return false
	}
	switch b := c.peek(); {
	case b == closing:
		c.at++
		return false
	case n == 0:
		return true
	case b == ',':
		c.at++
		if c.peek() == closing {
			c.broken("nothing after a comma")
			return false
		}
		return true
	}
	c.broken("expected a comma or " + string(rune(closing)))
	return false
}

// key parses an object's next key and the colon after it.
func (c *cursor) key() []byte {
	key := c.str()
	if c.err != nil {
		return nil
	}
	if c.peek() != ':' {
		c.broken("expected a colon")
		return nil
	}
	c.at++
	return key
}

// str reads a string.
func (c *cursor) str() []byte {
	if c.peek() != '"' {
		c.broken("expected a string")
		return nil
	}
	start := c.at + 1
	for i := start; i < len(c.data); i++ {
		switch b := c.data[i]; {
		case b == '"':
			c.at = i + 1
			return c.data[start:i]
		case b == '\\' || b < ' ' || b >= utf8.RuneSelf:
			c.text = append(c.text[:0], c.data[start:i]...)
			c.at = i
			return c.strRest()
		}
	}
	c.at = len(c.data)
	c.broken("a string without an end")
	return nil
}

// strRest parses the rest of a string, from its first escape on. text holds its beginning.
func (c *cursor) strRest() []byte {
	for c.at < len(c.data) {
		b := c.data[c.at]
		switch {
		case b == '"':
			c.at++
			if !utf8.Valid(c.text) {
				c.broken("a string that is not UTF-8")
				return nil
			}
			return c.text
		case b < ' ':
			c.broken("a control character in a string")
			return nil
		case b == '\\':
			if !c.escape() {
				return nil
			}
		default:
			c.text = append(c.text, b)
			c.at++
		}
	}
	c.broken("a string without an end")
	return nil
}

// escape appends the value of the escape sequence at the cursor.
func (c *cursor) escape() bool {
	rest := c.data[c.at+1:]
	if len(rest) == 0 {
		c.broken("a string without an end")
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
		c.broken("an unknown escape in a string")
		return false
	}
	c.text = append(c.text, plain)
	c.at += 2
	return true
}

// escapeRune appends the character of a \uXXXX, or of a surrogate pair.
func (c *cursor) escapeRune() bool {
	r, ok := hexRune(c.data[c.at:])
	length := 6
	if ok && utf16.IsSurrogate(r) {
		var low rune
		if low, ok = hexRune(c.data[c.at+length:]); ok {
			r = utf16.DecodeRune(r, low)
			length, ok = 12, r != utf8.RuneError
		}
	}
	if !ok {
		c.broken("a bad \\u escape in a string")
		return false
	}
	c.text = utf8.AppendRune(c.text, r)
	c.at += length
	return true
}

// hexRune reads the \uXXXX that data begins with.
func hexRune(data []byte) (rune, bool) {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, b := range data[2:6] {
		digit := hexDigit(b)
		if digit < 0 {
			return 0, false
		}
		r = r<<4 | rune(digit)
	}
	return r, true
}

// number returns the run of bytes that can be part of a number. The parse functions check
// them.
func (c *cursor) number() []byte {
	c.peek()
	start := c.at
	for c.at < len(c.data) {
		switch b := c.data[c.at]; {
		case b >= '0' && b <= '9', b == '-', b == '+', b == '.', b == 'e', b == 'E':
			c.at++
		default:
			return c.data[start:c.at]
		}
	}
	return c.data[start:]
}

// id reads an id: a JSON string or an integer.
func (c *cursor) id() (uint64, bool) {
	if c.peek() == '"' {
		return parseUint64(c.str())
	}
	return parseUint64(c.number())
}

// int64 reads an integer literal.
func (c *cursor) int64() (int64, bool) {
	text := c.number()
	negative := len(text) > 0 && text[0] == '-'
	if negative {
		text = text[1:]
	}
	v, ok := parseUint64(text)
	switch {
	case !ok:
		return 0, false
	case negative:
		return -int64(v), v <= -math.MinInt64
	}
	return int64(v), v <= math.MaxInt64
}

// parseUint64 reads decimal digits. A number has one spelling: neither signs
// nor leading zeros.
func parseUint64(text []byte) (uint64, bool) {
	const digitsMax = 20 // of 2^64-1
	if len(text) == 0 || len(text) > digitsMax || text[0] == '0' && len(text) > 1 {
		return 0, false
	}
	var v uint64
	for _, b := range text {
		d := uint64(b - '0')
		if d > 9 || v > math.MaxUint64/10 || v == math.MaxUint64/10 && d > math.MaxUint64%10 {
			return 0, false
		}
		v = v*10 + d
	}
	return v, true
}
