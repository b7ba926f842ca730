package redis

import (
	"bytes"
	"fmt"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
)

// arguments are the arguments of a command that is being planned.
type arguments struct {
	resp.Arguments
	b *batch
}

// arguments begins to parse the words of a command. The batch reuses one arguments value for all
// commands, so functions that run after the planning must not use it.
func (b *batch) arguments(words [][]byte) *arguments {
	b.parsed = arguments{resp.Arguments{Words: words, At: 1}, b}
	return &b.parsed
}

func (a *arguments) node() *node { return a.b.conn.server.node() }

// id parses the next word as an id.
func (a *arguments) id(field string) uint64 {
	id, err := idOf(field, a.Next())
	a.Fail(err)
	return id
}

func (a *arguments) user() uint64 { return a.id("user") }

// name parses the next word as the name of a channel or dot.
func (a *arguments) name(field string) string {
	text := a.Next()
	if !catalog.ValidName(text) {
		a.Fail(resp.FieldError(field, inbox.NameRule))
	}
	return string(text)
}

// followees parses the rest of the words: followees, and optionally KEY.
func (a *arguments) followees() []uint64 {
	words, err := a.b.keyAtEnd(a.Words, a.At+1)
	a.Fail(err)
	ids, err := followeesOf(words[a.At:])
	a.Fail(err)
	return ids
}

func followeesOf(texts [][]byte) ([]uint64, error) {
	if len(texts) > inbox.FolloweesMax {
		return nil, resp.FieldError("followees", fmt.Sprintf("more than %d", inbox.FolloweesMax))
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

// keyOption returns the resp.Option KEY, whose value is an idempotency key. A repeat of a write with the
// same key has no effect.
func (a *arguments) keyOption() resp.Option {
	return resp.TextOption("key", func([]byte) error { return a.b.countOnce(a.Words, a.At-1) })
}

// countOnce gives the planned command an identity, so that a repeat has no effect. args[word] is
// the word KEY, and the idempotency key follows it. The identity covers the key and all other
// arguments.
func (b *batch) countOnce(args [][]byte, word int) error {
	if b.atomic {
		return resp.ArgumentError("a transaction counts once by COUNTD.SESSION, not by KEY")
	}
	name := args[word+1]
	if len(name) < 1 || len(name) > dedup.KeyBytesMax {
		return resp.ArgumentError(fmt.Sprintf("idempotency key: 1 to %d bytes", dedup.KeyBytesMax))
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

// idOf parses an id.
func idOf(field string, text []byte) (uint64, error) {
	id, ok := parseID(text)
	if !ok {
		return 0, resp.FieldError(field, strictjson.NotUint64)
	}
	return id, nil
}

func appendInt(dst []byte, n int64, _ bool) []byte { return resp.AppendInt(dst, n) }

func appendTruth(dst []byte, holds bool, _ bool) []byte { return resp.AppendTruth(dst, holds) }
