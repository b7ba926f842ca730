package source

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/countd/countd/source/sink"
)

// ParsePosition parses a text that Position.String returns, or an LSN of PostgreSQL, "X/Y".
func ParsePosition(text string) (Position, error) {
	high, low, isLSN := strings.Cut(text, "/")
	if !isLSN {
		if len(text) > textBytesMax {
			return Position{}, fmt.Errorf("over %d bytes", textBytesMax)
		}
		return sink.Parse(text)
	}
	h, err1 := strconv.ParseUint(high, 16, 32)
	l, err2 := strconv.ParseUint(low, 16, 32)
	if err1 != nil || err2 != nil {
		return Position{}, fmt.Errorf("%q is no position of PostgreSQL, such as 0/16B3748", shown(text))
	}
	return Position{Hi: h<<32 | l}, nil
}

// shown shortens a client's text for an error message.
func shown(text string) string {
	const shownMax = 64
	if len(text) > shownMax {
		return text[:shownMax] + "…"
	}
	return text
}

// Position parses a position in the source's queue. In a Redis stream, a number alone is the first
// half of an id, as in Redis: 700 means 700-0.
func (c *Config) Position(text string) (Position, error) {
	p, err := ParsePosition(text)
	if err == nil && c.Type == TypeRedis && !strings.ContainsAny(text, "-/") {
		p = Position{Hi: p.Lo}
	}
	return p, err
}
