package redis

import (
	"net"
	"time"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/raftfsm/dedup"
)

// conn is one connection. Only its goroutine may use its fields, except where noted.
type conn struct {
	server  *Server
	net     net.Conn // any goroutine may close it
	id      uint64
	name    string
	login   login
	resp3   bool
	stale   bool // the client has sent READONLY, so its reads may be stale
	closing bool // close once the output is sent

	lookedAt time.Time // when names were last looked up

	in    resp.Input
	out   resp.Output
	batch *batch // nil unless commands are being executed
	multi transaction
	once  dedup.Session

	last     *command // the last command that was found, and its name as the client wrote it
	lastName []byte
}

func newConn(s *Server, raw net.Conn) *conn {
	return &conn{server: s, net: raw, id: s.nextID.Add(1), in: resp.NewInput(&s.shared, raw), out: resp.NewOutput(&s.shared, raw)}
}

// unknown reports whether the client must authenticate first.
func (c *conn) unknown() bool {
	a := c.server.cfg.Auth
	if a == nil || !a.Enforces() {
		return false
	}
	_, why := c.login.current()
	return why != auth.Granted
}

// refuse replies with an error at once. No planned command may be pending.
func (c *conn) refuse(text string) {
	c.server.metrics.Failed(text)
	c.out.Buf = resp.AppendError(c.out.Buf, text)
}

// login is the identity of a connection's client. The zero login has no user.
type login struct {
	caller *auth.Caller
	why    auth.Refusal // why the login ended; Granted while it is valid
}

// current returns the caller, or nil and the reason why there is no caller.
func (l *login) current() (*auth.Caller, auth.Refusal) {
	switch {
	case l.caller == nil:
		return nil, auth.NoToken
	case l.why != auth.Granted:
		return nil, l.why
	}
	return l.caller, auth.Granted
}

// transaction holds the commands that a client has queued with MULTI. EXEC plans them as one unit
// of ops on one shard, which applies all of them without other ops between them.
type transaction struct {
	open     bool
	broken   bool // one of the queued commands was refused
	queued   []queuedCommand
	caller   *auth.Caller // the caller who was allowed to queue the commands
	bytes    int          // memory of the queued commands
	reserved int          // the part of bytes reserved from the connections' memory
}

type queuedCommand struct {
	command *command
	args    [][]byte
}

// ok replies OK at once.
func (c *conn) ok() { c.out.Buf = resp.AppendOK(c.out.Buf) }
