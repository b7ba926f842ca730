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
	stale   bool // whether READONLY allows stale reads
	closing bool // close once the output is sent

	in       []byte // in[from:to] was read and not executed yet
	from, to int
	reserved int // bytes reserved from the server's large budget
	small    int // consecutive reads that needed no large buffer
	parser   resp.Parser
	until    time.Time // the current read deadline
	partial  bool      // until is the deadline for the command that in[from:to] begins with

	lookedAt time.Time // when names were last looked up

	out   output
	batch *batch // nil unless commands are being executed
	multi transaction
	once  session

	last     *command // the last command found, and the name that the client wrote
	lastName []byte
}

func newConn(s *Server, raw net.Conn) *conn {
	c := &conn{server: s, net: raw, id: s.nextID.Add(1), in: make([]byte, readBytesFirst)}
	c.parser = resp.Parser{ArgsMax: s.cfg.ArgsMax, BulkBytesMax: s.cfg.BulkBytesMax}
	c.out = output{conn: raw, server: s}
	return c
}

// commandBytesMax bounds the read buffer. A client that has not authenticated gets only a buffer
// that needs no reservation. So it cannot use up the memory of other clients.
func (c *conn) commandBytesMax() int {
	most := c.server.cfg.CommandBytesMax
	if c.unknown() {
		return min(most, readBytesFree)
	}
	return most
}

// unknown reports whether the client has to authenticate before it may do anything.
func (c *conn) unknown() bool {
	a := c.server.cfg.Auth
	if a == nil || !a.Enforces() {
		return false
	}
	_, why := c.login.current()
	return why != auth.Granted
}

// refuse replies with an error at once; nothing may be pending.
func (c *conn) refuse(text string) {
	c.server.metrics.failed(text)
	c.out.buf = resp.AppendError(c.out.buf, text)
}

// login is the identity of a connection's client. The zero login is nobody's.
type login struct {
	caller *auth.Caller
	why    auth.Refusal // why the login ended; Granted while it is valid
}

// current returns the caller, or nil and why there is none.
func (l *login) current() (*auth.Caller, auth.Refusal) {
	switch {
	case l.caller == nil:
		return nil, auth.NoToken
	case l.why != auth.Granted:
		return nil, l.why
	}
	return l.caller, auth.Granted
}

// transaction holds the commands that a client has queued with MULTI. EXEC plans them as one
// unit of ops on one shard, which applies all of them with nothing between.
type transaction struct {
	open     bool
	broken   bool // whether one of its commands was refused
	queued   []queuedCommand
	caller   *auth.Caller // the caller who was allowed to queue the commands
	bytes    int          // memory of the queued commands
	reserved int          // the part of bytes reserved from the connections' memory
}

type queuedCommand struct {
	command *command
	args    [][]byte
}

// session makes each later write count once. Write n of session seq has the number seq*64
// + n mod 64 in the stream
//
//	name 00 n/64 (2 bytes, big endian)
//
// So a repeated session of any length finds each of its writes in a window of 64, however
// the network splits the pipeline. The zero session assigns no numbers.
type session struct {
	name   []byte
	stream []byte // the producer's name of the current block; each block allocates a new one
	seq    uint64
	writes uint64
	// unsure is set after an unknown command. Another node's program may know the command and
	// number it, so the numbers of later writes could differ between nodes.
	unsure bool
}

// ok replies OK at once.
func (c *conn) ok() { c.out.buf = resp.AppendOK(c.out.buf) }
