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
	keyed                        // has keys that name rows; it is planned, and allowed in a transaction
	joins                        // package inbox answers it; it is planned as a call
	readsSets                    // reads sets of members; it is planned as a call
	plain                        // has no keys, and is allowed in a transaction
	unplanned                    // replies at once; earlier commands are executed first
	atOnce                       // not queued by MULTI
)

// spec is the definition of a command.
type spec struct {
	name   string // in lower case
	arity  int    // number of arguments including the name; if negative, the minimum
	traits traits
	keys   resp.Keys
	need   auth.Need // a command without a need is refused
	group  string    // as in COMMAND DOCS
	does   string
	do     func(c *conn, args [][]byte)
	call   func(a *arguments) // instead of do
}

// command is a command of the server.
type command struct {
	spec
	calls prometheus.Counter // set by New
}

var (
	noKeys   = resp.Keys{}
	oneKey   = resp.Keys{First: 1, Last: 1, Step: 1}
	manyKeys = resp.Keys{First: 1, Last: -1, Step: 1}
	pairs    = resp.Keys{First: 1, Last: -1, Step: 2}
)

// commandTable holds the commands by name.
type commandTable map[string]*command

// nameBytesMax is more than the length of every command's name.
const nameBytesMax = 32

// find returns the command with the name, in upper or lower case, or nil.
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

// takes reports whether a command accepts n arguments, including its name.
func (cmd *command) takes(n int) bool {
	return n == cmd.arity || cmd.arity < 0 && n >= -cmd.arity
}

func wrongArity(name string) string {
	return fmt.Sprintf("ERR wrong number of arguments for '%s' command", name)
}

func unknownSubcommand(name string, sub []byte) string {
	return fmt.Sprintf("ERR unknown subcommand '%s'. Try %s HELP.", resp.Shown(sub), strings.ToUpper(name))
}
