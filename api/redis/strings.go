package redis

import (
	"bytes"
	"math"
	"slices"
	"strings"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
)

func stringCommands() []spec {
	const group = "string"
	read, add, write := auth.Read.InBody(), auth.Ingest.InBody(), auth.Write.InBody()
	return []spec{
		{"get", 2, keyed, oneKey, read, group, "the count, null for 0", fetches(replyString, (*batch).count)},
		{"mget", -2, keyed, manyKeys, read, group, "the counts of keys, null for 0", fetches(replyArray, (*batch).count)},
		{"set", -3, keyed | writes, oneKey, write, group, "sets the count", (*conn).set},
		{"mset", -3, keyed | writes, pairs, write, group, "sets counts, atomically for each shard", (*conn).mset},
		{"getset", 3, keyed | writes, oneKey, write, group, "sets the count and returns the old one", func(c *conn, args [][]byte) { c.batch.replace(args[1], args[2], true) }},
		{"getdel", 2, keyed | writes, oneKey, write, group, "sets the count to 0 and returns the old one", func(c *conn, args [][]byte) { c.batch.replace(args[1], []byte("0"), true) }},
		{"incr", 2, keyed | writes, oneKey, add, group, "adds 1", func(c *conn, args [][]byte) { c.batch.add(args[1], 1) }},
		{"decr", 2, keyed | writes, oneKey, add, group, "takes 1 away", func(c *conn, args [][]byte) { c.batch.add(args[1], -1) }},
		{"incrby", 3, keyed | writes, oneKey, add, group, "adds a number", (*conn).incrby},
		{"decrby", 3, keyed | writes, oneKey, add, group, "subtracts a number", (*conn).decrby},
	}
}

// fetches returns a command that reads the targets of its keys.
func fetches(kind replyKind, read func(*batch, []byte) (key, error)) func(*conn, [][]byte) {
	return func(c *conn, args [][]byte) { c.batch.fetchKeys(kind, args[1:], read) }
}

// fetchKeys plans reads of the targets of keys, and their reply.
func (b *batch) fetchKeys(kind replyKind, texts [][]byte, read func(*batch, []byte) (key, error)) {
	from := len(b.cells)
	if len(texts) == 1 { // most commands have one key, which needs no list
		k, err := read(b, texts[0])
		if b.failed(err) {
			return
		}
		b.fetch(k)
		b.answer(kind, from)
		return
	}
	keys, err := b.readKeys(texts, 1, read)
	if b.failed(err) {
		return
	}
	for _, k := range keys {
		b.fetch(k)
	}
	b.answer(kind, from)
}

// cellOf returns the cell of an op on the key's count.
func (k key) cellOf(value int64) engine.Cell {
	return engine.Cell{Column: uint8(k.column), Value: value}
}

// add plans INCR, DECR and similar commands.
func (b *batch) add(text []byte, delta int64) {
	k, err := b.count(text)
	if b.failed(err) {
		return
	}
	from := len(b.cells)
	b.wrote(k, b.op(k.table, k.id, engine.OpAdd, k.cellOf(delta)))
	b.answer(replyCount, from)
}

func (c *conn) incrby(args [][]byte) {
	delta, ok := resp.ParseInt(args[2])
	if !ok {
		c.batch.failed(errNotInteger)
		return
	}
	c.batch.add(args[1], delta)
}

func (c *conn) decrby(args [][]byte) {
	delta, ok := resp.ParseInt(args[2])
	switch {
	case !ok:
		c.batch.failed(errNotInteger)
	case delta == math.MinInt64:
		c.batch.fail("ERR decrement would overflow")
	default:
		c.batch.add(args[1], -delta)
	}
}

const errNoExpiry = "ERR syntax error: counts do not expire, so SET takes no EX, PX, EXAT, PXAT or KEEPTTL"

// expires reports whether options of SET are about expiry.
func expires(options [][]byte) bool {
	return slices.ContainsFunc(options, func(option []byte) bool {
		switch strings.ToLower(string(option)) {
		case "ex", "px", "exat", "pxat", "keepttl":
			return true
		}
		return false
	})
}

// set plans SET. GET is the only option that makes sense for a counter.
func (c *conn) set(args [][]byte) {
	b := c.batch
	get := len(args) == 4 && bytes.EqualFold(args[3], []byte("get"))
	if len(args) > 3 && !get {
		if expires(args[3:]) {
			b.fail(errNoExpiry)
			return
		}
		b.failed(errSyntax)
		return
	}
	b.replace(args[1], args[2], get)
}

// replace plans SET and similar commands.
func (b *batch) replace(text, value []byte, answerOld bool) {
	k, err := b.count(text)
	if b.failed(err) {
		return
	}
	n, ok := resp.ParseInt(value)
	if !ok {
		b.failed(errNotInteger)
		return
	}
	from, kind := len(b.cells), replyOK
	if answerOld {
		b.wrote(k, b.before(k.table, k.id))
		kind = replyString
	}
	op := b.op(k.table, k.id, engine.OpSet, k.cellOf(n))
	if !answerOld {
		b.wrote(k, op)
	}
	b.answer(kind, from)
}

func (c *conn) mset(args [][]byte) {
	b := c.batch
	if len(args)%2 == 0 {
		b.fail(wrongArity("mset"))
		return
	}
	keys, err := b.readKeys(args[1:], 2, (*batch).count)
	if b.failed(err) {
		return
	}
	values, err := b.readValues(args[1:], 2)
	if b.failed(err) {
		return
	}
	from := len(b.cells)
	for i, k := range keys {
		b.wrote(k, b.op(k.table, k.id, engine.OpSet, k.cellOf(values[i])))
	}
	b.answer(replyOK, from)
}
