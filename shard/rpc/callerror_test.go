package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/countd/countd/shard/errs"
)

func TestCallErrorsComeOutAsTheyWere(t *testing.T) {
	for _, known := range callCodes {
		t.Run(known.err.Error(), func(t *testing.T) {
			sent := fmt.Errorf("cannot do it: %w", known.err)
			told, rest, err := ParseError(append(AppendError(nil, sent), "rest"...))
			mustDo(t, err)
			if !errors.Is(told, known.err) || told.Error() != sent.Error() || string(rest) != "rest" {
				t.Errorf("%v with %q behind it", told, rest)
			}
			for _, other := range callCodes {
				if other.code != known.code && errors.Is(told, other.err) != errors.Is(known.err, other.err) {
					t.Errorf("it is %v too", other.err)
				}
			}
		})
	}
}

func TestCallErrorCodesAreUnique(t *testing.T) {
	seen := map[Code]bool{codeOK: true, CodeOther: true}
	for _, known := range callCodes {
		if seen[known.code] {
			t.Errorf("code %d is there twice", known.code)
		}
		seen[known.code] = true
	}
}

func TestCallErrorKeepsTheLeader(t *testing.T) {
	for _, test := range []struct {
		name   string
		err    error
		leader string
	}{
		{"hint", fmt.Errorf("group 7: %w", ErrLedBy("n2.0123abcd")), "n2.0123abcd"},
		{"no hint", ErrLedBy(""), ""},
		{"plain", errs.ErrNoLeader, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			first, _, err := ParseError(AppendError(nil, test.err))
			mustDo(t, err)
			again, _, err := ParseError(AppendError(nil, fmt.Errorf("asked on: %w", first)))
			mustDo(t, err)
			if got := LeaderHint(again); !errors.Is(again, errs.ErrNoLeader) || got != test.leader {
				t.Errorf("leader %q of %v", got, again)
			}
		})
	}
	if got := LeaderHint(errors.New("another")); got != "" {
		t.Errorf("another error's leader is %q", got)
	}
}

func TestCallErrorKeepsTheModulus(t *testing.T) {
	for err, want := range map[error]uint32{fmt.Errorf("group 7: %w", ErrMisrouted(21, "it is of 7")): 21, errs.ErrMisrouted: 0, ErrLedBy("a"): 0, errs.ErrDraining: 0} {
		first, _, failed := ParseError(AppendError(nil, err))
		mustDo(t, failed)
		again, _, failed := ParseError(AppendError(nil, fmt.Errorf("asked on: %w", first)))
		mustDo(t, failed)
		if ModulusOf(err) != want || ModulusOf(again) != want || errors.Is(again, errs.ErrMisrouted) != errors.Is(err, errs.ErrMisrouted) || LeaderHint(again) != LeaderHint(err) {
			t.Errorf("%v: modulus %d of %v", err, ModulusOf(again), again)
		}
	}
}

// An error with two meanings is reported as the meaning that promises less.
func TestCallErrorPromisesNoMoreThanItMay(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want error
	}{
		{"unknown and overloaded", fmt.Errorf("%w: %w", errs.ErrOverloaded, errs.ErrOutcomeUnknown), errs.ErrOutcomeUnknown},
		{"lost and no leader", fmt.Errorf("%w: %w", errs.ErrNoLeader, ErrCallLost), ErrCallLost},
		{"partial", wrapping{errs.ErrOutcomeUnknown}, errs.ErrOutcomeUnknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			told, _, err := ParseError(AppendError(nil, test.err))
			mustDo(t, err)
			if !errors.Is(told, test.want) || errors.Is(told, errs.ErrOverloaded) || errors.Is(told, errs.ErrNoLeader) {
				t.Errorf("told as %v of code %d", told, told.Code)
			}
		})
	}
	// That one node did not send a call is no statement about the node that reports it.
	told, _, err := ParseError(AppendError(nil, ErrNotSent))
	mustDo(t, err)
	if errors.Is(told, ErrNotSent) {
		t.Error("ErrNotSent travels")
	}
}

func TestCallErrorBounds(t *testing.T) {
	told, _, err := ParseError(AppendError(nil, errors.New(strings.Repeat("x", 2*ErrorTextMax))))
	mustDo(t, err)
	if len(told.Text) != ErrorTextMax {
		t.Errorf("%d bytes of text", len(told.Text))
	}
	long := strings.Repeat("x", 2*ErrorTextMax)
	if n := len(AppendError(nil, fmt.Errorf("%w: %s", ErrLedBy(long), long))); n > ErrorBytesMax {
		t.Errorf("the longest error takes %d bytes, above %d", n, ErrorBytesMax)
	}
	unknown := AppendError(nil, errors.New("of a later version"))
	unknown[0] = 200
	if told, _, err = ParseError(unknown); err != nil || told.Code != CodeOther || told.Text != "of a later version" {
		t.Errorf("a later version's error: %v, %v", told, err)
	}
	for name, b := range map[string][]byte{
		"empty":       nil,
		"no leader":   {1},
		"no text":     {1, 0},
		"short text":  {1, 0, 5, 'a'},
		"long leader": append([]byte{1, 0x81, 0x01}, make([]byte, 200)...),
		"overflow":    {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := ParseError(b); !errors.Is(err, ErrBadAnswer) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func FuzzParseCallAnswer(f *testing.F) {
	f.Add([]byte{0, 'o', 'k'})
	f.Add(AppendError(nil, ErrLedBy("n1.00000000")))
	f.Add(append(AppendError(nil, errs.ErrOverloaded), 'x'))
	f.Fuzz(func(t *testing.T, b []byte) {
		var answer callAnswer
		err := answer.parse(b)
		switch {
		case err != nil:
			if !errors.Is(err, ErrBadAnswer) || answer.arrived {
				t.Errorf("error %v, arrived %v", err, answer.arrived)
			}
		case answer.err == nil:
			if !bytes.Equal(append([]byte{0}, answer.body...), b) {
				t.Errorf("accepted %x", b)
			}
		default:
			var first *Error
			again, _, err := ParseError(AppendError(nil, answer.err))
			if !errors.As(answer.err, &first) || err != nil || again.Text != first.Text || again.Code != first.Code {
				t.Errorf("%x came back as %v, %v", b, again, err)
			}
		}
	})
}

// wrapping is an error of another package, as shard.PartialError is.
type wrapping struct{ err error }

func (w wrapping) Error() string { return "some ops were applied" }
func (w wrapping) Unwrap() error { return w.err }
