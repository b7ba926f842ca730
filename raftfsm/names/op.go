package names

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

const (
	// BytesMax bounds the bytes of a text.
	BytesMax = 128
	// NumberMax is the highest number. A number of 4 bytes keeps the index of texts small.
	NumberMax = 1<<32 - 1
)

// Valid reports whether a text may be an id: valid UTF-8 of 1 to BytesMax bytes.
func Valid[T string | []byte](text T) bool {
	if len(text) < 1 || len(text) > BytesMax {
		return false
	}
	if bytes, is := any(text).([]byte); is {
		return utf8.Valid(bytes) // without a copy
	}
	return utf8.ValidString(string(text))
}

// OpKind is the number of an op in a log entry.
type OpKind uint8

// Ops on names. The result row contains the number of the text after the op; for Erase, the number
// that the text had; 0 for none.
const (
	// Assign gives a text the next number, unless it has a number.
	Assign OpKind = 64
	// Erase removes a text. No other text ever gets its number.
	Erase OpKind = 65
	// Put gives a text a certain number, and all numbers up to it count as used. Without a text, it only
	// does the latter, and says when they were given; with the number 0, it changes nothing. It is refused
	// if the text has another number, or the number another text. Only a
	// restore uses Put.
	Put OpKind = 66
	// Skip passes over the next Number numbers, or half of those left if they are fewer: nobody ever gets
	// them. Only the recovery of a lost majority uses it. The result row contains 0.
	Skip OpKind = 67
)

// opNames is read only.
var opNames = [...]string{Assign: "assign", Erase: "erase", Put: "put name", Skip: "skip names"}

func (k OpKind) String() string { return fmt.Sprintf("op %d (%s)", uint8(k), opNames[k]) }

// Refusal is the reason for which the shard refused an op: the column of the op's engine.Overflow.
type Refusal = uint8

// The refusals.
const (
	RefusedFull  Refusal = 0 // NumberMax was given
	RefusedTaken Refusal = 1 // the text of a Put has another number, or the number another text
)

// Op is one op on a text. In an entry:
//
//	kind (1) | length of text (1) | text | number (uvarint), for Put and Skip | At (uvarint), for Put without a text
type Op struct {
	Kind   OpKind
	Text   string
	Number uint64 // only for Put and Skip
	// At is the time, in Unix milliseconds, at or before which Number and all lower ones were given; 0 if
	// that is unknown. Only a Put without a text has it.
	At int64
}

// clocked reports whether an entry must have a clock section before the op.
func (op *Op) clocked() bool { return op.Kind == Assign }

func (op *Op) check() error {
	fits := false
	switch op.Kind {
	case Assign, Erase:
		fits = Valid(op.Text) && op.Number == 0
	case Put:
		fits = op.Number <= NumberMax && (op.Text == "" || Valid(op.Text) && op.Number >= 1)
	case Skip:
		fits = op.Text == "" && op.Number >= 1 && op.Number <= NumberMax
	}
	fits = fits && (op.At == 0 || op.Kind == Put && op.Text == "" && op.Number >= 1 && op.At > 0 && op.At <= timeMax)
	if !fits {
		return fmt.Errorf("a names op of kind %d on %q and number %d has no form in a log entry", op.Kind, op.Text, op.Number)
	}
	return nil
}

func (op *Op) appendTo(dst []byte) []byte {
	dst = append(append(dst, byte(op.Kind), byte(len(op.Text))), op.Text...)
	if op.Kind == Put || op.Kind == Skip {
		dst = binary.AppendUvarint(dst, op.Number)
	}
	if op.Kind == Put && op.Text == "" {
		dst = binary.AppendUvarint(dst, uint64(op.At))
	}
	return dst
}

// SkipEntry returns a log entry with one Skip.
func SkipEntry(numbers uint64) []byte {
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	Ops{{Kind: Skip, Number: numbers}}.AppendTo(&w, 0, 0)
	return codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindNames, 0), w.Section()...))
}

// parseOp decodes the first op of p, and returns the bytes after it.
func parseOp(p []byte) (op Op, rest []byte, err error) {
	if k := OpKind(p[0]); k < Assign || k > Skip {
		return op, nil, raftfsm.ErrOp(p, codec.KindNames)
	}
	r := wire.Reader{Rest: p[1:]}
	op = Op{Kind: OpKind(p[0]), Text: string(r.Take(uint64(r.Byte())))}
	if op.Kind == Put || op.Kind == Skip {
		op.Number = r.Uint()
	}
	if op.Kind == Put && op.Text == "" {
		op.At = int64(r.UintTo(timeMax))
	}
	if err = r.Err; err == nil {
		err = op.check()
	}
	if err != nil {
		return op, nil, fmt.Errorf("%w: %s: %w", codec.ErrEntry, op.Kind, err)
	}
	return op, r.Rest, nil
}

// Ops are ops on names. They implement raftfsm.Ops.
type Ops []Op

func (o Ops) Len() int { return len(o) }

// ID implements raftfsm.Ops. A shard of names is the only one of its keyspace.
func (o Ops) ID(int) uint64 { return 0 }

func (o Ops) Fits(kind codec.Kind, _ int) error { return raftfsm.FitsOnly(codec.KindNames, kind) }

func (o Ops) Refusable(int, []int64, *raftfsm.Settings) (engine.Overflow, bool) {
	return engine.Overflow{}, true
}

// See calls Body with the key 0, which has no body: the proposer does not know which blocks Apply needs.
func (o Ops) See(v raftfsm.Visitor, _ uint64, op int) error { return v.Body(0, &o[op]) }

func (o Ops) AppendTo(w *raftfsm.RequestWriter, _ uint64, op int) {
	if err := o[op].check(); err != nil {
		panic(err.Error())
	}
	w.Put(o[op].appendTo(w.Buffer()), o[op].clocked())
}
