package redis

import (
	"slices"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/strictjson"
)

func hashCommands() []spec {
	const group = "hash"
	read, write := auth.Read.InBody(), auth.Write.InBody()
	return []spec{
		{"hget", 3, keyed, oneKey, read, group, "a column of a row, null for 0", fetchFields(replyString)},
		{"hmget", -3, keyed, oneKey, read, group, "columns of a row, null for 0", fetchFields(replyArray)},
		{"hgetall", 2, keyed, oneKey, read, group, "the columns of a row that are not 0", fetches(replyHash, (*batch).row)},
		{"hset", -4, keyed | writes, oneKey, write, group, "sets columns of a row", (*conn).hset},
		{"hincrby", 4, keyed | writes, oneKey, auth.Ingest.InBody(), group, "adds a number to a column", (*conn).hincrby},
		{"hdel", -3, keyed | writes, oneKey, write, group, "sets columns of a row to 0", (*conn).hdel},
		{"hlen", 2, keyed, oneKey, read, group, "number of columns of a row that are not 0", fetches(replyFields, (*batch).row)},
		{"hexists", 3, keyed, oneKey, read, group, "whether a column of a row is not 0", fetchFields(replyThere)},
		{"hscan", -3, keyed, oneKey, read, group, "the columns of a row that are not 0, in one page", (*conn).hscan},
	}
}

// fields parses the key of a row, and the columns that the names select: one for every step
// arguments.
func (b *batch) fields(text []byte, names [][]byte, step int) (key, []key, error) {
	k, err := b.row(text)
	if err != nil {
		return k, nil, err
	}
	keys, err := b.readKeys(names, step, func(_ *batch, name []byte) (key, error) {
		column, err := k.field(name)
		return key{k.table, k.id, column, false}, err
	})
	return k, keys, err
}

// fetchFields returns a command that reads columns of one row.
func fetchFields(kind replyKind) func(*conn, [][]byte) {
	return func(c *conn, args [][]byte) {
		b := c.batch
		_, keys, err := b.fields(args[1], args[2:], 1)
		if b.failed(err) {
			return
		}
		from := len(b.cells)
		for _, k := range keys {
			b.fetchSame(k, from)
		}
		b.answer(kind, from)
	}
}

// fetchSame is fetch for a key of the row that the cells from index first are of, if there are any.
func (b *batch) fetchSame(k key, first int) {
	if len(b.cells) == first {
		b.fetch(k)
		return
	}
	same := b.cells[first]
	same.column = int16(k.column)
	b.cells = append(b.cells, same)
}

// hscan replies with the whole row, which has at most 64 columns. It refuses MATCH, because it
// leaves out no column.
func (c *conn) hscan(args [][]byte) {
	a := c.arguments(args)
	row, cursor := a.next(), a.next()
	if _, ok := strictjson.ParseUint64(cursor); !ok {
		a.fail(errInvalidCursor)
	}
	a.options(countOption(new(int)))
	if !a.b.failed(a.err) {
		a.b.fetchKeys(replyScan, [][]byte{row}, (*batch).row)
	}
}

func (c *conn) hincrby(args [][]byte) {
	b := c.batch
	delta, ok := resp.ParseInt(args[3])
	if !ok {
		b.failed(errNotInteger)
		return
	}
	_, keys, err := b.fields(args[1], args[2:3], 1)
	if b.failed(err) {
		return
	}
	from := len(b.cells)
	b.wrote(keys[0], b.op(keys[0].table, keys[0].id, engine.OpAdd, keys[0].cellOf(delta)))
	b.answer(replyCount, from)
}

func (c *conn) hset(args [][]byte) {
	b := c.batch
	if len(args)%2 != 0 {
		b.fail(wrongArity("hset"))
		return
	}
	row, keys, err := b.fields(args[1], args[2:], 2)
	if b.failed(err) {
		return
	}
	values, err := b.readValues(args[2:], 2)
	if b.failed(err) {
		return
	}
	b.setFields(row, keys, values, replyAbsent)
}

func (c *conn) hdel(args [][]byte) {
	b := c.batch
	row, keys, err := b.fields(args[1], args[2:], 1)
	if b.failed(err) {
		return
	}
	b.values = append(b.values[:0], make([]int64, len(keys))...)
	b.setFields(row, keys, b.values, replyThere)
}

// setFields plans an op that sets columns of a row, and a reply with their earlier values.
// If a column occurs several times, the op has its last value.
func (b *batch) setFields(row key, keys []key, values []int64, kind replyKind) {
	var cells [engine.ColumnsMax]engine.Cell
	from, n := len(b.cells), 0
	before := b.before(row.table, row.id)
	for i, k := range keys {
		at := slices.IndexFunc(cells[:n], func(c engine.Cell) bool { return int(c.Column) == k.column })
		if at < 0 {
			at = n
			n++
			b.wrote(k, before)
		}
		cells[at] = k.cellOf(values[i])
	}
	b.op(row.table, row.id, engine.OpSet, cells[:n]...)
	b.answer(kind, from)
}
