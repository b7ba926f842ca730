package redis

import (
	"bytes"
	"strconv"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/shard"
)

// groupSet is the group of commands on sets of members.
const groupSet = "set"

func setCommands() []spec {
	const group = groupSet
	return []spec{
		{"sadd", -3, keyed | writes, oneKey, auth.Ingest.InBody(), group, "adds members and counts those that were absent", (*conn).sadd},
		{"srem", -3, keyed | writes, oneKey, auth.Ingest.InBody(), group, "removes members and counts down those that were there", (*conn).srem},
		{"scard", 2, keyed, oneKey, auth.Read.InBody(), group, "the count, which has also what was added without members", (*conn).scard},
		{"sismember", 3, looksIn, oneKey, auth.Read.InBody(), group, "whether a member is in the set", (*conn).sismember},
		{"smismember", -3, looksIn, oneKey, auth.Read.InBody(), group, "whether each member is in the set", (*conn).smismember},
		{"sscan", -3, looksIn, oneKey, auth.Read.InBody(), group, "members, newest first", (*conn).sscan},
	}
}

func (c *conn) sadd(args [][]byte) { c.batch.changeSet(args, engine.OpJoin) }
func (c *conn) srem(args [][]byte) { c.batch.changeSet(args, engine.OpLeave) }

// changeSet plans ops of members, and a reply with how many changed the set. A text that is
// no number is never a member, so nothing removes it.
func (b *batch) changeSet(args [][]byte, kind engine.OpKind) {
	k, err := b.set(args[1])
	if b.failed(err) {
		return
	}
	if len(args)-2 > rowsMax {
		b.failed(errTooManyKeys)
		return
	}
	b.values = b.values[:0]
	for _, text := range args[2:] {
		member, ok := parseID(text)
		if !ok && kind == engine.OpJoin {
			b.fail(errNotInteger)
			return
		}
		if ok {
			b.values = append(b.values, int64(member))
		}
	}
	from := len(b.cells)
	for _, member := range b.values {
		b.wrote(k, b.op(k.table, k.id, kind, k.cellOf(member)))
	}
	if len(b.values) == 0 {
		b.known(func(dst []byte) []byte { return resp.AppendInt(dst, 0) })
		return
	}
	b.answer(replyMembers, from)
}

func (c *conn) scard(args [][]byte) {
	b := c.batch
	k, err := b.set(args[1])
	if b.failed(err) {
		return
	}
	from := len(b.cells)
	b.look(k)
	b.answer(replyCount, from)
}

func (c *conn) sismember(args [][]byte) {
	c.batch.checkSet(args, func(dst []byte, in []bool) []byte { return resp.AppendTruth(dst, in[0]) })
}

func (c *conn) smismember(args [][]byte) {
	c.batch.checkSet(args, func(dst []byte, in []bool) []byte {
		dst = resp.AppendArray(dst, len(in))
		for _, is := range in {
			dst = resp.AppendTruth(dst, is)
		}
		return dst
	})
}

// checkSet plans a read of whether members are in a set. A text that is no number is not.
func (b *batch) checkSet(args [][]byte, reply func(dst []byte, in []bool) []byte) {
	k, err := b.set(args[1])
	if b.failed(err) {
		return
	}
	if len(args)-2 > rowsMax {
		b.failed(errTooManyKeys)
		return
	}
	asked, in := make([]uint64, 0, len(args)-2), make([]bool, len(args)-2)
	at := make([]int, 0, len(args)-2) // of each number that is asked for, in the reply
	for i, text := range args[2:] {
		if member, ok := parseID(text); ok {
			asked, at = append(asked, member), append(at, i)
		}
	}
	server, ks, id, column := b.conn.server, k.table.ks, []uint64{k.id}, k.column
	b.read(len(asked), call{
		of: k.table,
		read: func(opt *shard.ReadOptions) error {
			if len(asked) == 0 {
				return nil
			}
			errs := make([]error, len(asked))
			server.concurrently(len(asked), func(i int) {
				errs[i] = server.node().Members().Check(ks, column, asked[i], id, opt, in[at[i]:at[i]+1])
			})
			for _, err := range errs {
				if err != nil {
					return err
				}
			}
			return nil
		},
		reply: func(dst []byte, _ bool) []byte { return reply(dst, in) },
	})
}

// setScan holds the arguments of an SSCAN.
type setScan struct {
	after   members.Entry // the last entry of the page before
	goesOn  bool          // there is one
	count   int
	match   string
	matches bool // there is a pattern
}

// stampMax is more than any stamp: a stamp has six bytes.
const stampMax = 1<<48 - 1

// parseSetScan reads the arguments of SSCAN. A cursor is the stamp of the last entry of the
// page, as Redis' clients take no cursor of more than 64 bits; so a page ends only where the
// stamp changes.
func parseSetScan(args [][]byte) (q setScan, fault string) {
	q.count = scanCountDefault
	cursor, ok := resp.ParseUint(args[2])
	if !ok || cursor > stampMax {
		return q, "ERR invalid cursor"
	}
	q.after, q.goesOn = members.Entry{At: members.Stamp(cursor), ID: 1<<64 - 1}, cursor > 0
	for i := 3; i < len(args); i += 2 {
		if i+1 == len(args) {
			return q, errSyntax
		}
		switch value := args[i+1]; {
		case bytes.EqualFold(args[i], []byte("match")):
			q.match, q.matches = string(value), true
		case bytes.EqualFold(args[i], []byte("count")):
			n, ok := resp.ParseInt(value)
			if !ok {
				return q, errNotInteger
			}
			if n < 1 {
				return q, errSyntax
			}
			q.count = int(min(n, rowsMax))
		default:
			return q, errSyntax
		}
	}
	return q, ""
}

func (c *conn) sscan(args [][]byte) {
	b := c.batch
	k, err := b.set(args[1])
	if b.failed(err) {
		return
	}
	q, fault := parseSetScan(args)
	if fault != "" {
		b.fail(fault)
		return
	}
	server, ks := b.conn.server, k.table.ks
	var found []members.Entry
	var next members.Stamp
	b.read(q.count, call{
		of: k.table,
		read: func(opt *shard.ReadOptions) (err error) {
			page := members.Page{Limit: q.count, After: q.after, Continues: q.goesOn}
			found, next, err = wholeStamps(page, func(page members.Page) (members.List, error) {
				return server.node().Members().List(ks, k.column, k.id, page, opt)
			})
			return err
		},
		reply: func(dst []byte, _ bool) []byte { return appendSetPage(dst, &q, found, next) },
	})
}

// wholeStamps reads at least a page of entries, up to where the stamp changes. next is the
// stamp of the last one, or 0 if there are no more.
func wholeStamps(page members.Page, read func(members.Page) (members.List, error)) (found []members.Entry, next members.Stamp, err error) {
	for {
		list, err := read(page)
		if err != nil {
			return nil, 0, err
		}
		found = append(found, list.Entries...)
		n := len(found)
		if !list.More || n == 0 {
			return found, 0, nil
		}
		// The next entry shows whether more members have the same stamp.
		last := found[n-1]
		peek, err := read(members.Page{Limit: 1, After: last, Continues: true})
		if err != nil {
			return nil, 0, err
		}
		switch {
		case len(peek.Entries) == 0:
			return found, 0, nil
		case peek.Entries[0].At != last.At:
			return found, last.At, nil
		}
		page.After, page.Continues = last, true
	}
}

// appendSetPage appends the reply of SSCAN.
func appendSetPage(dst []byte, q *setScan, found []members.Entry, next members.Stamp) []byte {
	var digits [20]byte
	n, matched := 0, make([]bool, len(found))
	for i, e := range found {
		if matched[i] = !q.matches || matchGlob(q.match, strconv.AppendUint(digits[:0], e.ID, 10)); matched[i] {
			n++
		}
	}
	dst = resp.AppendBulk(resp.AppendArray(dst, 2), formatUint(uint64(next)))
	dst = resp.AppendArray(dst, n)
	for i, e := range found {
		if matched[i] {
			dst = resp.AppendBulk(dst, strconv.AppendUint(digits[:0], e.ID, 10))
		}
	}
	return dst
}
