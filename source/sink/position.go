package sink

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Position is a place in a partition of a queue. All messages below it have been handled.
// Kafka: {0, offset}. NATS: {0, stream sequence}. Redis Streams: the two halves of an id.
// PostgreSQL: {LSN of the commit, number in the transaction}.
type Position struct{ Hi, Lo uint64 }

// Compare returns -1, 0 or 1 if p is below, at or above q.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Hi, q.Hi), cmp.Compare(p.Lo, q.Lo))
}

// Less reports whether p is below q.
func (p Position) Less(q Position) bool { return p.Compare(q) < 0 }

// String returns "Lo" if Hi is 0, else "Hi-Lo".
func (p Position) String() string {
	if p.Hi == 0 {
		return strconv.FormatUint(p.Lo, 10)
	}
	return strconv.FormatUint(p.Hi, 10) + "-" + strconv.FormatUint(p.Lo, 10)
}

// Parse reads a text that String returns.
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

// Mark distinguishes a message from one that takes its position later: source/DESIGN.md. The zero Mark is none.
type Mark struct {
	Position Position
	Sum      uint64 // of the message, never 0
}

// Exists reports whether there is a mark.
func (m Mark) Exists() bool { return m.Sum != 0 }

// MarshalJSON returns a number if Hi is 0, else String as a JSON string.
func (p Position) MarshalJSON() ([]byte, error) {
	if p.Hi == 0 {
		return strconv.AppendUint(nil, p.Lo, 10), nil
	}
	return strconv.AppendQuote(nil, p.String()), nil
}

// UnmarshalJSON reads a number or a string of the form of String.
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
