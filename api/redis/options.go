package redis

import (
	"bytes"
	"fmt"
	"math"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
)

// arguments parses the arguments of a command from left to right. It keeps the first fault. Values
// read after a fault are zero.
type arguments struct {
	b     *batch
	words [][]byte // the command's words, with its name
	at    int      // index of the next word
	err   error
}

// arguments begins to parse the words of a command. The batch reuses one arguments value for all
// commands, so functions that run after the planning must not use it.
func (b *batch) arguments(words [][]byte) *arguments {
	b.parsed = arguments{b: b, words: words, at: 1}
	return &b.parsed
}

func (a *arguments) node() *node { return a.b.conn.server.node() }

func (a *arguments) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

func (a *arguments) next() []byte {
	a.at++
	return a.words[a.at-1]
}

// id parses the next word as an id.
func (a *arguments) id(field string) uint64 {
	id, err := idOf(field, a.next())
	a.fail(err)
	return id
}

func (a *arguments) user() uint64 { return a.id("user") }

// name parses the next word as the name of a channel or dot.
func (a *arguments) name(field string) string {
	text := a.next()
	if !catalog.ValidName(text) {
		a.fail(fieldError(field, inbox.NameRule))
	}
	return string(text)
}

// number parses the next word as the number of a notice.
func (a *arguments) number(field string) int64 {
	n, err := numberOf(field, a.next())
	a.fail(err)
	return n
}

// followees parses the rest of the words: followees, and optionally KEY.
func (a *arguments) followees() []uint64 {
	words, err := a.b.keyAtEnd(a.words, a.at+1)
	a.fail(err)
	ids, err := followeesOf(words[a.at:])
	a.fail(err)
	return ids
}

func followeesOf(texts [][]byte) ([]uint64, error) {
	if len(texts) > inbox.FolloweesMax {
		return nil, fieldError("followees", fmt.Sprintf("more than %d", inbox.FolloweesMax))
	}
	ids := make([]uint64, len(texts))
	for i, text := range texts {
		var err error
		if ids[i], err = idOf(fmt.Sprintf("followees[%d]", i), text); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// option is an optional word after a command's fixed arguments. The function take receives all
// words after the option. It parses the values of the option and returns how many there are.
type option struct {
	name string // matched in any case
	take func(values [][]byte) (taken int, err error)
}

// options parses the rest of the words: options in any order, each at most once.
func (a *arguments) options(known ...option) {
	given := uint8(0) // one bit per option; no command has more than 8
	for a.err == nil && a.at < len(a.words) {
		word, o := a.next(), 0
		for o < len(known) && !bytes.EqualFold(word, []byte(known[o].name)) {
			o++
		}
		if o == len(known) || given&(1<<o) != 0 {
			a.fail(errSyntax)
			return
		}
		given |= 1 << o
		taken, err := known[o].take(a.words[a.at:])
		a.fail(err)
		a.at += taken
	}
}

// textOption returns an option whose value is one text.
func textOption(name string, read func(text []byte) error) option {
	return option{name, func(values [][]byte) (int, error) {
		if len(values) == 0 {
			return 0, errSyntax
		}
		return 1, read(values[0])
	}}
}

// flagOption returns an option without a value.
func flagOption(name string, given *bool) option {
	return option{name, func([][]byte) (int, error) {
		*given = true
		return 0, nil
	}}
}

// numberOption returns an option whose value is the number of a notice.
func numberOption(name string, into **int64) option {
	return textOption(name, func(text []byte) error {
		n, err := numberOf(name, text)
		*into = &n
		return err
	})
}

// limitOption returns the option LIMIT, the number of entries of a page.
func limitOption(limit *int, most uint64) option {
	return textOption("limit", func(text []byte) error {
		n, ok := strictjson.ParseUint64(text)
		if !ok || n < 1 || n > most {
			return fieldError("limit", fmt.Sprintf("not an integer from 1 to %d", most))
		}
		*limit = int(n)
		return nil
	})
}

// countOption returns the option COUNT, the approximate number of elements of a page of a scan.
func countOption(count *int) option {
	return textOption("count", func(text []byte) error {
		n, ok := resp.ParseInt(text)
		if !ok {
			return errNotInteger
		}
		if n < 1 {
			return errSyntax
		}
		*count = int(min(n, rowsMax))
		return nil
	})
}

// matchOption returns the option MATCH, whose value is a pattern.
func matchOption(p *resp.Pattern) option {
	return textOption("match", func(text []byte) error {
		*p = resp.Pattern{Text: string(text), Given: true}
		return nil
	})
}

// listOption returns an option whose values are a number of elements, and then these elements. Each
// element has width words.
func listOption(name string, most, width int, read func(elements [][]byte) error) option {
	return option{name, func(values [][]byte) (int, error) {
		if len(values) == 0 {
			return 0, errSyntax
		}
		n, ok := strictjson.ParseUint64(values[0])
		if !ok || n > uint64(most) {
			return 0, fieldError("num"+name, fmt.Sprintf("not a number from 0 to %d", most))
		}
		end := 1 + int(n)*width
		if end > len(values) {
			return 0, errSyntax
		}
		return end, read(values[1:end])
	}}
}

// keyOption returns the option KEY, whose value is an idempotency key. A repeat of a write with the
// same key has no effect.
func (a *arguments) keyOption() option {
	return textOption("key", func([]byte) error { return a.b.countOnce(a.words, a.at-1) })
}

// countOnce gives the planned command an identity, so that a repeat has no effect. args[word] is
// the word KEY, and the idempotency key follows it. The identity covers the key and all other
// arguments.
func (b *batch) countOnce(args [][]byte, word int) error {
	if b.atomic {
		return argumentError("a transaction counts once by COUNTD.SESSION, not by KEY")
	}
	name := args[word+1]
	if len(name) < 1 || len(name) > dedup.KeyBytesMax {
		return argumentError(fmt.Sprintf("idempotency key: 1 to %d bytes", dedup.KeyBytesMax))
	}
	asked := [][]byte{bytes.ToUpper(args[0])}
	asked = append(append(asked, args[1:word]...), args[word+2:]...)
	b.id = dedup.ByKey(name, asked...)
	return nil
}

// keyAtEnd removes KEY <idempotency-key> from the end of a command with a list of arguments. It
// never removes any of the first n arguments.
func (b *batch) keyAtEnd(args [][]byte, n int) ([][]byte, error) {
	at := len(args) - 2
	if at < n || !bytes.EqualFold(args[at], []byte("key")) {
		return args, nil
	}
	return args[:at], b.countOnce(args, at)
}

// numberOf parses the number of a notice.
func numberOf(field string, text []byte) (int64, error) {
	n, ok := strictjson.ParseUint64(text)
	if !ok || n > math.MaxInt64 {
		return 0, fieldError(field, "not an integer from 0 to 9223372036854775807")
	}
	return int64(n), nil
}

// idOf parses an id.
func idOf(field string, text []byte) (uint64, error) {
	id, ok := parseID(text)
	if !ok {
		return 0, fieldError(field, strictjson.NotUint64)
	}
	return id, nil
}

func appendInt(dst []byte, n int64, _ bool) []byte { return resp.AppendInt(dst, n) }

func appendTruth(dst []byte, holds bool, _ bool) []byte { return resp.AppendTruth(dst, holds) }
