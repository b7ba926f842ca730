package source

import (
	"bytes"
	"math"
	"strings"

	"github.com/countd/countd/internal/strictjson"
)

// This file reads numbers and booleans as other systems write them: decimals of databases, texts
// of Redis and of protobuf's JSON, and MySQL's 0 and 1 for booleans. It accepts only exact values.

// Floats represent all integers up to floatMax exactly. A number with a fraction or an exponent may
// have been a float, so such numbers above floatMax are refused.
const floatMax = 1 << 53

// plain returns a JSON value without its quotes, and whether it had quotes.
func plain(raw []byte) (text []byte, quoted bool) {
	if raw[0] != '"' {
		return raw, false
	}
	c := strictjson.Cursor{Data: raw}
	return c.Str(), true
}

// whole reads an integer from a number or a text.
func whole(raw []byte) (magnitude uint64, negative, ok bool) {
	text, quoted := plain(raw)
	digits, negative := bytes.CutPrefix(text, []byte("-"))
	if magnitude, ok = strictjson.ParseUint64(digits); ok { // the common case: only digits
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

// exactInt64 reads an amount. True is 1 and false is 0.
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

// exactBool reads a boolean. 1 is true and 0 is false.
func exactBool(raw []byte) (is, ok bool) {
	if is, ok = truth(raw); ok {
		return is, true
	}
	magnitude, negative, ok := whole(raw)
	return magnitude == 1, ok && magnitude <= 1 && (!negative || magnitude == 0)
}

// truth parses true or false, bare or quoted, and the quoted t and f of PostgreSQL.
func truth(raw []byte) (is, ok bool) {
	switch text, quoted := plain(raw); {
	case string(text) == "true", quoted && (string(text) == "t" || strings.EqualFold(string(text), "true")):
		return true, true
	case string(text) == "false", quoted && (string(text) == "f" || strings.EqualFold(string(text), "false")):
		return false, true
	}
	return false, false
}
