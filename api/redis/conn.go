package redis

import (
	"net"
	"time"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
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
	once  session

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
	c.server.metrics.failed(text)
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

// session gives each later write an identity, so that a repeat of the write has no effect. Write n
// of session seq has the number seq*64 + n mod 64 in the stream
//
//	name 00 n/64 (2 bytes, big endian)
//
// A shard remembers 64 numbers of each stream, so a session of any length can be repeated, even if
// the network splits the pipeline differently. The zero session assigns no numbers.
type session struct {
	name   []byte
	stream []byte // name of the current block's stream; each block allocates a new one
	seq    uint64
	writes uint64
	// unsure is set after an unknown command. Another node's program may know the command and count
	// it as a write. Then the numbers of later writes would differ between nodes.
	unsure bool
}

// ok replies OK at once.
func (c *conn) ok() { c.out.Buf = resp.AppendOK(c.out.Buf) }
