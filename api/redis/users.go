package redis

import (
	"fmt"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

// userCommands returns the commands about the counts of users. These counts are rows like others.
// So the commands are planned, and share reads and writes with commands that have keys.
func userCommands() []spec {
	const group = "countd"
	return []spec{
		{"countd.unread.get", 2, keyed, noKeys, auth.Read.On(shard.KeyspaceUnread), group, "counts that a user has not seen, by column", fetches(replyRow, (*batch).unreadRow)},
		{"countd.unread.incr", -4, keyed | writes, noKeys, auth.Ingest.On(shard.KeyspaceUnread), group, "adds to the unseen counts of users", unreadIncr},
		{"countd.unread.reset", -5, keyed | writes, noKeys, auth.Write.On(shard.KeyspaceUnread), group, "subtracts the counts that a user has seen", unreadReset},
	}
}

// unreadTable returns the table of the users' counts.
func (b *batch) unreadTable() (*table, error) {
	for _, t := range b.tables {
		if t.ks.Kind == shard.KindUnread {
			return t, nil
		}
	}
	if t := b.newTable(shard.KeyspaceUnread, shard.KindUnread); t != nil {
		return t, nil
	}
	return nil, errNoKeyspaces // the keyspace unread is built in, so the cluster has not begun
}

// unreadRow parses a user and returns the key of its row.
func (b *batch) unreadRow(user []byte) (key, error) {
	t, err := b.unreadTable()
	if err != nil {
		return key{}, err
	}
	id, err := idOf("user", user)
	return key{t, id, wholeRow, false}, err
}

// unreadIncr parses triples of user, column and delta, and plans each as its own
// addition.
func unreadIncr(c *conn, args [][]byte) {
	b := c.batch
	var err error
	if len(args)%3 == 0 { // triples and two more arguments, which may be KEY <key>
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
			keys[i].column, err = keys[i].field(adds[3*i+1])
		}
	}
	if b.failed(err) {
		return
	}
	values, err := b.readValues(adds, 3)
	if b.failed(err) {
		return
	}
	b.addAll(keys, values)
}

// unreadReset parses COLUMNS, or SEEN with a value for each column.
func unreadReset(c *conn, args [][]byte) {
	a, b := c.arguments(args), c.batch
	k, err := b.unreadRow(a.next())
	a.fail(err)
	cells, columns, seen := make([]engine.Cell, 0, 2*engine.ColumnsMax), false, false
	a.options(
		listOption("columns", engine.ColumnsMax, 1, func(names [][]byte) (err error) {
			columns = true
			cells, err = k.resetCells(cells, names, 1)
			return err
		}),
		listOption("seen", engine.ColumnsMax, 2, func(pairs [][]byte) (err error) {
			seen = true
			cells, err = k.resetCells(cells, pairs, 2)
			return err
		}),
		a.keyOption())
	if columns == seen {
		a.fail(fieldError("seen", "a reset takes either COLUMNS or SEEN"))
	}
	if b.failed(a.err) {
		return
	}
	ops, _ := unread.ResetOps(k.id, cells, columns)
	from := len(b.cells)
	for i := range ops {
		b.wrote(k, b.op(k.table, k.id, ops[i].Kind, ops[i].Cells...))
	}
	b.answer(replyReset, from)
}

// resetCells parses columns, each at most once. If width is 2, the value that was seen follows each
// column.
func (k key) resetCells(cells []engine.Cell, words [][]byte, width int) ([]engine.Cell, error) {
	if len(words) == 0 {
		return nil, fieldError("columns", "at least one column is needed")
	}
	given := uint64(0) // bits by column index; engine.ColumnsMax is 64
	for i := 0; i < len(words); i += width {
		column, err := k.field(words[i])
		if err != nil {
			return nil, err
		}
		if given&(1<<column) != 0 {
			return nil, fieldError(k.table.ks.Columns[column], "given twice")
		}
		given |= 1 << column
		cell := engine.Cell{Column: uint8(column)}
		if width > 1 {
			if cell.Value, err = numberOf(fmt.Sprintf("seen.%s", k.table.ks.Columns[column]), words[i+1]); err != nil {
				return nil, err
			}
		}
		cells = append(cells, cell)
	}
	return cells, nil
}
