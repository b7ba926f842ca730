package shard

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/countd/countd/shard/errs"
)

// The errors of calls to other nodes. What a handler returned is a *callError.
var (
	// errNotSent is returned when no byte of the request has left this node, so
	// that no handler has seen it: the node is not known, or not connected.
	errNotSent = errors.New("the call was not sent")
	// errCallLost is returned when a request was handed to the network and no
	// answer came: a handler has seen it or not.
	errCallLost = errors.New("the call was sent but its outcome is unknown")
	// errNoMethod is returned when the called node has no such method: its
	// program is of another version.
	errNoMethod = errors.New("the node knows no such call")
	// errCallTooLarge is returned for a request or an answer of more than
	// messageBytesMax.
	errCallTooLarge = errors.New("the call's message is too large")
	// errBadAnswer is returned for an answer that no node of this version makes.
	errBadAnswer = errors.New("not an answer of this version")
)

// An error travels as:
//
//	┌────────┬───────────────────┬────────┬─────────────────┬──────┐
//	│  code  │ leader's length L │ leader │ text's length N │ text │
//	│ 1 byte │      uvarint      │   L    │     uvarint     │  N   │
//	└────────┴───────────────────┴────────┴─────────────────┴──────┘
//
// No error is the code 0 alone.

// callCode says which error it is. A number is never used for another error.
type callCode uint8

const (
	codeOK       callCode = 0
	codeOther    callCode = 1 // any error without a code: it promises nothing
	codeNoLeader callCode = 4

	errorTextMax = 1 << 10 // bytes of an error's text; the rest is cut off
	leaderKeyMax = 128     // bytes; a node's key is a name of at most 64 and an instance
)

// callCodes gives each error that travels its code. An error that is several
// of them travels as the first: those that promise nothing come before those
// that promise that nothing was applied.
var callCodes = []struct {
	code callCode
	err  error
}{
	{2, ErrOutcomeUnknown},
	{3, errCallLost},
	{codeNoLeader, ErrNoLeader},
	{5, ErrNoQuorum},
	{6, ErrOverloaded},
	{7, ErrDraining},
	{8, ErrMemoryFull},
	{9, ErrDiskFull},
	{10, ErrConflict},
	{11, ErrExpired},
	{12, ErrKeyspaceExists},
	{13, ErrUnknownKeyspace},
	{14, errNoMethod},
	{15, errCallTooLarge},
	{16, ErrBadToken},
	{17, errs.ErrColdRows},
	{18, ErrUnknownColumn},
}

// callError is an error that a handler returned on another node. It is
// (errors.Is) the error of this package that it was there.
type callError struct {
	Code   callCode
	Text   string
	Leader string // with ErrNoLeader: the key of the node that leads, as far as known, or ""
}

func (e *callError) Error() string { return e.Text }

func (e *callError) Unwrap() error {
	for _, known := range callCodes {
		if known.code == e.Code {
			return known.err
		}
	}
	return nil
}

// errLedBy returns an ErrNoLeader that says which node leads instead, "" when
// that is not known.
func errLedBy(leader string) error {
	return &callError{Code: codeNoLeader, Text: ErrNoLeader.Error(), Leader: leader}
}

// leaderHint returns the key of the node that leads according to err, or "".
func leaderHint(err error) string {
	var e *callError
	if errors.As(err, &e) {
		return e.Leader
	}
	return ""
}

// codeOf returns the code that err travels as.
func codeOf(err error) callCode {
	if err == nil {
		return codeOK
	}
	for _, known := range callCodes {
		if errors.Is(err, known.err) {
			return known.code
		}
	}
	return codeOther
}

// appendCallError appends err, which may be nil.
func appendCallError(dst []byte, err error) []byte {
	code := codeOf(err)
	dst = append(dst, byte(code))
	if code == codeOK {
		return dst
	}
	leader := ""
	if code == codeNoLeader {
		leader = leaderHint(err)
	}
	dst = appendText(dst, leader, leaderKeyMax)
	return appendText(dst, err.Error(), errorTextMax)
}

func appendText(dst []byte, s string, bytesMax int) []byte {
	s = s[:min(len(s), bytesMax)]
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// parseCallError reads what appendCallError has written at the beginning of b
// and returns it, nil for no error, and what is behind it. A code of a later
// version is an error without one.
func parseCallError(b []byte) (told *callError, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, fmt.Errorf("%w: it is empty", errBadAnswer)
	}
	if callCode(b[0]) == codeOK {
		return nil, b[1:], nil
	}
	told = &callError{Code: callCode(b[0])}
	if told.Unwrap() == nil {
		told.Code = codeOther
	}
	if told.Leader, rest, err = parseText(b[1:], leaderKeyMax); err == nil {
		told.Text, rest, err = parseText(rest, errorTextMax)
	}
	if err != nil {
		return nil, nil, err
	}
	return told, rest, nil
}

func parseText(b []byte, bytesMax int) (s string, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(bytesMax) || n > uint64(len(b)-size) {
		return "", nil, fmt.Errorf("%w: a text of %d bytes in %d", errBadAnswer, n, len(b))
	}
	return string(b[size : size+int(n)]), b[size+int(n):], nil
}
