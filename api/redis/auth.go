package redis

import (
	"bytes"
	"fmt"
	"time"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
)

const (
	errNoAuth      = "NOAUTH Authentication required."
	errNoAuthHello = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
	errUnproven    = "LEADERLESS this node cannot prove that the users that it knows are current"
)

// renewLogin checks whether the login's token was revoked or has expired, or its rights changed. If
// so, it executes the planned commands, which the old login was allowed to run, before it changes
// the login.
func (c *conn) renewLogin(now time.Time) {
	if a := c.server.cfg.Auth; a != nil && c.login.caller != nil {
		is, why := a.Still(c.login.caller, now)
		if is != c.login.caller {
			c.batch.flush()
		}
		if c.login.why = why; why == auth.Granted {
			c.login.caller = is
		}
	}
}

// Still implements shard.Permission. It refuses the planned commands if the client has lost its
// token or rights since the commands were planned. No other goroutine changes the login while a
// batch runs.
func (c *conn) Still() error {
	a := c.server.cfg.Auth
	if a == nil || !a.Enforces() || c.login.caller == nil {
		return nil
	}
	caller := c.login.caller
	why := a.Keeps(caller, time.Now())
	if why == auth.Granted {
		return nil
	}
	a.Refuse(why, auth.Call{Caller: caller, From: c.net.RemoteAddr(), What: "pipeline"})
	switch why {
	case auth.Unproven:
		return resp.Error(errUnproven)
	case auth.Forbidden:
		return resp.Error(fmt.Sprintf("NOPERM User %s lost permissions while the command waited", caller.Name))
	}
	return resp.Error(errNoAuth)
}

// refusal returns why the client may not run a command, and the text of the reply. It does not
// check the client's limits. Any user may send an unknown command.
func (c *conn) refusal(cmd *command, args [][]byte) (auth.Refusal, string) {
	if cmd != nil && cmd.need.Access == auth.Public {
		return auth.Granted, ""
	}
	caller, why := c.login.current()
	switch {
	case why == auth.Unproven:
		return why, errUnproven
	case why != auth.Granted:
		return why, errNoAuth
	case cmd != nil && !allowed(caller, &cmd.need, cmd.keys, args):
		return auth.Forbidden, fmt.Sprintf("NOPERM User %s has no permissions to run the '%s' command", caller.Name, cmd.name)
	}
	return auth.Granted, ""
}

// beyondLimits counts a command against the limits of its caller. Public commands do not count.
func (c *conn) beyondLimits(cmd *command, args [][]byte, now time.Time) (auth.Refusal, string) {
	caller, _ := c.login.current()
	if caller == nil || cmd != nil && cmd.need.Access == auth.Public {
		return auth.Granted, ""
	}
	over, wait := auth.Requests, caller.Take(auth.Requests, 1, now)
	if wait == 0 && cmd != nil && cmd.traits&writes != 0 && cmd.name != "exec" {
		if over, wait = auth.Ops, caller.Take(auth.Ops, 1, now); wait == 0 {
			caller.Owe(auth.Ops, cmd.ops(len(args))-1, now)
		}
	}
	if wait > 0 {
		return auth.OverLimits, errOverLimit(caller, over)
	}
	return auth.Granted, ""
}

func errOverLimit(caller *auth.Caller, over auth.Limit) string {
	return fmt.Sprintf("OVERLOADED user %s makes more %s than its limit allows", caller.Name, over)
}

// ops returns the number of ops of a write with n arguments.
func (cmd *command) ops(n int) int {
	if cmd.group == groupSet {
		return n - cmd.keys.Last - 1 // the number of members
	}
	return cmd.keys.Count(n)
}

// allowed reports whether a caller may run a command on all keyspaces that the command names.
func allowed(caller *auth.Caller, need *auth.Need, keys resp.Keys, args [][]byte) bool {
	if !caller.Allows(need, nil) {
		return false
	}
	if need.In != auth.InBody || keys.Step == 0 {
		return true
	}
	last := min(keys.Last, len(args)-1)
	if last < 0 {
		last = len(args) - 1
	}
	for i := keys.First; i <= last; i += keys.Step {
		// A text without a colon is not a key. The command itself refuses it.
		if keyspace, _, ok := bytes.Cut(args[i], []byte(":")); ok && !caller.May(need.Access, keyspace) {
			return false
		}
	}
	return true
}

// mayRead reports whether the client may read a keyspace.
func (c *conn) mayRead(keyspace string) bool {
	a := c.server.cfg.Auth
	if a == nil || !a.Enforces() {
		return true
	}
	caller, _ := c.login.current()
	return caller != nil && caller.May(auth.Read, []byte(keyspace))
}

// recheck returns the error text if the client may no longer execute a transaction, and otherwise
// "". The transaction's commands were allowed, and counted against the limits of the caller, when
// they were queued.
func (c *conn) recheck(m *transaction) string {
	caller, _ := c.login.current()
	if c.server.cfg.Auth == nil || !c.server.cfg.Auth.Enforces() || caller == m.caller {
		return ""
	}
	for _, q := range m.queued {
		if why, text := c.refusal(q.command, q.args); why != auth.Granted {
			c.server.cfg.Auth.Refuse(why, auth.Call{Caller: caller, From: c.net.RemoteAddr(), What: q.command.name})
			return "EXECABORT Transaction discarded because of: " + text
		}
	}
	return ""
}

// logIn logs the client in with a token. user is nil if the client sent no user name. It returns
// the error text, or "". Without --auth, the server behaves like a Redis server whose default user
// has no password.
func (c *conn) logIn(user, token []byte) (fault string) {
	a := c.server.cfg.Auth
	switch {
	case a == nil && string(user) != auth.DefaultName:
		return errWrongPass
	case a == nil:
		return ""
	}
	caller, why := a.Identify(token, time.Now())
	if why == auth.Granted && user != nil && string(user) != auth.DefaultName && string(user) != caller.Name {
		caller, why = nil, auth.BadToken
	}
	over := ""
	if why == auth.Granted && caller.Take(auth.Connections, 1, time.Now()) > 0 {
		why, over = auth.OverLimits, errOverLimit(caller, auth.Connections)
	}
	if why == auth.Granted {
		c.login = login{caller: caller}
		c.out.Unknown = false
		return ""
	}
	refused := a.Refuse(why, auth.Call{Caller: caller, From: c.net.RemoteAddr(), What: "auth"})
	switch {
	case !refused:
		return ""
	case over != "":
		return over
	case why == auth.Unproven:
		return errUnproven
	}
	return errWrongPass
}

// needLogin returns the reply to a HELLO of a client without a login, or "" if the server accepts
// it.
func (c *conn) needLogin() string {
	a := c.server.cfg.Auth
	if a == nil {
		return ""
	}
	_, why := c.login.current()
	if why == auth.Granted || !a.Refuse(why, auth.Call{From: c.net.RemoteAddr(), What: "hello"}) {
		return ""
	}
	if why == auth.Unproven {
		return errUnproven
	}
	return errNoAuthHello
}
