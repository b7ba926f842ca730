package redis

import (
	"bytes"
	"math"
	"slices"
	"strings"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/strictjson"
)

// counterCommands are the commands on counts. For Redis clients, a count is a string, and a row of
// counts is a hash.
func counterCommands() []spec {
	const str, hash = "string", "hash"
	read, add, write := auth.Read.InBody(), auth.Ingest.InBody(), auth.Write.InBody()
	return []spec{
		{name: "get", arity: 2, traits: keyed, keys: oneKey, need: read, group: str, does: "the count, null for 0", do: fetches(appendString, (*batch).count)},
		{name: "mget", arity: -2, traits: keyed, keys: manyKeys, need: read, group: str, does: "the counts of keys, null for 0", do: fetches(appendStrings, (*batch).count)},
		{name: "set", arity: -3, traits: keyed | writes, keys: oneKey, need: write, group: str, does: "sets the count", do: set},
		{name: "mset", arity: -3, traits: keyed | writes, keys: pairs, need: write, group: str, does: "sets counts, atomically for each shard", do: mset},
		{name: "getset", arity: 3, traits: keyed | writes, keys: oneKey, need: write, group: str, does: "sets the count and returns the old one", do: func(c *conn, args [][]byte) { c.batch.replace(args[1], args[2], true) }},
		{name: "getdel", arity: 2, traits: keyed | writes, keys: oneKey, need: write, group: str, does: "sets the count to 0 and returns the old one", do: func(c *conn, args [][]byte) { c.batch.replace(args[1], []byte("0"), true) }},
		{name: "incr", arity: 2, traits: keyed | writes, keys: oneKey, need: add, group: str, does: "adds 1", do: func(c *conn, args [][]byte) { c.batch.add(args[1], 1) }},
		{name: "decr", arity: 2, traits: keyed | writes, keys: oneKey, need: add, group: str, does: "takes 1 away", do: func(c *conn, args [][]byte) { c.batch.add(args[1], -1) }},
		{name: "incrby", arity: 3, traits: keyed | writes, keys: oneKey, need: add, group: str, does: "adds a number", do: incrby},
		{name: "decrby", arity: 3, traits: keyed | writes, keys: oneKey, need: add, group: str, does: "subtracts a number", do: decrby},
		{name: "hget", arity: 3, traits: keyed, keys: oneKey, need: read, group: hash, does: "a column of a row, null for 0", do: fetchFields(appendString)},
		{name: "hmget", arity: -3, traits: keyed, keys: oneKey, need: read, group: hash, does: "columns of a row, null for 0", do: fetchFields(appendStrings)},
		{name: "hgetall", arity: 2, traits: keyed, keys: oneKey, need: read, group: hash, does: "the columns of a row that are not 0", do: fetches(appendHash, (*batch).row)},
		{name: "hset", arity: -4, traits: keyed | writes, keys: oneKey, need: write, group: hash, does: "sets columns of a row", do: hset},
		{name: "hincrby", arity: 4, traits: keyed | writes, keys: oneKey, need: add, group: hash, does: "adds a number to a column", do: hincrby},
		{name: "hdel", arity: -3, traits: keyed | writes, keys: oneKey, need: write, group: hash, does: "sets columns of a row to 0", do: hdel},
		{name: "hlen", arity: 2, traits: keyed, keys: oneKey, need: read, group: hash, does: "number of columns of a row that are not 0", do: fetches(appendFields, (*batch).row)},
		{name: "hexists", arity: 3, traits: keyed, keys: oneKey, need: read, group: hash, does: "whether a column of a row is not 0", do: fetchFields(appendThere)},
		{name: "hscan", arity: -3, traits: keyed, keys: oneKey, need: read, group: hash, does: "the columns of a row that are not 0, in one page", call: hscan},
		{name: "countd.incr", arity: -3, traits: keyed | writes, keys: pairs, need: add, group: "countd", does: "adds numbers to counts, only once under an idempotency key", do: countdIncr},
	}
}

// fetches returns a command that reads what its keys name.
func fetches(form appendCells, read func(*batch, []byte) (key, error)) func(*conn, [][]byte) {
	return func(c *conn, args [][]byte) { c.batch.fetchKeys(form, args[1:], read) }
}

// fetchKeys plans the reads of what keys name, and one reply.
func (b *batch) fetchKeys(form appendCells, texts [][]byte, read func(*batch, []byte) (key, error)) {
	from := len(b.cells)
	if len(texts) == 1 { // most commands have one key, which needs no list
		k, err := read(b, texts[0])
		if b.failed(err) {
			return
		}
		b.fetch(k)
		b.answer(form, from)
		return
	}
	keys, err := b.readKeys(texts, 1, read)
	if b.failed(err) {
		return
	}
	for _, k := range keys {
		b.fetch(k)
	}
	b.answer(form, from)
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
	b.wrote(k, b.op(k, engine.OpAdd, k.cellOf(delta)))
	b.answer(appendCount, from)
}

func incrby(c *conn, args [][]byte) {
	delta, ok := resp.ParseInt(args[2])
	if !ok {
		c.batch.failed(resp.ErrNotInteger)
		return
	}
	c.batch.add(args[1], delta)
}

func decrby(c *conn, args [][]byte) {
	delta, ok := resp.ParseInt(args[2])
	switch {
	case !ok:
		c.batch.failed(resp.ErrNotInteger)
	case delta == math.MinInt64:
		c.batch.fail("ERR decrement would overflow")
	default:
		c.batch.add(args[1], -delta)
	}
}

const errNoExpiry = "ERR syntax error: counts do not expire, so SET takes no EX, PX, EXAT, PXAT or KEEPTTL"

func expires(options [][]byte) bool {
	return slices.ContainsFunc(options, func(option []byte) bool {
		switch strings.ToLower(string(option)) {
		case "ex", "px", "exat", "pxat", "keepttl":
			return true
		}
		return false
	})
}

// set plans SET. It accepts no option but GET.
func set(c *conn, args [][]byte) {
	b := c.batch
	get := len(args) == 4 && bytes.EqualFold(args[3], []byte("get"))
	if len(args) > 3 && !get {
		if expires(args[3:]) {
			b.fail(errNoExpiry)
			return
		}
		b.failed(resp.ErrSyntax)
		return
	}
	b.replace(args[1], args[2], get)
}

func (b *batch) replace(text, value []byte, answerOld bool) {
	k, err := b.count(text)
	if b.failed(err) {
		return
	}
	n, ok := resp.ParseInt(value)
	if !ok {
		b.failed(resp.ErrNotInteger)
		return
	}
	from, form := len(b.cells), appendCells(appendOK)
	if answerOld {
		b.wrote(k, b.before(k))
		form = appendString
	}
	op := b.op(k, engine.OpSet, k.cellOf(n))
	if !answerOld {
		b.wrote(k, op)
	}
	b.answer(form, from)
}

func mset(c *conn, args [][]byte) {
	b := c.batch
	if len(args)%2 == 0 {
		b.fail(wrongArity("mset"))
		return
	}
	keys, values, err := b.readPairs(args[1:], 2, (*batch).count)
	if b.failed(err) {
		return
	}
	from := len(b.cells)
	for i, k := range keys {
		b.wrote(k, b.op(k, engine.OpSet, k.cellOf(values[i])))
	}
	b.answer(appendOK, from)
}

// fields parses the key of a row, and the columns in names: it reads names in groups of step, and
// the first text of each group is a column.
func (b *batch) fields(text []byte, names [][]byte, step int) (key, []key, error) {
	k, err := b.row(text)
	if err != nil {
		return k, nil, err
	}
	keys, err := b.readKeys(names, step, func(_ *batch, name []byte) (key, error) {
		column, err := k.table.field(name)
		return key{table: k.table, id: k.id, late: k.late, column: column, set: false}, err
	})
	return k, keys, err
}

// fetchFields returns a command that reads columns of one row.
func fetchFields(form appendCells) func(*conn, [][]byte) {
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
		b.answer(form, from)
	}
}

// fetchSame plans the read of one of several columns of a row. The row's cells begin at index
// first. Only the first cell needs a read; the others share it.
func (b *batch) fetchSame(k key, first int) {
	if len(b.cells) == first {
		b.fetch(k)
		return
	}
	same := b.cells[first]
	same.column = int16(k.column)
	b.cells = append(b.cells, same)
}

// hscan replies with the whole row in one page, because a row has at most 64 columns. It refuses
// MATCH, because it always replies with all columns.
func hscan(a *arguments) {
	row, cursor := a.Next(), a.Next()
	if _, ok := strictjson.ParseUint64(cursor); !ok {
		a.Fail(resp.ErrInvalidCursor)
	}
	a.Options(resp.CountOption(new(int), rowsMax))
	if !a.b.failed(a.Err) {
		a.b.fetchKeys(appendScan, [][]byte{row}, (*batch).row)
	}
}

func hincrby(c *conn, args [][]byte) {
	b := c.batch
	delta, ok := resp.ParseInt(args[3])
	if !ok {
		b.failed(resp.ErrNotInteger)
		return
	}
	_, keys, err := b.fields(args[1], args[2:3], 1)
	if b.failed(err) {
		return
	}
	from := len(b.cells)
	b.wrote(keys[0], b.op(keys[0], engine.OpAdd, keys[0].cellOf(delta)))
	b.answer(appendCount, from)
}

func hset(c *conn, args [][]byte) {
	b := c.batch
	if len(args)%2 != 0 {
		b.fail(wrongArity("hset"))
		return
	}
	row, keys, err := b.fields(args[1], args[2:], 2)
	values := b.values
	if err == nil {
		values, err = b.readValues(args[2:], 2)
	}
	if !b.failed(err) {
		b.setFields(row, keys, values, appendAbsent)
	}
}

func hdel(c *conn, args [][]byte) {
	b := c.batch
	row, keys, err := b.fields(args[1], args[2:], 1)
	if !b.failed(err) {
		b.values = append(b.values[:0], make([]int64, len(keys))...)
		b.setFields(row, keys, b.values, appendThere)
	}
}

// setFields plans an op that sets columns of a row, and a reply with their earlier values.
// If a column occurs several times, the op has its last value.
func (b *batch) setFields(row key, keys []key, values []int64, form appendCells) {
	var cells [engine.ColumnsMax]engine.Cell
	from, n := len(b.cells), 0
	before := b.before(row)
	for i, k := range keys {
		at := slices.IndexFunc(cells[:n], func(c engine.Cell) bool { return int(c.Column) == k.column })
		if at < 0 {
			at = n
			n++
			b.wrote(k, before)
		}
		cells[at] = k.cellOf(values[i])
	}
	b.op(row, engine.OpSet, cells[:n]...)
	b.answer(form, from)
}

// countdIncr adds to several counts. With KEY, all additions are one write, which is applied only
// once. Without KEY, the additions to each keyspace are one write.
func countdIncr(c *conn, args [][]byte) {
	b := c.batch
	args, err := b.keyAtEnd(args, 3)
	if b.failed(err) {
		return
	}
	adds := args[1:]
	if len(adds)%2 != 0 {
		b.fail(wrongArity("countd.incr"))
		return
	}
	keys, values, err := b.readPairs(adds, 2, (*batch).count)
	if b.failed(err) {
		return
	}
	if !b.id.Keyed() {
		b.addAll(keys, values)
		return
	}
	if b.conn.server.node().Keyspace(judgeKeyspace) == nil {
		b.failed(errNoKeyspaces)
		return
	}
	t := keys[0].table
	across := slices.ContainsFunc(keys, func(k key) bool { return k.table != t })
	if before := b.keyed[b.id.Key()]; across || before != nil && before != t {
		b.flush() // the earlier command must come first, but a batch writes its tables concurrently
	}
	if b.keyed == nil {
		b.keyed = map[[16]byte]*table{}
	}
	b.keyed[b.id.Key()] = t
	b.addAll(keys, values)
	if b.across = across; across {
		b.flush()
	}
}

// addAll plans additions to counts, and a reply with the result of each.
func (b *batch) addAll(keys []key, values []int64) {
	from := len(b.cells)
	for i, k := range keys {
		b.wrote(k, b.op(k, engine.OpAdd, k.cellOf(values[i])))
	}
	b.plan((*batch).appendCounts, from, len(b.cells))
}

func appendCount(dst []byte, cells []cell, _ bool) []byte {
	n, _ := cells[0].value()
	return resp.AppendInt(dst, n)
}

func appendOK(dst []byte, _ []cell, _ bool) []byte { return resp.AppendOK(dst) }

// appendString appends a count as a string, and null for 0.
func appendString(dst []byte, cells []cell, resp3 bool) []byte {
	if n, _ := cells[0].value(); n != 0 {
		return resp.AppendBulkInt(dst, n)
	}
	return resp.AppendNull(dst, resp3)
}

func appendStrings(dst []byte, cells []cell, resp3 bool) []byte {
	dst = resp.AppendArray(dst, len(cells))
	for i := range cells {
		dst = appendString(dst, cells[i:], resp3)
	}
	return dst
}

// appendCounts appends an array with the count or the error of each cell. If all cells failed, it
// appends only one error.
func (b *batch) appendCounts(dst []byte, r *reply) []byte {
	cells := b.cells[r.from:r.to]
	if err := failureOf(cells, false); err != nil && failures(cells) == len(cells) {
		return b.appendFailure(dst, err)
	}
	dst = resp.AppendArray(dst, len(cells))
	for i := range cells {
		if n, err := cells[i].value(); err != nil {
			dst = b.appendFailure(dst, err)
		} else {
			dst = resp.AppendInt(dst, n)
		}
	}
	return dst
}

// notZero returns how many columns of a row are not 0.
func notZero(row []int64) (n int) {
	for _, count := range row {
		if count != 0 {
			n++
		}
	}
	return n
}

// appendFields appends how many columns of the row are not 0.
func appendFields(dst []byte, cells []cell, _ bool) []byte {
	row, _ := cells[0].rowOf()
	return resp.AppendInt(dst, int64(notZero(row)))
}

// appendHash appends the columns of the row that are not 0.
func appendHash(dst []byte, cells []cell, resp3 bool) []byte {
	row, _ := cells[0].rowOf()
	return appendColumns(resp.AppendMap(dst, notZero(row), resp3), &cells[0], row)
}

// appendScan appends the reply of HSCAN: the cursor 0, because there is no other page, and the
// columns that are not 0.
func appendScan(dst []byte, cells []cell, _ bool) []byte {
	row, _ := cells[0].rowOf()
	dst = resp.AppendBulk(resp.AppendArray(dst, 2), "0")
	return appendColumns(resp.AppendArray(dst, 2*notZero(row)), &cells[0], row)
}

func appendColumns(dst []byte, c *cell, row []int64) []byte {
	for column, count := range row {
		if count != 0 {
			dst = resp.AppendBulkInt(resp.AppendBulk(dst, c.table.ks.Columns[column]), count)
		}
	}
	return dst
}
