package rpc

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/shard/errs"
)

// The errors of calls to other nodes. An error that a handler returned is an *Error.
var (
	// ErrNotSent is returned if no byte of the request left this node, so that no handler has seen
	// it: the node is unknown or not connected.
	ErrNotSent = errors.New("the call was not sent")
	// ErrCallLost is returned if the request was passed to the network and no answer came. A
	// handler may or may not have seen the request.
	ErrCallLost = errors.New("the call was sent but its outcome is unknown")
	// ErrNoMethod is returned if the called node has no such method, because it runs another
	// version of the program.
	ErrNoMethod = errors.New("the node knows no such call")
	// ErrTooLarge is returned for a request or an answer above MessageBytesMax.
	ErrTooLarge = errors.New("the call's message is too large")
	// ErrBadAnswer is returned for an answer that this version cannot decode.
	ErrBadAnswer = errors.New("not an answer of this version")
)

// The encoding of an error:
//
//	┌────────┬───────────────────┬────────┬─────────────────┬──────┐
//	│  code  │ detail's length L │ detail │ text's length N │ text │
//	│ 1 byte │      uvarint      │   L    │     uvarint     │  N   │
//	└────────┴───────────────────┴────────┴─────────────────┴──────┘
//
// The detail of ErrNoLeader is the key of the leading node. The detail of ErrMisrouted is the modulus, as
// a uvarint. Other errors have none. For no error, the encoding is only the code 0.

// Code identifies an encoded error. A number is never reused for another error.
type Code uint8

const (
	codeOK        Code = 0
	CodeOther     Code = 1 // any error without a code of its own; the call's outcome is unknown
	codeNoLeader  Code = 4
	codeMisrouted Code = 19
	codeLimit     Code = 20

	ErrorTextMax = 1 << 10 // bytes of an error's text; the rest is cut off
	LeaderKeyMax = 128     // bytes; a node key is a name of at most 64 bytes and an instance
	// ErrorBytesMax bounds an encoded error.
	ErrorBytesMax = 1 + binary.MaxVarintLen16 + LeaderKeyMax + binary.MaxVarintLen16 + ErrorTextMax
)

// callCodes has the code of each error that calls transmit. An error that matches several entries
// gets the code of the first. So errors of unknown outcome precede errors which promise that
// nothing was applied.
var callCodes = []struct {
	code Code
	err  error
}{
	{2, errs.ErrOutcomeUnknown},
	{3, ErrCallLost},
	{codeMisrouted, errs.ErrMisrouted},
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
	{codeLimit, errs.ErrLimit},
}

// Error is an error that a handler returned on another node. errors.Is matches it with the
// sentinel error of its code.
type Error struct {
	Code   Code
	Text   string
	Leader string // key of the leading node, for an ErrNoLeader; "" if unknown
	// Modulus is the number of shards by the route of the replica, for an ErrMisrouted; 0 if unknown.
	Modulus uint32
}

func (e *Error) Error() string { return e.Text }

func (e *Error) Unwrap() error {
	if e.Code == codeLimit {
		return &errs.LimitError{Text: e.Text}
	}
	for _, known := range callCodes {
		if known.code == e.Code {
			return known.err
		}
	}
	return nil
}

// ErrLedBy returns an ErrNoLeader that names the leading node; "" if it is unknown.
func ErrLedBy(leader string) error {
	return &Error{Code: codeNoLeader, Text: errs.ErrNoLeader.Error(), Leader: leader}
}

// ErrMisrouted returns an errs.ErrMisrouted of a replica whose route has the modulus.
func ErrMisrouted(modulus uint32, text string) error {
	return &Error{Code: codeMisrouted, Text: errs.ErrMisrouted.Error() + ": " + text, Modulus: modulus}
}

// ModulusOf returns the modulus that an ErrMisrouted names, or 0.
func ModulusOf(err error) uint32 {
	var e *Error
	if errors.As(err, &e) {
		return e.Modulus
	}
	return 0
}

// LeaderHint returns the key of the leading node that err names, or "".
func LeaderHint(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Leader
	}
	return ""
}

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

// AppendError appends the encoding of err; nil is allowed.
func AppendError(dst []byte, err error) []byte {
	code := CodeOf(err)
	dst = append(dst, byte(code))
	if code == codeOK {
		return dst
	}
	switch code {
	case codeNoLeader:
		dst = AppendText(dst, LeaderHint(err), LeaderKeyMax)
	case codeMisrouted:
		dst = wire.AppendBytes(dst, binary.AppendUvarint(nil, uint64(ModulusOf(err))))
	default:
		dst = append(dst, 0)
	}
	return AppendText(dst, err.Error(), ErrorTextMax)
}

func AppendText(dst []byte, s string, bytesMax int) []byte {
	s = s[:min(len(s), bytesMax)]
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// ParseError decodes an error at the beginning of b. callErr is nil for no error, and rest has the
// bytes after the encoding. ParseError decodes an unknown code as CodeOther.
func ParseError(b []byte) (callErr *Error, rest []byte, err error) {
	r := wire.Reader{Rest: b}
	if callErr = readError(&r); r.Err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrBadAnswer, r.Err)
	}
	return callErr, r.Rest, nil
}

// ReadError decodes an error written by AppendError, or nil. If the encoding is bad, r.Err is set.
func ReadError(r *wire.Reader) error {
	if told := readError(r); told != nil && r.Err == nil {
		return told
	}
	return nil
}

func readError(r *wire.Reader) *Error {
	told := &Error{Code: Code(r.Byte())}
	if told.Code == codeOK {
		return nil
	}
	if told.Unwrap() == nil {
		told.Code = CodeOther
	}
	if detail := r.Take(r.UintTo(LeaderKeyMax)); told.Code == codeMisrouted {
		modulus, _ := binary.Uvarint(detail) // 0 if it is no number
		told.Modulus = uint32(modulus)
	} else {
		told.Leader = string(detail)
	}
	told.Text = string(r.Take(r.UintTo(ErrorTextMax)))
	return told
}

// Fate converts the error of a call to the error of its request. That either promises that nothing
// was applied, or is errs.ErrOutcomeUnknown.
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
