package sink

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Position is a place in a partition of a queue. All messages below it have been handled. It is
// {0, offset} for Kafka, {0, stream sequence} for NATS, the two halves of an id for Redis Streams,
// and {LSN of the commit, number in the transaction} for PostgreSQL.
type Position struct{ Hi, Lo uint64 }

// Compare returns -1, 0 or 1 if p is below, at or above q.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Hi, q.Hi), cmp.Compare(p.Lo, q.Lo))
}

// Less reports whether p is below q.
func (p Position) Less(q Position) bool { return p.Compare(q) < 0 }

// String returns Lo if Hi is 0, and otherwise Hi-Lo, in decimal.
func (p Position) String() string {
	if p.Hi == 0 {
		return strconv.FormatUint(p.Lo, 10)
	}
	return strconv.FormatUint(p.Hi, 10) + "-" + strconv.FormatUint(p.Lo, 10)
}

// Parse parses the output of String.
func Parse(text string) (Position, error) {
	hi, lo, both := strings.Cut(text, "-")
	if !both {
		hi, lo = "0", text
	}
	var p Position
	var err error
	if p.Hi, err = strconv.ParseUint(hi, 10, 64); err == nil {
		p.Lo, err = strconv.ParseUint(lo, 10, 64)
	}
	if err != nil {
		return Position{}, fmt.Errorf("%q is no position: it is a number, or two with a hyphen between them", text)
	}
	return p, nil
}

// Mark distinguishes a message from another one that takes its position later; see
// source/DESIGN.md. The zero value is no mark.
type Mark struct {
	Position Position
	Sum      uint64 // sum of the message, never 0
}

// Exists reports whether m is a mark.
func (m Mark) Exists() bool { return m.Sum != 0 }

// MarshalJSON returns a number if Hi is 0, and otherwise String as a JSON string.
func (p Position) MarshalJSON() ([]byte, error) {
	if p.Hi == 0 {
		return strconv.AppendUint(nil, p.Lo, 10), nil
	}
	return strconv.AppendQuote(nil, p.String()), nil
}

// UnmarshalJSON parses the output of MarshalJSON.
func (p *Position) UnmarshalJSON(body []byte) error {
	text := string(body)
	if n := len(text); n >= 2 && text[0] == '"' && text[n-1] == '"' {
		text = text[1 : n-1]
	}
	read, err := Parse(text)
	if err == nil {
		*p = read
	}
	return err
}
