package redis

import (
	"strings"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
)

// connectionCommands are the commands about the connection and the node.
func connectionCommands() []spec {
	const group, server = "connection", "server"
	public, known := auth.Public.Need(), auth.Known.Need()
	return []spec{
		{name: "ping", arity: -1, traits: plain, keys: noKeys, need: known, group: group, does: "PONG, or its argument", do: ping},
		{name: "echo", arity: 2, traits: plain, keys: noKeys, need: known, group: group, does: "its argument", do: echo},
		{name: "hello", arity: -1, traits: unplanned, keys: noKeys, need: public, group: group, does: "chooses RESP2 or RESP3", do: hello},
		{name: "auth", arity: -2, traits: unplanned, keys: noKeys, need: public, group: group, does: "logs in with a token; without --auth, accepts the default user with any password", do: authenticate},
		{name: "select", arity: 2, traits: unplanned, keys: noKeys, need: known, group: group, does: "there is one database, 0", do: selectDB},
		{name: "client", arity: -2, traits: unplanned, keys: noKeys, need: known, group: group, does: "ID, GETNAME, SETNAME, SETINFO", do: clientCommand},
		{name: "readonly", arity: 1, traits: unplanned, keys: noKeys, need: known, group: group, does: "lets this connection read stale counts", do: readonly},
		{name: "readwrite", arity: 1, traits: unplanned, keys: noKeys, need: known, group: group, does: "ends READONLY", do: readwrite},
		{name: "quit", arity: -1, traits: unplanned | atOnce, keys: noKeys, need: public, group: group, does: "ends the connection", do: quit},
		{name: "multi", arity: 1, traits: atOnce, keys: noKeys, need: known, group: "transactions", does: "begins a transaction", do: multi},
		{name: "exec", arity: 1, traits: atOnce | writes, keys: noKeys, need: known, group: "transactions", does: "executes a transaction on one shard", do: exec},
		{name: "discard", arity: 1, traits: atOnce, keys: noKeys, need: known, group: "transactions", does: "discards a transaction", do: discard},
		{name: "countd.session", arity: -2, traits: unplanned, keys: noKeys, need: known, group: "countd", does: "makes each later write count once, also when repeated", do: countdSession},
		{name: "command", arity: -1, traits: unplanned, keys: noKeys, need: known, group: server, does: "the commands; COUNT, DOCS, INFO", do: commands},
		{name: "config", arity: -2, traits: unplanned, keys: noKeys, need: known, group: server, does: "GET: the settings that tools read", do: configCommand},
		{name: "info", arity: -1, traits: unplanned, keys: noKeys, need: known, group: server, does: "information about this node, in the format of Redis", do: infoCommand},
		{name: "wait", arity: 3, traits: unplanned, keys: noKeys, need: known, group: "generic", does: "least number of other nodes that have this connection's writes", do: wait},
	}
}

func ping(c *conn, args [][]byte) {
	switch len(args) {
	case 1:
		c.batch.known(func(dst []byte) []byte { return resp.AppendWord(dst, "PONG") })
	case 2:
		echo(c, args)
	default:
		c.batch.fail(wrongArity("ping"))
	}
}

func echo(c *conn, args [][]byte) {
	c.batch.known(func(dst []byte) []byte { return resp.AppendBulk(dst, args[1]) })
}

func quit(c *conn, _ [][]byte) {
	c.ok()
	c.closing = true
}

func readonly(c *conn, _ [][]byte)  { c.stale = true; c.ok() }
func readwrite(c *conn, _ [][]byte) { c.stale = false; c.ok() }

func selectDB(c *conn, args [][]byte) {
	n, ok := resp.ParseInt(args[1])
	switch {
	case !ok:
		c.refuse(string(resp.ErrNotInteger))
	case n != 0:
		c.refuse("ERR DB index is out of range")
	default:
		c.ok()
	}
}

// authenticate logs the client in.
func authenticate(c *conn, args [][]byte) {
	fault := ""
	switch {
	case len(args) > 3:
		fault = string(resp.ErrSyntax)
	case len(args) == 3:
		fault = c.logIn(args[1], args[2])
	case c.server.cfg.Auth != nil:
		fault = c.logIn(nil, args[1])
	default:
		fault = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"
	}
	if fault != "" {
		c.refuse(fault)
		return
	}
	c.ok()
}

const errWrongPass = "WRONGPASS invalid username-password pair or user is disabled."

// hello executes HELLO: it sets the protocol version and replies with the server's properties.
func hello(c *conn, args [][]byte) {
	o := resp.Hello{Name: c.name, RESP3: c.resp3}
	fault := o.Parse(args)
	if fault == "" && o.Token != nil {
		fault = c.logIn(o.User, o.Token)
	}
	if fault == "" {
		fault = c.needLogin()
	}
	if fault != "" {
		c.refuse(fault)
		return
	}
	c.name, c.resp3 = o.Name, o.RESP3
	c.out.Buf = c.appendHello(c.out.Buf)
}

// spokenVersion is the Redis version that the server reports to clients.
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

func clientCommand(c *conn, args [][]byte) {
	sub := strings.ToLower(string(args[1]))
	arity := map[string]int{"id": 2, "getname": 2, "setname": 3, "setinfo": 4}[sub]
	switch {
	case arity == 0:
		c.refuse(unknownSubcommand("client", args[1]))
	case len(args) != arity:
		c.refuse(wrongArity("client|" + sub))
	case sub == "id":
		c.out.Buf = resp.AppendInt(c.out.Buf, int64(c.id))
	case sub == "getname" && c.name == "":
		c.out.Buf = resp.AppendNull(c.out.Buf, c.resp3)
	case sub == "getname":
		c.out.Buf = resp.AppendBulk(c.out.Buf, c.name)
	case !resp.ValidName(args[len(args)-1]):
		c.refuse(resp.ErrBadName)
	case sub == "setname":
		c.name = string(args[2])
		c.ok()
	default: // CLIENT SETINFO sends the name and version of a client library, which the server ignores
		c.ok()
	}
}
