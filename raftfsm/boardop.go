package raftfsm

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
)

// Refusal is why the board refused an op.
type Refusal = uint8

// The refusals.
const (
	RefusedMissing Refusal = 0 // the notice does not exist
	RefusedFull    Refusal = 1 // CursorsMax channels and dots exist, or RetractedMax retracted notices
)

// RepeatedRefusal returns the refusal of the first request of a repeated op. value is the value in
// the repeat's result row. If the board no longer remembers the refusal, the current notices
// decide.
func (op *BoardOp) RepeatedRefusal(value int64) Refusal {
	switch {
	case value < 0:
		return Refusal(refusedValue(0) - value)
	case op.Kind == BoardRetract && (op.Seq < 1 || op.Seq > value):
		return RefusedMissing
	}
	return RefusedFull
}

// refusedValue returns the value that stores a refusal among the answers. It is negative;
// numbers of notices are not.
func refusedValue(why Refusal) int64 { return -1 - int64(why) }

// BoardOp is one change of the board. In an entry:
//
//	kind (1) | length of name (1) | name | notice (8) | new users (1) | length (4) | JSON of a channel or dot
type BoardOp struct {
	Kind     OpKind
	Name     string
	Seq      int64
	NewUsers bool
	Channel  *Channel // of BoardPutChannel
	Dot      *Dot     // of BoardPutDot

	void   bool
	forget bool     // whether the shard forgets the requests of clients, because the op's request is of a restore
	id     answerID // zero for none
}

func (op *BoardOp) check() error {
	named := len(op.Name) >= 1 && len(op.Name) <= BoardNameBytesMax
	fits := false
	switch op.Kind {
	case BoardPublish, BoardRetract, BoardFire, BoardDot, BoardMakeChannel, BoardMakeDot:
		fits = named && op.Channel == nil && op.Dot == nil
	case BoardPutChannel:
		fits = named && op.Channel != nil && op.Dot == nil
	case BoardPutDot:
		fits = named && op.Dot != nil && op.Channel == nil
	case BoardClear:
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
		panic(fmt.Sprintf("raftfsm: a channel or dot without JSON: %v", err)) // every Channel and Dot has JSON
	}
	return append(binary.LittleEndian.AppendUint32(dst, uint32(len(body))), body...)
}

// parseBoardOp splits an op off.
func parseBoardOp(p []byte) (op BoardOp, rest []byte, err error) {
	if k := OpKind(p[0]); k < BoardPublish || k > BoardMakeDot {
		return op, nil, errOp(p, codec.KindBoard)
	}
	r := wire.Reader{Rest: p[1:]}
	op = BoardOp{Kind: OpKind(p[0]), Name: string(r.Take(uint64(r.Byte())))}
	op.Seq, op.NewUsers = int64(r.Fixed64()), r.Bool()
	body := r.Take(uint64(r.Fixed32()))
	switch err = r.Err; {
	case err != nil:
	case op.Kind == BoardPutChannel:
		op.Channel = &Channel{}
		err = codec.DecodeJSON(body, op.Channel)
	case op.Kind == BoardPutDot:
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
