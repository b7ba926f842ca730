package redis

import (
	"bytes"
	"fmt"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
)

// arguments are the arguments of a command that is being planned.
type arguments struct {
	resp.Arguments
	b       *batch
	late    []lateID
	removes bool // the command is a write that only removes
}

// lateID is an id of a call that has a name in place of its number.
type lateID struct {
	of   *names.Text
	into *uint64
}

// arguments begins to parse the words of a command. The batch reuses one arguments value for all
// commands, so functions that run after the planning must not use it.
func (b *batch) arguments(words [][]byte) *arguments {
	b.parsed = arguments{Arguments: resp.Arguments{Words: words, At: 1}, b: b}
	return &b.parsed
}

func (a *arguments) node() *node { return a.b.conn.server.node() }

// id parses the next word as an id of a built-in keyspace. The id is known when the plan is executed.
func (a *arguments) id(field, keyspace string) *uint64 {
	id := new(uint64)
	a.Fail(a.parseID(field, keyspace, a.Next(), id))
	return id
}

func (a *arguments) user() *uint64 { return a.id("user", kinds.KeyspaceUnread) }

// parseID parses an id of a built-in keyspace into a variable.
func (a *arguments) parseID(field, keyspace string, text []byte, into *uint64) error {
	space, err := a.node().namesOf(keyspace)
	if err != nil {
		return err
	}
	id, of, ok := a.b.idIn(space, text)
	if !ok {
		return resp.FieldError(field, names.Problem(space))
	}
	a.wait(id, of, into)
	return nil
}

// wait sets a variable to an id, if not now then when the plan is executed.
func (a *arguments) wait(id uint64, of *names.Text, into *uint64) {
	if *into = id; of != nil {
		a.late = append(a.late, lateID{of, into})
	}
}

// rowOf returns the id of the row of a key. The id is known when the plan is executed.
func (a *arguments) rowOf(k key) *uint64 {
	id := new(uint64)
	a.wait(k.id, k.late, id)
	return id
}

// await makes a planned call wait for its ids. If one of them stays unknown, the call fails.
func (a *arguments) await(use names.Use, planned func() *call) {
	for _, l := range a.late {
		a.b.await(l.of, use, func(number uint64, err error) {
			if *l.into = number; err != nil {
				planned().err = err
			}
		})
	}
}

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
	ids, err := a.followeesOf(words[a.At:])
	a.Fail(err)
	return ids
}

func (a *arguments) followeesOf(texts [][]byte) ([]uint64, error) {
	if len(texts) > inbox.FolloweesMax {
		return nil, resp.FieldError("followees", fmt.Sprintf("more than %d", inbox.FolloweesMax))
	}
	ids := make([]uint64, len(texts))
	for i, text := range texts {
		if err := a.parseID(fmt.Sprintf("followees[%d]", i), kinds.KeyspaceUsers, text, &ids[i]); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// keyOption returns the option KEY, whose value is an idempotency key. A repeat of a write with the
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

func appendInt(dst []byte, n int64, _ bool) []byte { return resp.AppendInt(dst, n) }

func appendTruth(dst []byte, holds bool, _ bool) []byte { return resp.AppendTruth(dst, holds) }
