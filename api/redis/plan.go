package redis

import (
	"slices"
	"time"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/raftfsm/dedup"
)

// command plans or executes one command, or queues it for EXEC.
func (c *conn) command(args [][]byte) {
	cmd := c.last
	if cmd == nil || string(args[0]) != string(c.lastName) { // pipelines repeat commands
		if cmd = c.server.commands.find(args[0]); cmd != nil {
			c.last, c.lastName = cmd, append(c.lastName[:0], args[0]...)
		}
	}
	switch {
	case cmd == nil && resp.IsHTTP(args[0]):
		c.closing = true
	case c.server.cfg.Auth != nil && c.refused(cmd, args):
	case cmd == nil:
		c.multi.broken, c.once.Unsure = true, true
		c.batch.fail(resp.UnknownCommand(args))
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

// plan plans a command.
func (c *conn) plan(cmd *command, args [][]byte) {
	b := c.batch
	if cmd.traits&unplanned != 0 || b.pending > 0 && b.pending+2*len(args) > rowsMax || b.mustWait(cmd) {
		b.flush()
	}
	cmd.calls.Inc()
	b.number++
	b.writes = cmd.traits&writes != 0
	b.id = dedup.RequestID{}
	if b.writes && c.once.Open() {
		if why := c.sessionRefusal(); why != "" {
			c.closeMulti() // the command may be an EXEC, which ends the transaction
			b.fail(why)
			return
		}
		b.id = c.once.Next()
	}
	if cmd.traits&joins != 0 {
		if _, err := b.unreadTable(); b.failed(err) {
			return
		}
	}
	if cmd.run(c, args); b.missed {
		b.lookUp()
		cmd.run(c, args)
	}
}

// run plans or executes a command. The caller has checked the number of arguments.
func (cmd *command) run(c *conn, args [][]byte) {
	if cmd.do != nil {
		cmd.do(c, args)
		return
	}
	cmd.call(c.batch.arguments(args))
}

// unknownName replaces the name of an unknown command in the audit log, because the client's text
// may be a token.
const unknownName = "unknown command"

// refused replies to a command that the client may not run, and reports whether the command was
// refused. cmd is nil for an unknown command. refused checks the login before each command, because
// the token may end during a long pipeline.
func (c *conn) refused(cmd *command, args [][]byte) bool {
	now := time.Now()
	c.renewLogin(now)
	why, text := c.refusal(cmd, args)
	if why == auth.Granted {
		why, text = c.beyondLimits(cmd, args, now)
	}
	if why == auth.Granted {
		return false
	}
	name := unknownName
	if cmd != nil {
		name = cmd.name
	}
	caller, _ := c.login.current()
	if !c.server.cfg.Auth.Refuse(why, auth.Call{Caller: caller, From: c.net.RemoteAddr(), What: name}) {
		return false
	}
	if name == "exec" {
		c.closeMulti()
		text = "EXECABORT Transaction discarded because of: " + text
	}
	c.multi.broken = c.multi.broken || c.multi.open
	switch {
	case cmd == nil:
		c.once.Unsure = true
	case cmd.traits&writes != 0 && cmd.takes(len(args)) && c.once.Open() && !c.multi.open && c.sessionRefusal() == "":
		c.once.Next() // count a refused write too: the numbers of later writes must not depend on rights
	}
	c.batch.fail(text)
	return true
}

// mustWait reports whether plan must execute the planned commands before it plans the next one.
// Otherwise the order of effects would change, or the next command would not see the results of the
// planned ones.
func (b *batch) mustWait(cmd *command) bool {
	switch {
	case cmd.traits&readsSets != 0:
		return len(b.calls.writes) > 0 || slices.ContainsFunc(b.tables, func(t *table) bool { return len(t.ops) > 0 })
	case cmd.traits&joins == 0:
		return len(b.calls.writes) > 0 && cmd.traits&(keyed|atOnce) != 0
	case cmd.traits&writes != 0:
		return slices.ContainsFunc(b.tables, func(t *table) bool { return len(t.ops) > 0 })
	}
	return len(b.calls.writes) > 0 || slices.ContainsFunc(b.tables, func(t *table) bool { return len(t.ops) > 0 && isJoined(t.ks) })
}
