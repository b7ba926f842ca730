package unread

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// BoardOpKind is the number of an op in a log entry.
type BoardOpKind uint8

// Ops on the board. The result row contains the number of the channel or dot, and then the
// channel's last notice or the dot's number of firings. If a publish or fire is repeated soon, the
// repeat returns the first result. For a refused op, the column of its engine.Overflow is a
// BoardRefusal. RepeatedRefusal returns the refusal of a repeat.
const (
	Publish    BoardOpKind = 48 // appends a notice, and creates the channel if needed
	Retract    BoardOpKind = 49 // retracts the notice Seq
	Fire       BoardOpKind = 50 // counts a firing, and creates the dot if needed
	SetDot     BoardOpKind = 51 // sets NewUsers, and creates the dot if needed
	PutChannel BoardOpKind = 52 // only a restore uses PutChannel, PutDot and Clear
	PutDot     BoardOpKind = 53
	Clear      BoardOpKind = 54
	// MakeChannel and MakeDot create a channel or dot that does not exist yet, and change nothing
	// else. So a user can have a position in a channel before its first notice, or at a dot before
	// it is fired.
	MakeChannel BoardOpKind = 55
	MakeDot     BoardOpKind = 56
)

// opNames is read only.
var opNames = [...]string{
	Publish: "publish notice", Retract: "retract", Fire: "fire", SetDot: "set dot", PutChannel: "put channel",
	PutDot: "put dot", Clear: "clear board", MakeChannel: "make channel", MakeDot: "make dot",
}

func (k BoardOpKind) String() string { return fmt.Sprintf("op %d (%s)", uint8(k), opNames[k]) }

// *BoardOp implements raftfsm.Ops, because a write to the board has one op.

func (op *BoardOp) Len() int      { return 1 }
func (op *BoardOp) ID(int) uint64 { return 0 }
func (op *BoardOp) Fits(kind codec.Kind, _ int) error {
	return raftfsm.FitsOnly(codec.KindBoard, kind)
}
func (op *BoardOp) See(raftfsm.Visitor, uint64, int) error { return nil }
func (op *BoardOp) Refusable(int, []int64, *raftfsm.Settings) (engine.Overflow, bool) {
	return engine.Overflow{}, true
}
func (op *BoardOp) AppendTo(w *raftfsm.RequestWriter, _ uint64, _ int) {
	if err := op.check(); err != nil {
		panic(err.Error())
	}
	w.Put(op.appendTo(w.Buffer()), false)
}

// BoardRefusal is the reason for which the board refused an op.
type BoardRefusal = uint8

// The refusals.
const (
	RefusedMissing BoardRefusal = 0 // the notice does not exist
	RefusedFull    BoardRefusal = 1 // unread.CursorsMax channels and dots exist, or RetractedMax retracted notices
)

// RepeatedRefusal returns the refusal of the first request of a repeated op. value is the value in
// the repeat's result row. If the board no longer remembers the refusal, the current notices
// determine the result.
func (op *BoardOp) RepeatedRefusal(value int64) BoardRefusal {
	switch {
	case value < 0:
		return BoardRefusal(refusedValue(0) - value)
	case op.Kind == Retract && (op.Seq < 1 || op.Seq > value):
		return RefusedMissing
	}
	return RefusedFull
}

// refusedValue returns the value that represents a refusal among the answers. It is negative, so
// that it differs from all numbers of notices.
func refusedValue(why BoardRefusal) int64 { return -1 - int64(why) }

// BoardOp is one change of the board. In an entry:
//
//	kind (1) | length of name (1) | name | notice (8) | new users (1) | length (4) | JSON of a channel or dot
type BoardOp struct {
	Kind     BoardOpKind
	Name     string
	Seq      int64
	NewUsers bool
	Channel  *Channel // only for PutChannel
	Dot      *Dot     // only for PutDot

	void   bool
	forget bool     // the request is part of a restore and makes the shard forget the requests of clients
	id     answerID // zero for none
}

func (op *BoardOp) check() error {
	named := len(op.Name) >= 1 && len(op.Name) <= NameBytesMax
	fits := false
	switch op.Kind {
	case Publish, Retract, Fire, SetDot, MakeChannel, MakeDot:
		fits = named && op.Channel == nil && op.Dot == nil
	case PutChannel:
		fits = named && op.Channel != nil && op.Dot == nil
	case PutDot:
		fits = named && op.Dot != nil && op.Channel == nil
	case Clear:
		fits = op.Name == "" && op.Channel == nil && op.Dot == nil
	}
	if !fits {
		return fmt.Errorf("a board op of kind %d on %q has no form in a log entry", op.Kind, op.Name)
	}
	return nil
}

func (op *BoardOp) appendTo(dst []byte) []byte {
	dst = append(append(dst, byte(op.Kind), byte(len(op.Name))), op.Name...)
	dst = append(binary.LittleEndian.AppendUint64(dst, uint64(op.Seq)), wire.Bit(op.NewUsers))
	var body []byte
	var err error
	switch {
	case op.Channel != nil:
		body, err = json.Marshal(op.Channel)
	case op.Dot != nil:
		body, err = json.Marshal(op.Dot)
	}
	if err != nil {
		panic(fmt.Sprintf("board: a channel or dot without JSON: %v", err)) // never happens: every Channel and Dot can be encoded
	}
	return append(binary.LittleEndian.AppendUint32(dst, uint32(len(body))), body...)
}

// parseOp decodes the first op of p, and returns the bytes after it.
func parseOp(p []byte) (op BoardOp, rest []byte, err error) {
	if k := BoardOpKind(p[0]); k < Publish || k > MakeDot {
		return op, nil, raftfsm.ErrOp(p, codec.KindBoard)
	}
	r := wire.Reader{Rest: p[1:]}
	op = BoardOp{Kind: BoardOpKind(p[0]), Name: string(r.Take(uint64(r.Byte())))}
	op.Seq, op.NewUsers = int64(r.Fixed64()), r.Bool()
	body := r.Take(uint64(r.Fixed32()))
	switch err = r.Err; {
	case err != nil:
	case op.Kind == PutChannel:
		op.Channel = &Channel{}
		err = codec.DecodeJSON(body, op.Channel)
	case op.Kind == PutDot:
		op.Dot = &Dot{}
		err = codec.DecodeJSON(body, op.Dot)
	case len(body) > 0:
		err = errors.New("a channel or dot behind it")
	}
	if err = cmp.Or(err, op.check()); err != nil {
		return op, nil, fmt.Errorf("%w: %s: %w", codec.ErrEntry, op.Kind, err)
	}
	return op, r.Rest, nil
}

// answerID is the hash of the identity of a request: its key, or its producer and number.
type answerID [16]byte

// MarshalText returns 32 hexadecimal digits.
func (id answerID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// UnmarshalText reads what MarshalText returns.
func (id *answerID) UnmarshalText(text []byte) error {
	if len(text) != 2*len(id) {
		return fmt.Errorf("%d digits of a request, not %d", len(text), 2*len(id))
	}
	_, err := hex.Decode(id[:], text)
	return err
}
