package redis

import (
	"fmt"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
)

// unreadCommands are the commands of unread numbers: users' counts, the notices and dots that all
// users share, users' positions in these, and polls. The counts of users are rows like any other
// rows. So commands on these counts are planned like commands with keys, and share reads and writes
// with them.
func unreadCommands() []spec {
	const group = "countd"
	read, write, polls := auth.Read.On(kinds.KeyspaceUnread), auth.Write.On(kinds.KeyspaceUnread), auth.Read.On(inbox.PollReads()...)
	return []spec{
		{name: "countd.unread.get", arity: 2, traits: keyed, keys: noKeys, need: read, group: group, does: "counts that a user has not seen, by column", do: fetches(appendWholeRow, (*batch).unreadRow)},
		{name: "countd.unread.incr", arity: -4, traits: keyed | writes, keys: noKeys, need: auth.Ingest.On(kinds.KeyspaceUnread), group: group, does: "adds to the unseen counts of users", do: unreadIncr},
		{name: "countd.unread.reset", arity: -5, traits: keyed | writes, keys: noKeys, need: write, group: group, does: "subtracts the counts that a user has seen", call: unreadReset},
		{name: "countd.notice.publish", arity: -2, traits: joins | writes, keys: noKeys, need: write, group: group, does: "publishes a notice in a channel, for all users", call: countUp("channel", (*inbox.Numbers).Publish)},
		{name: "countd.notice.retract", arity: -3, traits: joins | writes, keys: noKeys, need: write, group: group, does: "withdraws a notice", call: retract},
		{name: "countd.notice.get", arity: -3, traits: joins, keys: noKeys, need: read, group: group, does: "position of a user in a channel", call: notices},
		{name: "countd.notice.read", arity: -3, traits: joins | writes, keys: noKeys, need: write, group: group, does: "marks notices of a channel as read by a user", call: readNotices},
		{name: "countd.notice.list", arity: 1, traits: joins, keys: noKeys, need: read, group: group, does: "the channels", call: listChannels},
		{name: "countd.dot.fire", arity: -2, traits: joins | writes, keys: noKeys, need: write, group: group, does: "shows a dot to all users", call: countUp("dot", (*inbox.Numbers).Fire)},
		{name: "countd.dot.set", arity: -4, traits: joins | writes, keys: noKeys, need: write, group: group, does: "sets whether new users see a dot", call: setDot},
		{name: "countd.dot.get", arity: 3, traits: joins, keys: noKeys, need: read, group: group, does: "whether a user sees a dot", call: showDot},
		{name: "countd.dot.clear", arity: -3, traits: joins | writes, keys: noKeys, need: write, group: group, does: "hides a dot from a user", call: clearDot},
		{name: "countd.dot.list", arity: 1, traits: joins, keys: noKeys, need: read, group: group, does: "the dots", call: listDots},
		{name: "countd.poll", arity: -2, traits: joins, keys: noKeys, need: polls, group: group, does: "counts, notices, dots and new posts of a user", call: poll},
		{name: "countd.mpoll", arity: -2, traits: joins, keys: noKeys, need: polls, group: group, does: "counts, notices, dots and new posts of each of several users", call: mpoll},
	}
}

// unreadRow parses a user and returns the key of its row.
func (b *batch) unreadRow(user []byte) (key, error) {
	t, err := b.unreadTable()
	if err != nil {
		return key{}, err
	}
	id, of, ok := b.idIn(t.ks.Names, user)
	if !ok {
		return key{}, resp.FieldError("user", names.Problem(t.ks.Names))
	}
	return key{table: t, id: id, late: of, column: wholeRow, set: false}, nil
}

// unreadIncr parses triples of user, column and delta, and plans one addition for each triple.
func unreadIncr(c *conn, args [][]byte) {
	b := c.batch
	var err error
	if len(args)%3 == 0 { // the two arguments after the triples may be KEY <key>
		if args, err = b.keyAtEnd(args, 4); b.failed(err) {
			return
		}
	}
	adds := args[1:]
	if len(adds)%3 != 0 {
		b.fail(wrongArity("countd.unread.incr"))
		return
	}
	keys, err := b.readKeys(adds, 3, (*batch).unreadRow)
	for i := range keys {
		if err == nil {
			keys[i].column, err = keys[i].table.field(adds[3*i+1])
		}
	}
	values := b.values
	if err == nil {
		values, err = b.readValues(adds, 3)
	}
	if !b.failed(err) {
		b.addAll(keys, values)
	}
}

// unreadReset parses COLUMNS, or SEEN with a value for each column.
func unreadReset(a *arguments) {
	b := a.b
	k, err := b.unreadRow(a.Next())
	a.Fail(err)
	cells, columns, seen := make([]engine.Cell, 0, 2*engine.ColumnsMax), false, false
	a.Options(
		resp.ListOption("columns", engine.ColumnsMax, 1, func(names [][]byte) (err error) {
			columns = true
			cells, err = k.resetCells(cells, names, 1)
			return err
		}),
		resp.ListOption("seen", engine.ColumnsMax, 2, func(pairs [][]byte) (err error) {
			seen = true
			cells, err = k.resetCells(cells, pairs, 2)
			return err
		}),
		a.keyOption())
	if columns == seen {
		a.Fail(resp.FieldError("seen", "a reset takes either COLUMNS or SEEN"))
	}
	if b.failed(a.Err) {
		return
	}
	ops, _ := inbox.ResetOps(k.id, cells, columns)
	from := len(b.cells)
	for i := range ops {
		b.wrote(k, b.op(k, ops[i].Kind, ops[i].Cells...))
	}
	b.answer(appendReset, from)
}

// resetCells parses columns, each at most once. If width is 2, the seen value follows each column.
func (k key) resetCells(cells []engine.Cell, words [][]byte, width int) ([]engine.Cell, error) {
	if len(words) == 0 {
		return nil, resp.FieldError("columns", "at least one column is needed")
	}
	given := uint64(0) // bits by column index; engine.ColumnsMax is 64
	for i := 0; i < len(words); i += width {
		column, err := k.table.field(words[i])
		if err != nil {
			return nil, err
		}
		if given&(1<<column) != 0 {
			return nil, resp.FieldError(k.table.ks.Columns[column], strictjson.GivenTwice)
		}
		given |= 1 << column
		cell := engine.Cell{Column: uint8(column)}
		if width > 1 {
			if cell.Value, err = resp.NumberOf(fmt.Sprintf("seen.%s", k.table.ks.Columns[column]), words[i+1]); err != nil {
				return nil, err
			}
		}
		cells = append(cells, cell)
	}
	return cells, nil
}

// appendWholeRow appends all columns of a row.
func appendWholeRow(dst []byte, cells []cell, resp3 bool) []byte {
	c := &cells[0]
	row, _ := c.rowOf()
	dst = resp.AppendMap(dst, len(row)-len(c.table.ks.Dropped), resp3)
	for column, count := range row {
		if name := c.table.ks.Columns[column]; name != "" {
			dst = resp.AppendInt(resp.AppendBulk(dst, name), count)
		}
	}
	return dst
}

// appendReset appends the remaining and the cleared counts of the columns of a reset.
func appendReset(dst []byte, cells []cell, resp3 bool) []byte {
	took := &cells[0]
	dst = resp.AppendBulk(resp.AppendMap(dst, 2, resp3), "counts")
	dst = resp.AppendBulk(appendWholeRow(dst, cells[1:], resp3), "cleared")
	row, _ := took.rowOf()
	op := &took.table.ops[took.row]
	dst = resp.AppendMap(dst, len(op.Cells), resp3)
	for _, cell := range op.Cells {
		dst = resp.AppendInt(resp.AppendBulk(dst, took.table.ks.Columns[cell.Column]), row[cell.Column])
	}
	return dst
}

// countUp returns a command that adds a notice or fires a dot for all users. The command replies
// with the resulting number.
func countUp(field string, do func(*inbox.Numbers, string, *shard.Write) (int64, error)) func(*arguments) {
	return func(a *arguments) {
		name := a.name(field)
		a.Options(a.keyOption())
		planWrite(a, subject{name: name}, nil, 1, func(w *shard.Write) (int64, error) { return do(a.node().unread, name, w) }, appendInt)
	}
}

func retract(a *arguments) {
	name, seq := a.name("channel"), a.Number("seq")
	a.Options(a.keyOption())
	planWrite(a, subject{name: name}, nil, 1, func(w *shard.Write) (int64, error) { return seq, a.node().unread.Retract(name, seq, w) }, appendInt)
}

func notices(a *arguments) {
	name, user := a.name("channel"), a.user()
	var behind *int64
	a.Options(resp.NumberOption("since", &behind))
	since := inbox.Stand{Known: behind != nil}
	if since.Known {
		since.Behind = *behind
	}
	planRead(a, nil, 1, func(opt *shard.ReadOptions) (inbox.Notices, error) {
		return a.node().unread.Notices(name, *user, since, opt)
	}, appendNotices)
}

func readNotices(a *arguments) {
	name, user := a.name("channel"), a.user()
	var upTo, since *int64
	a.Options(resp.NumberOption("upto", &upTo), resp.NumberOption("since", &since), a.keyOption())
	planWrite(a, subject{kind: ofUser, name: name}, user, 1, func(w *shard.Write) (inbox.Notices, error) {
		return a.node().unread.ReadNotices(name, *user, upTo, since, w)
	}, appendNotices)
}

func appendNotices(dst []byte, n inbox.Notices, resp3 bool) []byte {
	dst = resp.AppendMap(dst, 3, resp3)
	dst = resp.AppendInt(resp.AppendBulk(dst, "unread"), n.Unread)
	dst = resp.AppendBulk(dst, "last_read")
	if n.Seen {
		dst = resp.AppendInt(dst, n.LastRead)
	} else {
		dst = resp.AppendNull(dst, resp3)
	}
	return resp.AppendInt(resp.AppendBulk(dst, "latest"), n.Latest)
}

func setDot(a *arguments) {
	name, newUsers := a.name("dot"), ""
	a.Options(a.keyOption(), resp.TextOption("newusers", func(text []byte) error {
		if newUsers = string(text); newUsers != "0" && newUsers != "1" {
			return resp.FieldError("newusers", "neither 0 nor 1")
		}
		return nil
	}))
	if newUsers == "" {
		a.Fail(resp.FieldError("newusers", "missing"))
	}
	planWrite(a, subject{name: name}, nil, 1, func(w *shard.Write) (int64, error) { return a.node().unread.SetDot(name, newUsers == "1", w) }, appendInt)
}

func showDot(a *arguments) {
	name, user := a.name("dot"), a.user()
	planRead(a, nil, 1, func(opt *shard.ReadOptions) (bool, error) { return a.node().unread.Shows(name, *user, opt) }, appendTruth)
}

func clearDot(a *arguments) {
	name, user := a.name("dot"), a.user()
	a.Options(a.keyOption())
	planWrite(a, subject{kind: ofUser, name: name}, user, 1, func(w *shard.Write) (bool, error) { return a.node().unread.ClearDot(name, *user, w) }, appendTruth)
}

func listChannels(a *arguments) {
	planRead(a, nil, 1, func(opt *shard.ReadOptions) ([]inbox.Channel, error) { return a.node().unread.Channels(opt) }, func(dst []byte, channels []inbox.Channel, resp3 bool) []byte {
		dst = resp.AppendMap(dst, len(channels), resp3)
		for _, c := range channels {
			dst = resp.AppendMap(resp.AppendBulk(dst, c.Name), 2, resp3)
			dst = resp.AppendInt(resp.AppendBulk(dst, "latest"), c.Latest)
			dst = resp.AppendInt(resp.AppendBulk(dst, "retracted"), c.Retracted)
		}
		return dst
	})
}

func listDots(a *arguments) {
	planRead(a, nil, 1, func(opt *shard.ReadOptions) ([]inbox.Dot, error) { return a.node().unread.Dots(opt) }, func(dst []byte, dots []inbox.Dot, resp3 bool) []byte {
		dst = resp.AppendMap(dst, len(dots), resp3)
		for _, d := range dots {
			dst = resp.AppendMap(resp.AppendBulk(dst, d.Name), 2, resp3)
			dst = resp.AppendInt(resp.AppendBulk(dst, "fired"), d.Fired)
			dst = resp.AppendTruth(resp.AppendBulk(dst, "new_users"), d.NewUsers)
		}
		return dst
	})
}
