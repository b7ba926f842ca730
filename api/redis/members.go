package redis

import (
	"cmp"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
)

// groupSet is the group of commands on sets of members.
const groupSet = "set"

func memberCommands() []spec {
	const group = groupSet
	read, add := auth.Read.InBody(), auth.Ingest.InBody()
	return []spec{
		{name: "sadd", arity: -3, traits: keyed | writes, keys: oneKey, need: add, group: group, does: "adds members and counts those that were absent", do: changeSet(engine.OpJoin)},
		{name: "srem", arity: -3, traits: keyed | writes, keys: oneKey, need: add, group: group, does: "removes members and counts down those that were there", do: changeSet(engine.OpLeave)},
		{name: "scard", arity: 2, traits: keyed, keys: oneKey, need: read, group: group, does: "the count, which has also what was added without members", do: fetches(appendCount, (*batch).set)},
		{name: "sismember", arity: 3, traits: readsSets, keys: oneKey, need: read, group: group, does: "whether a member is in the set", call: checkSet(false)},
		{name: "smismember", arity: -3, traits: readsSets, keys: oneKey, need: read, group: group, does: "whether each member is in the set", call: checkSet(true)},
		{name: "sscan", arity: -3, traits: readsSets, keys: oneKey, need: read, group: group, does: "members, newest first", call: sscan},
	}
}

// changeSet returns a command that adds or removes members of a set. It replies with the number of
// members that it added or removed. Members are numbers, so adding any other text is an error, and
// removing it changes nothing.
func changeSet(kind engine.OpKind) func(*conn, [][]byte) {
	return func(c *conn, args [][]byte) {
		b := c.batch
		k, err := b.set(args[1])
		if err == nil && len(args)-2 > rowsMax {
			err = errTooManyKeys
		}
		space, spaceErr := b.conn.server.node().namesOf(kinds.KeyspaceUsers)
		err = cmp.Or(err, spaceErr)
		b.values = b.values[:0]
		var waiting map[int]*names.Text // by index in b.values
		for _, text := range args[2:] {
			member, of, ok := b.idIn(space, text)
			if of != nil {
				if waiting == nil {
					waiting = map[int]*names.Text{}
				}
				waiting[len(b.values)] = of
			}
			switch {
			case ok:
				b.values = append(b.values, int64(member))
			case err == nil && kind == engine.OpJoin && space != "":
				err = resp.FieldError("member", names.Problem(space))
			case err == nil && kind == engine.OpJoin:
				err = resp.ErrNotInteger
			}
		}
		if b.failed(err) {
			return
		}
		from := len(b.cells)
		for i, member := range b.values {
			op := b.op(k, kind, k.cellOf(member))
			b.wrote(k, op)
			if of := waiting[i]; of != nil {
				t := k.table
				b.await(of, b.useOf(&t.ops[op]), func(number uint64, err error) {
					t.ops[op].Cells[0].Value = int64(number)
					t.lose(int(op), err)
				})
			}
		}
		if len(b.values) == 0 {
			b.known(func(dst []byte) []byte { return resp.AppendInt(dst, 0) })
			return
		}
		b.answer(appendMembers, from)
	}
}

// checkSet returns a command that reads whether one or several members are in a set. The reply for
// a text that is not a number is 0.
func checkSet(several bool) func(*arguments) {
	return func(a *arguments) {
		k, err := a.b.set(a.Words[1])
		row := a.rowOf(k)
		space, spaceErr := a.node().namesOf(kinds.KeyspaceUsers)
		if a.Fail(cmp.Or(err, spaceErr)); len(a.Words)-2 > rowsMax {
			a.Fail(errTooManyKeys)
		}
		texts := a.Words[2:]
		asked, at := make([]uint64, 0, len(texts)), make([]int, 0, len(texts)) // members to read, and their places in the reply
		for i, text := range texts {
			if member, of, ok := a.b.idIn(space, text); ok {
				asked, at = append(asked, member), append(at, i)
				a.wait(member, of, &asked[len(asked)-1])
			}
		}
		planRead(a, k.table, len(asked), func(opt *shard.ReadOptions) ([]bool, error) {
			in := make([]bool, len(texts))
			if len(asked) == 0 {
				return in, nil
			}
			errs := make([]error, len(asked))
			a.b.conn.server.helpers.Concurrently(len(asked), func(i int) {
				q := counters.ContainsQuery{Column: uint8(k.column), Member: asked[i], In: in[at[i] : at[i]+1]}
				errs[i] = a.node().Read(k.table.ks, &q, []uint64{*row}, opt)
			})
			return in, cmp.Or(errs...)
		}, func(dst []byte, in []bool, _ bool) []byte {
			if several {
				dst = resp.AppendArray(dst, len(in))
			}
			for _, is := range in {
				dst = resp.AppendTruth(dst, is)
			}
			return dst
		})
	}
}

// stampMax is the highest stamp, because a stamp has six bytes.
const stampMax = 1<<48 - 1

// setPage is a page of SSCAN.
type setPage struct {
	found []members.Entry
	next  members.Stamp // the cursor of the next page: the stamp of the last entry; 0 if there are no more
	ids   names.Shown
}

// sscan parses a cursor, MATCH and COUNT. A cursor is the stamp of the page's last entry, because
// Redis clients accept no cursor of more than 64 bits. So a page ends only where the stamp changes.
func sscan(a *arguments) {
	c := a.b.conn
	k, err := a.b.set(a.Next())
	row := a.rowOf(k)
	space, spaceErr := a.node().namesOf(kinds.KeyspaceUsers)
	a.Fail(cmp.Or(err, spaceErr))
	cursor, ok := strictjson.ParseUint64(a.Next())
	if !ok || cursor > stampMax {
		a.Fail(resp.ErrInvalidCursor)
	}
	count, match := scanCountDefault, resp.Pattern{}
	a.Options(resp.CountOption(&count, rowsMax), resp.MatchOption(&match))
	page := members.Page{Limit: count, After: members.Entry{At: members.Stamp(cursor), ID: 1<<64 - 1}, Continues: cursor > 0}
	planRead(a, k.table, count, func(opt *shard.ReadOptions) (setPage, error) {
		p, err := wholeStamps(page, func(page members.Page) (members.List, error) {
			q := counters.MembersQuery{Column: uint8(k.column), Page: page}
			err := c.server.node().Read(k.table.ks, &q, []uint64{*row}, opt)
			return q.List, err
		})
		if err != nil {
			return p, err
		}
		p.ids, err = c.server.node().names.Show(space, names.IDs(p.found, func(e members.Entry) uint64 { return e.ID }), opt)
		return p, err
	}, func(dst []byte, p setPage, _ bool) []byte {
		var ids [][]byte
		for i, e := range p.found {
			if id := p.ids.AppendTo(nil, i, e.ID); match.Matches(id) {
				ids = append(ids, id)
			}
		}
		dst = resp.AppendBulkUint(resp.AppendArray(dst, 2), uint64(p.next))
		dst = resp.AppendArray(dst, len(ids))
		for _, id := range ids {
			dst = resp.AppendBulk(dst, id)
		}
		return dst
	})
}

// wholeStamps reads at least a page of entries. If more entries have the stamp of the last one, it
// reads these too.
func wholeStamps(page members.Page, read func(members.Page) (members.List, error)) (p setPage, err error) {
	for {
		list, err := read(page)
		if err != nil {
			return setPage{}, err
		}
		p.found = append(p.found, list.Entries...)
		n := len(p.found)
		if !list.More || n == 0 {
			return p, nil
		}
		// The next entry shows whether more members have the same stamp.
		last := p.found[n-1]
		peek, err := read(members.Page{Limit: 1, After: last, Continues: true})
		switch {
		case err != nil:
			return setPage{}, err
		case len(peek.Entries) == 0:
			return p, nil
		case peek.Entries[0].At != last.At:
			p.next = last.At
			return p, nil
		}
		page.After, page.Continues = last, true
	}
}

// appendMembers appends the number of ops that changed a set of members.
func appendMembers(dst []byte, cells []cell, _ bool) []byte {
	changed := int64(0)
	for i := range cells {
		if c := &cells[i]; c.table.joined != nil && c.table.joined[c.row] {
			changed++
		}
	}
	return resp.AppendInt(dst, changed)
}
