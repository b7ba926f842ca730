package redis

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
)

// traits are properties of a command.
type traits uint8

const (
	writes    traits = 1 << iota // may change counts
	keyed                        // has keys that name rows: it is planned, and allowed in a transaction
	joins                        // answered by package unread: it is planned as a call
	readsSets                    // reads sets of members: it is planned as a call
	plain                        // has no keys, and is allowed in a transaction
	unplanned                    // replies at once, so earlier commands are executed first
	atOnce                       // not queued by MULTI
)

// spec is the definition of a command.
type spec struct {
	name   string // in lower case
	arity  int    // number of arguments including the name; if negative, the minimum
	traits traits
	keys   keySpec
	need   auth.Need // nobody may run a command without one
	group  string    // as in COMMAND DOCS
	does   string
	do     func(c *conn, args [][]byte)
}

// command is a command of the server.
type command struct {
	spec
	calls prometheus.Counter // set by newMetrics
}

// keySpec is the position of a command's keys, in the format of COMMAND INFO.
type keySpec struct{ first, last, step int }

var (
	noKeys   = keySpec{}
	oneKey   = keySpec{1, 1, 1}
	manyKeys = keySpec{1, -1, 1}
	pairs    = keySpec{1, -1, 2}
)

// commandTable holds the commands by name.
type commandTable map[string]*command

// nameBytesMax is above the length of any command's name.
const nameBytesMax = 32

// find returns the command with a name, in any case, or nil.
func (t commandTable) find(name []byte) *command {
	var lower [nameBytesMax]byte
	if len(name) > len(lower) {
		return nil
	}
	for i, c := range name {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		lower[i] = c
	}
	return t[string(lower[:len(name)])]
}

// takes reports whether a command accepts n arguments, its name included.
func (cmd *command) takes(n int) bool {
	return n == cmd.arity || cmd.arity < 0 && n >= -cmd.arity
}

func wrongArity(name string) string {
	return fmt.Sprintf("ERR wrong number of arguments for '%s' command", name)
}

func unknownSubcommand(of string, sub []byte) string {
	return fmt.Sprintf("ERR unknown subcommand '%s'. Try %s HELP.", shown(sub), strings.ToUpper(of))
}

const (
	errNotInteger codedError = "ERR value is not an integer or out of range"
	errSyntax     codedError = "ERR syntax error"

	errLargeFull = "OVERLOADED the connections take all the memory that they may"
)

var errTooManyKeys = argumentError(fmt.Sprintf("a command takes at most %d keys", rowsMax))

// readKeys parses keys, the first argument of each step, into the batch's memory.
func (b *batch) readKeys(texts [][]byte, step int, read func(*batch, []byte) (key, error)) ([]key, error) {
	if len(texts)/step > rowsMax {
		return nil, errTooManyKeys
	}
	b.keys = b.keys[:0]
	for i := 0; i < len(texts); i += step {
		k, err := read(b, texts[i])
		if err != nil {
			return nil, err
		}
		b.keys = append(b.keys, k)
	}
	return b.keys, nil
}

// readValues parses numbers, the last argument of each step.
func (b *batch) readValues(texts [][]byte, step int) ([]int64, error) {
	b.values = b.values[:0]
	for i := step - 1; i < len(texts); i += step {
		n, ok := resp.ParseInt(texts[i])
		if !ok {
			return nil, errNotInteger
		}
		b.values = append(b.values, n)
	}
	return b.values, nil
}
