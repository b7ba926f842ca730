package redis

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
)

func connectionCommands() []spec {
	const group = "connection"
	public, known := auth.Public.Need(), auth.Known.Need()
	return []spec{
		{"ping", -1, plain, noKeys, known, group, "PONG, or its argument", (*conn).ping},
		{"echo", 2, plain, noKeys, known, group, "its argument", (*conn).echo},
		{"hello", -1, unplanned, noKeys, public, group, "chooses RESP2 or RESP3", (*conn).hello},
		{"auth", -2, unplanned, noKeys, public, group, "logs in with a token; without --auth, accepts the default user with any password", (*conn).auth},
		{"select", 2, unplanned, noKeys, known, group, "there is one database, 0", (*conn).selectDB},
		{"client", -2, unplanned, noKeys, known, group, "ID, GETNAME, SETNAME, SETINFO", (*conn).client},
		{"readonly", 1, unplanned, noKeys, known, group, "lets this connection read stale counts", (*conn).readonly},
		{"readwrite", 1, unplanned, noKeys, known, group, "ends READONLY", (*conn).readwrite},
		{"quit", -1, unplanned | atOnce, noKeys, public, group, "ends the connection", (*conn).quit},
		{"multi", 1, atOnce, noKeys, known, "transactions", "begins a transaction", (*conn).openMulti},
		{"exec", 1, atOnce | writes, noKeys, known, "transactions", "executes a transaction on one shard", (*conn).exec},
		{"discard", 1, atOnce, noKeys, known, "transactions", "discards a transaction", (*conn).discard},
	}
}

func (c *conn) ping(args [][]byte) {
	switch len(args) {
	case 1:
		c.batch.known(func(dst []byte) []byte { return resp.AppendWord(dst, "PONG") })
	case 2:
		c.echo(args)
	default:
		c.batch.fail(wrongArity("ping"))
	}
}

func (c *conn) echo(args [][]byte) {
	c.batch.known(func(dst []byte) []byte { return resp.AppendBulk(dst, args[1]) })
}

func (c *conn) quit([][]byte) {
	c.ok()
	c.closing = true
}

func (c *conn) readonly([][]byte)  { c.stale = true; c.ok() }
func (c *conn) readwrite([][]byte) { c.stale = false; c.ok() }

func (c *conn) selectDB(args [][]byte) {
	n, ok := resp.ParseInt(args[1])
	switch {
	case !ok:
		c.refuse(string(errNotInteger))
	case n != 0:
		c.refuse("ERR DB index is out of range")
	default:
		c.ok()
	}
}

// auth logs the client in. Without --auth, the server behaves like a Redis server whose default
// user has no password.
func (c *conn) auth(args [][]byte) {
	switch {
	case c.server.cfg.Auth != nil:
		c.authToken(args)
	case len(args) > 3:
		c.refuse(string(errSyntax))
	case len(args) == 2:
		c.refuse("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?")
	case string(args[1]) != defaultUser:
		c.refuse(errWrongPass)
	default:
		c.ok()
	}
}

const (
	defaultUser  = auth.DefaultName
	errWrongPass = "WRONGPASS invalid username-password pair or user is disabled."
)

// hello sets the protocol version and replies with the server's properties.
func (c *conn) hello(args [][]byte) {
	resp3 := c.resp3
	if len(args) > 1 {
		version, ok := resp.ParseInt(args[1])
		if !ok {
			c.refuse("ERR Protocol version is not an integer or out of range")
			return
		}
		if version != 2 && version != 3 {
			c.refuse("NOPROTO unsupported protocol version")
			return
		}
		resp3 = version == 3
	}
	o, fault := c.parseHello(args)
	if fault == "" && o.token != nil {
		fault = c.helloLogIn(o.user, o.token)
	}
	if fault == "" {
		fault = c.needLogin()
	}
	if fault != "" {
		c.refuse(fault)
		return
	}
	c.name, c.resp3 = o.name, resp3
	c.out.buf = c.appendHello(c.out.buf)
}

// helloOptions are the arguments of HELLO after the version.
type helloOptions struct {
	name        string
	user, token []byte // nil without AUTH
}

// parseHello parses the options of HELLO.
func (c *conn) parseHello(args [][]byte) (o helloOptions, fault string) {
	o.name = c.name
	for i := 2; i < len(args); {
		switch option := strings.ToLower(string(args[i])); {
		case option == "auth" && i+2 < len(args):
			o.user, o.token = args[i+1], args[i+2]
			i += 3
		case option == "setname" && i+1 < len(args):
			if !validName(args[i+1]) {
				return o, errBadName
			}
			o.name = string(args[i+1])
			i += 2
		default:
			return o, fmt.Sprintf("ERR Syntax error in HELLO option '%s'", shown(args[i]))
		}
	}
	return o, ""
}

// helloLogIn logs the client in by HELLO, and returns why it could not.
func (c *conn) helloLogIn(user, token []byte) (fault string) {
	switch {
	case c.server.cfg.Auth != nil:
		return c.logIn(user, token)
	case string(user) != defaultUser:
		return errWrongPass
	}
	return ""
}

// spokenVersion is the Redis version whose commands this server implements, for clients
// that check it.
const spokenVersion = "7.0.15"

func (c *conn) appendHello(dst []byte) []byte {
	proto := int64(2)
	if c.resp3 {
		proto = 3
	}
	dst = resp.AppendMap(dst, 7, c.resp3)
	for _, pair := range [][2]string{{"server", "redis"}, {"version", spokenVersion}} {
		dst = resp.AppendBulk(resp.AppendBulk(dst, pair[0]), pair[1])
	}
	dst = resp.AppendInt(resp.AppendBulk(dst, "proto"), proto)
	dst = resp.AppendInt(resp.AppendBulk(dst, "id"), int64(c.id))
	dst = resp.AppendBulk(resp.AppendBulk(dst, "mode"), "standalone")
	dst = resp.AppendBulk(resp.AppendBulk(dst, "role"), "master")
	return resp.AppendArray(resp.AppendBulk(dst, "modules"), 0)
}

// clientNameBytesMax bounds a connection's name, which the client sets.
const clientNameBytesMax = 256

const errBadName = "ERR Client names cannot contain spaces, newlines or special characters."

func validName(name []byte) bool {
	for _, b := range name {
		if b < '!' || b > '~' {
			return false
		}
	}
	return len(name) <= clientNameBytesMax
}

func (c *conn) client(args [][]byte) {
	sub := strings.ToLower(string(args[1]))
	arity := map[string]int{"id": 2, "getname": 2, "setname": 3, "setinfo": 4}[sub]
	switch {
	case arity == 0:
		c.refuse(unknownSubcommand("client", args[1]))
	case len(args) != arity:
		c.refuse(wrongArity("client|" + sub))
	case sub == "id":
		c.out.buf = resp.AppendInt(c.out.buf, int64(c.id))
	case sub == "getname" && c.name == "":
		c.out.buf = resp.AppendNull(c.out.buf, c.resp3)
	case sub == "getname":
		c.out.buf = resp.AppendBulk(c.out.buf, c.name)
	case !validName(args[len(args)-1]):
		c.refuse(errBadName)
	case sub == "setname":
		c.name = string(args[2])
		c.ok()
	default: // setinfo: the name and version of a client library, which the server ignores
		c.ok()
	}
}

func formatUint(n uint64) string { return strconv.FormatUint(n, 10) }
