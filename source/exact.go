package source

import (
	"bytes"
	"math"
	"strings"

	"github.com/countd/countd/internal/strictjson"
)

// This file reads values that writers spell in other forms: databases have decimals, Redis and
// protobuf's JSON have numbers as texts, MySQL has 0 and 1 for truth. A value is accepted where it is
// exactly the number or truth that is needed.

// floatMax is below which each integer has a float of its own. A literal with a fraction or an exponent
// may come from a float, which has lost digits above it.
const floatMax = 1 << 53

// plain returns a JSON value, without its quotes if it is a text.
func plain(raw []byte) (text []byte, quoted bool) {
	if raw[0] != '"' {
		return raw, false
	}
	c := strictjson.Cursor{Data: raw}
	return c.Str(), true
}

// whole returns the integer that a value is: a number, or a text of one.
func whole(raw []byte) (magnitude uint64, negative, ok bool) {
	text, quoted := plain(raw)
	digits, negative := bytes.CutPrefix(text, []byte("-"))
	if magnitude, ok = strictjson.ParseUint64(digits); ok { // mostly
		return magnitude, negative, true
	}
	magnitude, negative, ok = strictjson.ParseWhole(text)
	if ok && !quoted && magnitude > floatMax && strings.ContainsAny(string(text), ".eE") {
		return 0, false, false
	}
	return magnitude, negative, ok
}

// exactUint64 reads an id or a member.
func exactUint64(raw []byte) (uint64, bool) {
	magnitude, negative, ok := whole(raw)
	return magnitude, ok && (!negative || magnitude == 0)
}

// exactInt64 reads an amount. True is 1, and false 0.
func exactInt64(raw []byte) (int64, bool) {
	if is, ok := truth(raw); ok {
		return joins(is), true
	}
	magnitude, negative, ok := whole(raw)
	switch {
	case !ok:
		return 0, false
	case negative:
		return -int64(magnitude), magnitude <= -math.MinInt64
	}
	return int64(magnitude), magnitude <= math.MaxInt64
}

// exactBool reads whether something holds. 1 is true, and 0 false.
func exactBool(raw []byte) (is, ok bool) {
	if is, ok = truth(raw); ok {
		return is, true
	}
	magnitude, negative, ok := whole(raw)
	return magnitude == 1, ok && magnitude <= 1 && (!negative || magnitude == 0)
}

// truth reads true or false, or a text of it; PostgreSQL's are t and f.
func truth(raw []byte) (is, ok bool) {
	switch text, quoted := plain(raw); {
	case string(text) == "true", quoted && (string(text) == "t" || strings.EqualFold(string(text), "true")):
		return true, true
	case string(text) == "false", quoted && (string(text) == "f" || strings.EqualFold(string(text), "false")):
		return false, true
	}
	return false, false
}
