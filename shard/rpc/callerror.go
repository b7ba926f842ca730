package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/wire"
)

// The errors of calls to other nodes. What a handler returned is a *Error.
var (
	// ErrNotSent is returned when no byte of the request has left this node, so
	// that no handler has seen it: the node is not known, or not connected.
	ErrNotSent = errors.New("the call was not sent")
	// ErrCallLost is returned when a request was handed to the network and no
	// answer came: a handler has seen it or not.
	ErrCallLost = errors.New("the call was sent but its outcome is unknown")
	// ErrNoMethod is returned when the called node has no such method: its
	// program is of another version.
	ErrNoMethod = errors.New("the node knows no such call")
	// ErrTooLarge is returned for a request or an answer of more than
	// MessageBytesMax.
	ErrTooLarge = errors.New("the call's message is too large")
	// ErrBadAnswer is returned for an answer that no node of this version makes.
	ErrBadAnswer = errors.New("not an answer of this version")
)

// An error travels as:
//
//	┌────────┬───────────────────┬────────┬─────────────────┬──────┐
//	│  code  │ leader's length L │ leader │ text's length N │ text │
//	│ 1 byte │      uvarint      │   L    │     uvarint     │  N   │
//	└────────┴───────────────────┴────────┴─────────────────┴──────┘
//
// No error is the code 0 alone.

// Code names an error on its way. A number is never used for another error.
type Code uint8

const (
	codeOK       Code = 0
	CodeOther    Code = 1 // any error without a code: it promises nothing
	codeNoLeader Code = 4

	ErrorTextMax = 1 << 10 // bytes of an error's text; the rest is cut off
	LeaderKeyMax = 128     // bytes; a node's key is a name of at most 64 and an instance
	// ErrorBytesMax is what an error takes on its way.
	ErrorBytesMax = 1 + binary.MaxVarintLen16 + LeaderKeyMax + binary.MaxVarintLen16 + ErrorTextMax
)

// callCodes gives each error that travels its code. An error that is several
// of them travels as the first: those that promise nothing come before those
// that promise that nothing was applied.
var callCodes = []struct {
	code Code
	err  error
}{
	{2, errs.ErrOutcomeUnknown},
	{3, ErrCallLost},
	{codeNoLeader, errs.ErrNoLeader},
	{5, errs.ErrNoQuorum},
	{6, errs.ErrOverloaded},
	{7, errs.ErrDraining},
	{8, errs.ErrMemoryFull},
	{9, errs.ErrDiskFull},
	{10, errs.ErrConflict},
	{11, errs.ErrExpired},
	{12, errs.ErrKeyspaceExists},
	{13, errs.ErrUnknownKeyspace},
	{14, ErrNoMethod},
	{15, ErrTooLarge},
	{16, errs.ErrBadToken},
	{17, errs.ErrColdRows},
	{18, errs.ErrUnknownColumn},
}

// Error is an error that a handler returned on another node. It is
// (errors.Is) the error of this package that it was there.
type Error struct {
	Code   Code
	Text   string
	Leader string // with ErrNoLeader: the key of the node that leads, as far as known, or ""
}

func (e *Error) Error() string { return e.Text }

func (e *Error) Unwrap() error {
	for _, known := range callCodes {
		if known.code == e.Code {
			return known.err
		}
	}
	return nil
}

// ErrLedBy returns an ErrNoLeader that says which node leads instead, "" when
// that is not known.
func ErrLedBy(leader string) error {
	return &Error{Code: codeNoLeader, Text: errs.ErrNoLeader.Error(), Leader: leader}
}

// LeaderHint returns the key of the node that leads according to err, or "".
func LeaderHint(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Leader
	}
	return ""
}

// CodeOf returns the code that err travels as.
func CodeOf(err error) Code {
	if err == nil {
		return codeOK
	}
	for _, known := range callCodes {
		if errors.Is(err, known.err) {
			return known.code
		}
	}
	return CodeOther
}

// AppendError appends err, which may be nil.
func AppendError(dst []byte, err error) []byte {
	code := CodeOf(err)
	dst = append(dst, byte(code))
	if code == codeOK {
		return dst
	}
	leader := ""
	if code == codeNoLeader {
		leader = LeaderHint(err)
	}
	dst = AppendText(dst, leader, LeaderKeyMax)
	return AppendText(dst, err.Error(), ErrorTextMax)
}

func AppendText(dst []byte, s string, bytesMax int) []byte {
	s = s[:min(len(s), bytesMax)]
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// ParseError reads what AppendError has written at the beginning of b
// and returns it, nil for no error, and what is behind it. A code of a later
// version is an error without one.
func ParseError(b []byte) (told *Error, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, fmt.Errorf("%w: it is empty", ErrBadAnswer)
	}
	if Code(b[0]) == codeOK {
		return nil, b[1:], nil
	}
	told = &Error{Code: Code(b[0])}
	if told.Unwrap() == nil {
		told.Code = CodeOther
	}
	if told.Leader, rest, err = parseText(b[1:], LeaderKeyMax); err == nil {
		told.Text, rest, err = parseText(rest, ErrorTextMax)
	}
	if err != nil {
		return nil, nil, err
	}
	return told, rest, nil
}

func parseText(b []byte, bytesMax int) (s string, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(bytesMax) || n > uint64(len(b)-size) {
		return "", nil, fmt.Errorf("%w: a text of %d bytes in %d", ErrBadAnswer, n, len(b))
	}
	return string(b[size : size+int(n)]), b[size+int(n):], nil
}

// ReadError reads what AppendError wrote; nil when there was none. It does not
// return the reader's own mistakes.
func ReadError(r *wire.Reader) error {
	told, rest, err := ParseError(r.Rest)
	if err != nil {
		r.Fail("an error")
		return nil
	}
	r.Rest = rest
	if told == nil {
		return nil
	}
	return told
}

// Fate says what is known of a request whose call failed with err: an error that promises
// that nothing was applied, or errs.ErrOutcomeUnknown.
func Fate(err error) error {
	if errors.Is(err, ErrNotSent) {
		return fmt.Errorf("%w: %w", errs.ErrNoLeader, err)
	}
	for _, certain := range []error{errs.ErrOverloaded, errs.ErrNoLeader, errs.ErrDraining, errs.ErrUnknownKeyspace, errs.ErrUnknownColumn, ErrNoMethod} {
		if errors.Is(err, certain) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", errs.ErrOutcomeUnknown, err)
}
