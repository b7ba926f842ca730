package redis

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
)

func keyCommands() []spec {
	const group = "generic"
	read := auth.Read.InBody()
	return []spec{
		{"del", -2, keyed | writes, manyKeys, auth.Write.InBody(), group, "sets counts, or whole rows, to 0", (*conn).del},
		{"exists", -2, keyed, manyKeys, read, group, "number of the keys that are not 0", fetches(replyThere, (*batch).key)},
		{"type", 2, keyed, oneKey, read, group, "string for a count, hash for a row, set for members, none for 0", fetches(replyType, (*batch).key)},
		{"ttl", 2, keyed, oneKey, read, group, "-1, or -2 for 0: nothing expires", fetches(replyTTL, (*batch).key)},
		{"scan", -2, unplanned, noKeys, read, group, "keys in the order of their ids", (*conn).scan},
		{"dbsize", 1, unplanned, noKeys, read, "server", "number of rows in the shards of this node", (*conn).dbsize},
	}
}

func (c *conn) del(args [][]byte) {
	b := c.batch
	keys, err := b.readKeys(args[1:], 1, (*batch).keyToDelete)
	if b.failed(err) {
		return
	}
	from := len(b.cells)
	for _, k := range keys {
		b.wrote(k, b.before(k.table, k.id))
		if k.column == wholeRow {
			b.op(k.table, k.id, engine.OpDelete)
		} else {
			b.op(k.table, k.id, engine.OpSet, k.cellOf(0))
		}
	}
	b.answer(replyThere, from)
}

// keyToDelete parses a key of DEL. DEL cannot delete the members of one column: it deletes a row
// with the members of all its columns.
func (b *batch) keyToDelete(text []byte) (key, error) {
	k, err := b.key(text)
	if err == nil && k.set {
		err = argumentError(fmt.Sprintf("'%s' is deleted with its row, %s:%d, or by SREM of each member", shown(text), k.table.ks.Name, k.id))
	}
	return k, err
}

func (c *conn) dbsize([][]byte) {
	rows := int64(0)
	for _, g := range c.server.node().Status().Groups {
		if isCounters(c.server.node().Keyspace(g.Keyspace)) && c.mayRead(g.Keyspace) {
			rows += int64(g.Rows)
		}
	}
	c.out.buf = resp.AppendInt(c.out.buf, rows)
}

const (
	scanCountDefault = 10
	// scanCountsMax bounds the counts that one SCAN reads from all keyspaces. Each count may become
	// a key. With more keyspaces or columns, a page has fewer rows.
	scanCountsMax = 4 * rowsMax
)

// A cursor of SCAN is the lowest id of the next page, so the server keeps no state. Exactly one page
// returns each element that exists all the time, and every scan ends. Clients keep cursors in doubles
// and in signed integers, so a cursor has 53 bits:
//
//	an id up to scanExact is itself
//	a higher id is scanExact + id/scanBlock: such a page begins and ends where a block of ids does
//
// So a page has at most COUNT rows of a keyspace, or those of one block.
const (
	scanExact     = 1 << 52
	scanBlock     = 1 << 12
	scanCursorMax = scanExact + (1<<64-1)/scanBlock
)

// cursorOf returns the cursor of a page that begins at an id.
func cursorOf(id uint64) uint64 {
	if id > scanExact {
		return scanExact + id/scanBlock
	}
	return id
}

// scanCall holds the arguments of a SCAN.
type scanCall struct {
	from     uint64 // the lowest id that the page may have
	match    pattern
	count    int
	kind     string // "hash" for rows, "string" for counts
	keyspace string // literal prefix of the pattern before the first ":", or ""
}

const errInvalidCursor codedError = "ERR invalid cursor"

// parseScan parses the arguments of SCAN.
func (c *conn) parseScan(args [][]byte) (q scanCall, err error) {
	a := c.arguments(args)
	var ok bool
	if q.from, ok = strictjson.ParseUint64(a.next()); !ok || q.from > scanCursorMax {
		return q, errInvalidCursor
	}
	if q.from > scanExact {
		q.from = (q.from - scanExact) * scanBlock
	}
	q.count = scanCountDefault
	typed := false
	a.options(countOption(&q.count), matchOption(&q.match), textOption("type", func(name []byte) error {
		q.kind, typed = strings.ToLower(string(name)), true
		return nil
	}))
	if !typed {
		q.kind = "hash"
		if strings.Count(q.match.text, ":") > 1 {
			q.kind = "string"
		}
	}
	if name, _, ok := strings.Cut(q.match.text, ":"); ok && !strings.ContainsAny(name, globBytes) {
		q.keyspace = name
	}
	return q, a.err
}

// checkMatch refuses a pattern with a keyspace or a column that does not exist. Otherwise the
// client would take an empty reply for a keyspace without rows.
func (c *conn) checkMatch(q *scanCall) error {
	all := c.server.node().Keyspaces()
	column := q.match.text[strings.LastIndexByte(q.match.text, ':')+1:]
	switch {
	case !q.match.given:
		return nil
	case len(all) == 0:
		return errNoKeyspaces
	case q.keyspace != "" && !isCounters(c.server.node().Keyspace(q.keyspace)):
		return c.batch.noKeyspace([]byte(q.keyspace))
	case q.kind != "string" || strings.ContainsAny(column, globBytes) || slices.ContainsFunc(all, func(ks *shard.Keyspace) bool {
		return isCounters(ks) && (q.keyspace == "" || ks.Name == q.keyspace) && ks.Column(column) >= 0
	}):
		return nil
	}
	return unknown([]byte(column), fmt.Sprintf("no keyspace that the pattern names has a column '%s'", shown([]byte(column))))
}

// scan replies with the keys of rows in ascending id order, across all keyspaces.
func (c *conn) scan(args [][]byte) {
	b := c.batch
	q, err := c.parseScan(args)
	if err == nil {
		err = c.checkMatch(&q)
	}
	if b.failed(err) {
		return
	}
	next, pages, err := c.scanPages(&q)
	if err != nil {
		c.out.buf = b.appendFailure(c.out.buf, err)
		return
	}
	var keys []byte
	n := 0
	for _, p := range pages {
		keys, n = p.appendKeys(keys, n, &q)
	}
	out := resp.AppendArray(c.out.buf, 2)
	out = resp.AppendBulk(out, formatUint(cursorOf(next)))
	c.out.buf = append(resp.AppendArray(out, n), keys...)
}

// scanPage is the rows of one keyspace in one page.
type scanPage struct {
	ks   *shard.Keyspace
	ids  []uint64
	rows []int64
}

// scanPages reads a page of each keyspace. The next page begins at the id next, or there is none if
// next is 0. scanPages cuts all pages at next.
func (c *conn) scanPages(q *scanCall) (next uint64, pages []scanPage, err error) {
	next, pages, err = c.readPages(q, false)
	if start := next &^ (scanBlock - 1); err == nil && next > scanExact && start != next {
		if next = start; start <= q.from { // a block has more rows than a page
			next, pages, err = c.readPages(q, true)
			if end := start + scanBlock; next > end {
				next = end // 0 behind the last block
			}
		}
	}
	for i := range pages {
		p := &pages[i]
		if cut, _ := slices.BinarySearch(p.ids, next); next > 0 {
			p.ids = p.ids[:cut]
		}
	}
	return next, pages, err
}

// readPages reads up to q.count rows of each keyspace, or scanBlock rows for a block. The pages
// have all rows below the id next. If next is 0, they have all rows.
func (c *conn) readPages(q *scanCall, block bool) (next uint64, pages []scanPage, err error) {
	deadline := time.Now().Add(c.server.cfg.Timeout)
	asked := slices.DeleteFunc(slices.Clone(c.server.node().Keyspaces()), func(ks *shard.Keyspace) bool {
		return !isCounters(ks) || !c.mayRead(ks.Name) || q.keyspace != "" && ks.Name != q.keyspace
	})
	for _, ks := range asked {
		var opt shard.ReadOptions
		c.freshness(&opt, deadline, c.server.writtenTo(ks.Name))
		count := min(q.count, max(1, scanCountsMax/len(asked)/len(ks.Columns)))
		if block {
			count = scanBlock
		}
		r := rows.Scan{Width: len(ks.Columns), Limit: count, After: q.from - 1, HasAfter: q.from > 0, Dropped: ks.Dropped}
		if err := c.server.node().Read(ks, &r, nil, &opt); err != nil {
			return 0, nil, err
		}
		if r.More && len(r.IDs) > 0 {
			next = min(next-1, r.IDs[len(r.IDs)-1]) + 1 // 0 minus 1 is the highest id
		}
		pages = append(pages, scanPage{ks, r.IDs, r.Rows})
	}
	return next, pages, nil
}

// appendKeys appends the keys of a page that match the request, and adds their number to
// n.
func (p *scanPage) appendKeys(dst []byte, n int, q *scanCall) ([]byte, int) {
	width := len(p.ks.Columns)
	var name []byte
	for i, id := range p.ids {
		name = appendRowKey(name[:0], p.ks, id)
		switch q.kind {
		case "hash":
			if q.match.matches(name) {
				dst, n = resp.AppendBulk(dst, name), n+1
			}
		case "string":
			for column, count := range p.rows[i*width : (i+1)*width] {
				one := append(append(bytes.Clone(name), ':'), p.ks.Columns[column]...)
				if count != 0 && q.match.matches(one) {
					dst, n = resp.AppendBulk(dst, one), n+1
				}
			}
		}
	}
	return dst, n
}
