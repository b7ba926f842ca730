package redis

import (
	"bytes"
	"fmt"
	"math"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/shard"
)

// option is an optional word after a command's fixed arguments. take parses the option's
// values, which are at the front of the arguments it is given, and returns how many there
// are.
type option struct {
	name string // matched in any case
	take func(values [][]byte) (taken int, err error)
}

// options parses the arguments from index first on: options in any order, each at most
// once.
func options(args [][]byte, first int, known ...option) error {
	given := uint8(0) // one bit per option; no command has more than 8
	for i := first; i < len(args); {
		o := 0
		for o < len(known) && !bytes.EqualFold(args[i], []byte(known[o].name)) {
			o++
		}
		if o == len(known) || given&(1<<o) != 0 {
			return codedError(errSyntax)
		}
		given |= 1 << o
		taken, err := known[o].take(args[i+1:])
		if err != nil {
			return err
		}
		i += 1 + taken
	}
	return nil
}

// keyOption is KEY <idempotency-key>, with which a write counts once.
func (b *batch) keyOption(args [][]byte) option {
	return option{"key", func(values [][]byte) (int, error) {
		if len(values) == 0 {
			return 0, codedError(errSyntax)
		}
		at := len(args) - len(values) - 1
		return 1, b.countOnce(args, at)
	}}
}

// countOnce gives the planned command an identity, so that it counts once: the
// idempotency key, which follows the word at index at, and all other arguments.
func (b *batch) countOnce(args [][]byte, at int) error {
	if b.atomic {
		return argumentError("a transaction counts once by COUNTD.SESSION, not by KEY")
	}
	name := args[at+1]
	if len(name) < 1 || len(name) > shard.KeyBytesMax {
		return argumentError(fmt.Sprintf("idempotency key: 1 to %d bytes", shard.KeyBytesMax))
	}
	asked := [][]byte{bytes.ToUpper(args[0])}
	asked = append(append(asked, args[1:at]...), args[at+2:]...)
	b.id = shard.ByKey(name, asked...)
	return nil
}

// keyAtEnd removes KEY <idempotency-key> from the end of a command with a list of
// arguments. It keeps at least the first least arguments.
func (b *batch) keyAtEnd(args [][]byte, least int) ([][]byte, error) {
	at := len(args) - 2
	if at < least || !bytes.EqualFold(args[at], []byte("key")) {
		return args, nil
	}
	return args[:at], b.countOnce(args, at)
}

// listOption is a word, the number of elements, and the elements, each of width
// arguments.
func listOption(name string, most, width int, read func(elements [][]byte) error) option {
	return option{name, func(values [][]byte) (int, error) {
		if len(values) == 0 {
			return 0, codedError(errSyntax)
		}
		n, ok := resp.ParseUint(values[0])
		if !ok || n > uint64(most) {
			return 0, fieldError("num"+name, fmt.Sprintf("not a number from 0 to %d", most))
		}
		end := 1 + int(n)*width
		if end > len(values) {
			return 0, codedError(errSyntax)
		}
		return end, read(values[1:end])
	}}
}

// numberOption is a word and the number of a notice.
func numberOption(name string, into *int64) option {
	return option{name, func(values [][]byte) (taken int, err error) {
		if len(values) == 0 {
			return 0, codedError(errSyntax)
		}
		*into, err = numberOf(name, values[0])
		return 1, err
	}}
}

// numberOf parses the number of a notice.
func numberOf(field string, text []byte) (int64, error) {
	n, ok := resp.ParseUint(text)
	if !ok || n > math.MaxInt64 {
		return 0, fieldError(field, "not an integer from 0 to 9223372036854775807")
	}
	return int64(n), nil
}

// userOf parses a user.
func userOf(text []byte) (uint64, error) { return idOf("user", text) }

// idOf parses an id.
func idOf(field string, text []byte) (uint64, error) {
	id, ok := parseID(text)
	if !ok {
		return 0, fieldError(field, "not an unsigned 64-bit integer")
	}
	return id, nil
}
