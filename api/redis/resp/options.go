package resp

import (
	"bytes"
	"fmt"
	"math"

	"github.com/countd/countd/internal/strictjson"
)

// Arguments parses the arguments of a command from left to right. It keeps the first fault. Values
// read after a fault are zero.
type Arguments struct {
	Words [][]byte // the command's words, with its name
	At    int      // index of the next word
	Err   error
}

// Fail records a fault.
func (a *Arguments) Fail(err error) {
	if a.Err == nil {
		a.Err = err
	}
}

// Next returns the next word.
func (a *Arguments) Next() []byte {
	a.At++
	return a.Words[a.At-1]
}

// Number parses the next word as the number of a notice.
func (a *Arguments) Number(field string) int64 {
	n, err := NumberOf(field, a.Next())
	a.Fail(err)
	return n
}

// Option is an optional word after a command's fixed arguments. The function Take receives all
// words after the option. It parses the values of the option and returns how many there are.
type Option struct {
	Name string // matched in any case
	Take func(values [][]byte) (taken int, err error)
}

// Options parses the rest of the words: options in any order, each at most once.
func (a *Arguments) Options(known ...Option) {
	given := uint8(0) // one bit per option; no command has more than 8
	for a.Err == nil && a.At < len(a.Words) {
		word, o := a.Next(), 0
		for o < len(known) && !bytes.EqualFold(word, []byte(known[o].Name)) {
			o++
		}
		if o == len(known) || given&(1<<o) != 0 {
			a.Fail(ErrSyntax)
			return
		}
		given |= 1 << o
		taken, err := known[o].Take(a.Words[a.At:])
		a.Fail(err)
		a.At += taken
	}
}

// TextOption returns an option whose value is one text.
func TextOption(name string, read func(text []byte) error) Option {
	return Option{name, func(values [][]byte) (int, error) {
		if len(values) == 0 {
			return 0, ErrSyntax
		}
		return 1, read(values[0])
	}}
}

// FlagOption returns an option without a value.
func FlagOption(name string, given *bool) Option {
	return Option{name, func([][]byte) (int, error) {
		*given = true
		return 0, nil
	}}
}

// NumberOption returns an option whose value is the number of a notice.
func NumberOption(name string, into **int64) Option {
	return TextOption(name, func(text []byte) error {
		n, err := NumberOf(name, text)
		*into = &n
		return err
	})
}

// LimitOption returns the option LIMIT, the number of entries of a page.
func LimitOption(limit *int, most uint64) Option {
	return TextOption("limit", func(text []byte) error {
		n, ok := strictjson.ParseUint64(text)
		if !ok || n < 1 || n > most {
			return FieldError("limit", fmt.Sprintf("not an integer from 1 to %d", most))
		}
		*limit = int(n)
		return nil
	})
}

// CountOption returns the option COUNT, the approximate number of elements of a page of a scan.
func CountOption(count *int, most int) Option {
	return TextOption("count", func(text []byte) error {
		n, ok := ParseInt(text)
		if !ok {
			return ErrNotInteger
		}
		if n < 1 {
			return ErrSyntax
		}
		*count = int(min(n, int64(most)))
		return nil
	})
}

// MatchOption returns the option MATCH, whose value is a pattern.
func MatchOption(p *Pattern) Option {
	return TextOption("match", func(text []byte) error {
		*p = Pattern{Text: string(text), Given: true}
		return nil
	})
}

// ListOption returns an option whose values are a number of elements, and then these elements. Each
// element has width words.
func ListOption(name string, most, width int, read func(elements [][]byte) error) Option {
	return Option{name, func(values [][]byte) (int, error) {
		if len(values) == 0 {
			return 0, ErrSyntax
		}
		n, ok := strictjson.ParseUint64(values[0])
		if !ok || n > uint64(most) {
			return 0, FieldError("num"+name, fmt.Sprintf("not a number from 0 to %d", most))
		}
		end := 1 + int(n)*width
		if end > len(values) {
			return 0, ErrSyntax
		}
		return end, read(values[1:end])
	}}
}

// NumberOf parses the number of a notice.
func NumberOf(field string, text []byte) (int64, error) {
	n, ok := strictjson.ParseUint64(text)
	if !ok || n > math.MaxInt64 {
		return 0, FieldError(field, "not an integer from 0 to 9223372036854775807")
	}
	return int64(n), nil
}
