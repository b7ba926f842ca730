package strictjson

import (
	"math/bits"

	"github.com/countd/countd/internal/wire"
)

// meaningDepthMax bounds the nesting of a body. No call accepts a deeper body.
const meaningDepthMax = 8

// Meaning returns a hash of a body's meaning. White space, escapes, the order of an object's
// members and the type of an id (string or integer) do not change the hash. The order of an array
// does. An empty body has the hash of {}. Shards store idempotency keys with these hashes, so
// Meaning must never change. The hash of an invalid body does not matter, because its decoder
// refuses it.
func (c *Cursor) Meaning(body []byte) uint64 {
	c.Reset(body)
	if len(body) == 0 {
		c.Data = []byte("{}")
	}
	sum := c.meaning(meaningDepthMax)
	c.End()
	return sum
}

// meaning parses a value of at most depth levels and returns its hash.
func (c *Cursor) meaning(depth int) uint64 {
	if depth == 0 {
		c.Fail("body", "nested too deep")
		return 0
	}
	switch c.Peek() {
	case '{':
		sum := uint64(0) // a sum does not depend on the order
		c.At++
		for n := 0; c.Next(n, '}'); n++ {
			key := textHash('"', c.Key())
			sum += pairHash(key, c.meaning(depth-1))
		}
		return pairHash('{', sum)
	case '[':
		sum := uint64('[')
		c.At++
		for n := 0; c.Next(n, ']'); n++ {
			sum = pairHash(sum, c.meaning(depth-1))
		}
		return sum
	case '"':
		text := c.Str()
		if _, isID := ParseUint64(text); isID {
			return textHash('0', text)
		}
		return textHash('"', text)
	default:
		return c.meaningOfScalar()
	}
}

// meaningOfScalar parses a number, true, false or null, and returns its hash. It does not check a
// number.
func (c *Cursor) meaningOfScalar() uint64 {
	start := c.At
	for c.At < len(c.Data) && (c.Data[c.At] == '-' || c.Data[c.At] == '+' || c.Data[c.At] == '.' || isAlphanumeric(c.Data[c.At])) {
		c.At++
	}
	text := c.Data[start:c.At]
	switch {
	case len(text) == 0:
		c.Broken("expected a value")
	case string(text) == "-0":
		text = text[1:]
	}
	return textHash('0', text)
}

func isAlphanumeric(b byte) bool {
	return b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z'
}

// textHash returns the FNV-1a hash of the byte kind followed by text.
func textHash(kind byte, text []byte) uint64 {
	const prime = 1099511628211
	h := (14695981039346656037 ^ uint64(kind)) * prime
	for _, b := range text {
		h = (h ^ uint64(b)) * prime
	}
	return h
}

// pairHash returns a hash of two values that depends on their order. It applies the finalizer of
// splitmix64 twice.
func pairHash(a, b uint64) uint64 { return wire.Mix(wire.Mix(a) + bits.RotateLeft64(b, 32)) }
