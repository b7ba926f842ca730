package redis

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/shard"
)

// traits are properties of a command.
type traits uint8

const (
	writes    traits = 1 << iota // may change counts
	keyed                        // its keys name rows: it is planned, and allowed in a transaction
	joins                        // answered by package unread: it is planned as a call
	looksIn                      // reads sets of members: it is planned as a call
	plain                        // has no keys, and is allowed in a transaction
	unplanned                    // replies at once, so earlier commands are executed first
	atOnce                       // not queued by MULTI
)

// command is one entry of the command table.
type command struct {
	name   string // in lower case
	arity  int    // number of arguments including the name; if negative, the minimum
	traits traits
	keys   keySpec
	group  string // as in COMMAND DOCS
	does   string
	do     func(c *conn, args [][]byte)

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

// nameBytesMax is more than the longest name of a command.
const nameBytesMax = 32

// find returns the command of a name in any case, or nil.
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

func newCommands() commandTable {
	t := commandTable{}
	for _, list := range [][]command{stringCommands(), hashCommands(), setCommands(), keyCommands(), connectionCommands(), serverCommands(), countdCommands(), userCommands(), boardCommands(), feedCommands(), timelineCommands(), pollCommands()} {
		for i := range list {
			t[list[i].name] = &list[i]
		}
	}
	return t
}

// takes reports whether a command accepts n arguments, its name included.
func (cmd *command) takes(n int) bool {
	return n == cmd.arity || cmd.arity < 0 && n >= -cmd.arity
}

// command plans or executes one command, or queues it for EXEC.
func (c *conn) command(args [][]byte) {
	cmd := c.last
	if cmd == nil || string(args[0]) != string(c.lastName) { // pipelines repeat commands
		if cmd = c.server.commands.find(args[0]); cmd != nil {
			c.last, c.lastName = cmd, append(c.lastName[:0], args[0]...)
		}
	}
	switch {
	case cmd == nil && isHTTP(args[0]):
		c.closing = true
	case c.server.cfg.Auth != nil && c.refused(cmd, args):
	case cmd == nil:
		c.multi.broken, c.once.unsure = true, true
		c.batch.fail(unknownCommand(args))
	case !cmd.takes(len(args)) && cmd.name == "exec":
		c.closeMulti()
		c.batch.fail("EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command")
	case !cmd.takes(len(args)):
		c.multi.broken = true
		c.batch.fail(wrongArity(cmd.name))
	case c.multi.open && cmd.traits&atOnce == 0:
		c.queue(cmd, args)
	default:
		c.plan(cmd, args)
	}
}

// isHTTP reports whether a line begins an HTTP request. A web page may make a browser
// send commands in the body of such a request. Redis closes the connection too.
func isHTTP(name []byte) bool {
	return bytes.EqualFold(name, []byte("post")) || bytes.EqualFold(name, []byte("host:"))
}

// plan plans a command.
func (c *conn) plan(cmd *command, args [][]byte) {
	b := c.batch
	if cmd.traits&unplanned != 0 || b.pending > 0 && b.pending+2*len(args) > rowsMax || b.mustWait(cmd) {
		b.flush()
	}
	cmd.calls.Inc()
	b.number++
	b.writes = cmd.traits&writes != 0
	b.id = shard.RequestID{}
	if b.writes && c.once.open() {
		if why := c.once.refusal(); why != "" {
			c.closeMulti() // the command may be an EXEC
			b.fail(why)
			return
		}
		b.id = c.once.next()
	}
	if cmd.traits&joins != 0 {
		if _, err := b.unreadTable(); b.failed(err) {
			return
		}
	}
	if cmd.do(c, args); b.missed {
		b.lookUp()
		cmd.do(c, args)
	}
}

// unknownCommand returns Redis's error for an unknown command.
func unknownCommand(args [][]byte) string {
	var text strings.Builder
	fmt.Fprintf(&text, "ERR unknown command '%s', with args beginning with: ", shown(args[0]))
	for _, arg := range args[1:] {
		if text.Len() > 2*shownBytesMax {
			break
		}
		fmt.Fprintf(&text, "'%s' ", shown(arg))
	}
	return text.String()
}

func wrongArity(name string) string {
	return fmt.Sprintf("ERR wrong number of arguments for '%s' command", name)
}

func unknownSubcommand(of string, sub []byte) string {
	return fmt.Sprintf("ERR unknown subcommand '%s'. Try %s HELP.", shown(sub), strings.ToUpper(of))
}

const (
	errNotInteger = "ERR value is not an integer or out of range"
	errSyntax     = "ERR syntax error"
	errLargeFull  = "OVERLOADED the connections take all the memory that they may"
)

var errTooManyKeys = argumentError(fmt.Sprintf("a command takes at most %d keys", rowsMax))

// readKeys parses keys, the first argument of each step, into the batch's memory.
func (b *batch) readKeys(texts [][]byte, step int, read func(*batch, []byte) (key, error)) ([]key, error) {
	return b.readKeysOf(texts, step, func(b *batch, words [][]byte) (key, error) { return read(b, words[0]) })
}

// readKeysOf parses keys of the given number of words each.
func (b *batch) readKeysOf(texts [][]byte, words int, read func(*batch, [][]byte) (key, error)) ([]key, error) {
	if len(texts)/words > rowsMax {
		return nil, errTooManyKeys
	}
	b.keys = b.keys[:0]
	for i := 0; i < len(texts); i += words {
		k, err := read(b, texts[i:i+words])
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
		n, ok := parseInt(texts[i])
		if !ok {
			return nil, codedError(errNotInteger)
		}
		b.values = append(b.values, n)
	}
	return b.values, nil
}
