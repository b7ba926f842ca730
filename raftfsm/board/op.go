package board

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// OpKind is the number of an op in a log entry.
type OpKind uint8

// Ops on the board. The result row has the number of the channel or dot. It also has the
// channel's last notice or the dot's number of firings. A publish or fire that is repeated soon
// returns its first result. A refused op has a Refusal as the column of its engine.Overflow;
// RepeatedRefusal returns the refusal of a repeat.
const (
	Publish    OpKind = 48 // one more notice; makes the channel
	Retract    OpKind = 49 // retracts the notice Seq
	Fire       OpKind = 50 // makes the dot
	SetDot     OpKind = 51 // sets NewUsers; makes the dot
	PutChannel OpKind = 52 // this and the next two: a restore
	PutDot     OpKind = 53
	Clear      OpKind = 54
	// These two create what does not exist yet and change nothing else, so that a user can have a
	// position in a channel before its first notice, or at a dot before it is fired.
	MakeChannel OpKind = 55
	MakeDot     OpKind = 56
)

// opNames is read only.
var opNames = [...]string{
	Publish: "publish notice", Retract: "retract", Fire: "fire", SetDot: "set dot", PutChannel: "put channel",
	PutDot: "put dot", Clear: "clear board", MakeChannel: "make channel", MakeDot: "make dot",
}

func (k OpKind) String() string { return fmt.Sprintf("op %d (%s)", uint8(k), opNames[k]) }

// AppendOp appends an op. It panics on an op that the format cannot express.
func AppendOp(w *raftfsm.RequestWriter, op *Op) {
	if err := op.check(); err != nil {
		panic(err.Error())
	}
	w.Put(op.appendTo(w.Buffer()), false)
}

// Refusal is why the board refused an op.
type Refusal = uint8

// The refusals.
const (
	RefusedMissing Refusal = 0 // the notice does not exist
	RefusedFull    Refusal = 1 // unread.CursorsMax channels and dots exist, or RetractedMax retracted notices
)

// RepeatedRefusal returns the refusal of the first request of a repeated op. value is the value in
// the repeat's result row. If the board no longer remembers the refusal, the current notices
// decide.
func (op *Op) RepeatedRefusal(value int64) Refusal {
	switch {
	case value < 0:
		return Refusal(refusedValue(0) - value)
	case op.Kind == Retract && (op.Seq < 1 || op.Seq > value):
		return RefusedMissing
	}
	return RefusedFull
}

// refusedValue returns the value that stores a refusal among the answers. It is negative;
// numbers of notices are not.
func refusedValue(why Refusal) int64 { return -1 - int64(why) }

// Op is one change of the board. In an entry:
//
//	kind (1) | length of name (1) | name | notice (8) | new users (1) | length (4) | JSON of a channel or dot
type Op struct {
	Kind     OpKind
	Name     string
	Seq      int64
	NewUsers bool
	Channel  *Channel // of PutChannel
	Dot      *Dot     // of PutDot

	void   bool
	forget bool     // whether the shard forgets the requests of clients, because the op's request is of a restore
	id     answerID // zero for none
}

func (op *Op) check() error {
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

func (op *Op) appendTo(dst []byte) []byte {
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
		panic(fmt.Sprintf("board: a channel or dot without JSON: %v", err)) // every Channel and Dot has JSON
	}
	return append(binary.LittleEndian.AppendUint32(dst, uint32(len(body))), body...)
}

// parseOp splits an op off.
func parseOp(p []byte) (op Op, rest []byte, err error) {
	if k := OpKind(p[0]); k < Publish || k > MakeDot {
		return op, nil, raftfsm.ErrOp(p, codec.KindBoard)
	}
	r := wire.Reader{Rest: p[1:]}
	op = Op{Kind: OpKind(p[0]), Name: string(r.Take(uint64(r.Byte())))}
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

// answerID is the hash of a key, or of a producer and number.
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
