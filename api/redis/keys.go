package redis

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
)

func keyCommands() []spec {
	const group = "generic"
	read := auth.Read.InBody()
	return []spec{
		{name: "del", arity: -2, traits: keyed | writes, keys: manyKeys, need: auth.Write.InBody(), group: group, does: "sets counts, or whole rows, to 0", do: del},
		{name: "exists", arity: -2, traits: keyed, keys: manyKeys, need: read, group: group, does: "number of the keys that are not 0", do: fetches(appendThere, (*batch).key)},
		{name: "type", arity: 2, traits: keyed, keys: oneKey, need: read, group: group, does: "string for a count, hash for a row, set for members, none for 0", do: fetches(appendType, (*batch).key)},
		{name: "ttl", arity: 2, traits: keyed, keys: oneKey, need: read, group: group, does: "-1, or -2 for 0: nothing expires", do: fetches(appendTTL, (*batch).key)},
		{name: "scan", arity: -2, traits: unplanned, keys: noKeys, need: read, group: group, does: "keys in the order of their ids", do: scan},
		{name: "dbsize", arity: 1, traits: unplanned, keys: noKeys, need: read, group: "server", does: "number of rows in the shards of this node", do: dbsize},
	}
}

func del(c *conn, args [][]byte) {
	b := c.batch
	keys, err := b.readKeys(args[1:], 1, (*batch).keyToDelete)
	if b.failed(err) {
		return
	}
	from := len(b.cells)
	for _, k := range keys {
		b.wrote(k, b.before(k))
		if k.column == wholeRow {
			b.op(k, engine.OpDelete)
		} else {
			b.op(k, engine.OpSet, k.cellOf(0))
		}
	}
	b.answer(appendThere, from)
}

// keyToDelete parses a key of DEL. DEL cannot delete the members of one column: it deletes a row
// with the members of all its columns.
func (b *batch) keyToDelete(text []byte) (key, error) {
	k, err := b.key(text)
	if err == nil && k.set {
		err = resp.ArgumentError(fmt.Sprintf("'%s' is deleted with its row, or by SREM of each member", resp.Shown(text)))
	}
	return k, err
}

func dbsize(c *conn, _ [][]byte) {
	rows := int64(0)
	for _, g := range c.server.node().Status().Groups {
		if isCounters(c.server.node().Keyspace(g.Keyspace)) && c.mayRead(g.Keyspace) {
			rows += int64(g.Rows)
		}
	}
	c.out.Buf = resp.AppendInt(c.out.Buf, rows)
}

const (
	scanCountDefault = 10
	// scanCountsMax bounds the counts that one SCAN reads from all keyspaces. Each count may become
	// a key. With more keyspaces or columns, a page has fewer rows.
	scanCountsMax = 4 * rowsMax
)

// scanCall holds the arguments of a SCAN.
type scanCall struct {
	from     uint64 // lowest id of the page
	match    resp.Pattern
	count    int
	kind     string // "hash" for rows, "string" for counts
	keyspace string // literal prefix of the pattern before the first ":", or ""
}

// parseScan parses the arguments of SCAN.
func (c *conn) parseScan(args [][]byte) (q scanCall, err error) {
	a := c.batch.arguments(args)
	if q.from, err = resp.ParseScanCursor(a.Next()); err != nil {
		return q, err
	}
	q.count = scanCountDefault
	typed := false
	a.Options(resp.CountOption(&q.count, rowsMax), resp.MatchOption(&q.match), resp.TextOption("type", func(name []byte) error {
		q.kind, typed = strings.ToLower(string(name)), true
		return nil
	}))
	if !typed {
		q.kind = "hash"
		if strings.Count(q.match.Text, ":") > 1 {
			q.kind = "string"
		}
	}
	if name, _, ok := strings.Cut(q.match.Text, ":"); ok && !strings.ContainsAny(name, resp.GlobBytes) {
		q.keyspace = name
	}
	return q, a.Err
}

// checkMatch refuses a pattern with a keyspace or a column that does not exist. With an empty
// reply, the client would believe that the keyspace has no rows.
func (c *conn) checkMatch(q *scanCall) error {
	all := c.server.node().Keyspaces()
	column := q.match.Text[strings.LastIndexByte(q.match.Text, ':')+1:]
	switch {
	case !q.match.Given:
		return nil
	case len(all) == 0:
		return errNoKeyspaces
	case q.keyspace != "" && !isCounters(c.server.node().Keyspace(q.keyspace)):
		return c.batch.noKeyspace([]byte(q.keyspace))
	case q.kind != "string" || strings.ContainsAny(column, resp.GlobBytes) || slices.ContainsFunc(all, func(ks *shard.Keyspace) bool {
		return isCounters(ks) && (q.keyspace == "" || ks.Name == q.keyspace) && ks.Column(column) >= 0
	}):
		return nil
	}
	return unknown([]byte(column), fmt.Sprintf("no keyspace that the pattern names has a column '%s'", resp.Shown([]byte(column))))
}

// scan replies with the keys of rows in ascending id order, across all keyspaces.
func scan(c *conn, args [][]byte) {
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
		c.out.Buf = b.appendFailure(c.out.Buf, err)
		return
	}
	var keys []byte
	n := 0
	for _, p := range pages {
		keys, n = p.appendKeys(keys, n, &q)
	}
	out := resp.AppendArray(c.out.Buf, 2)
	out = resp.AppendBulkUint(out, resp.ScanCursor(next))
	c.out.Buf = append(resp.AppendArray(out, n), keys...)
}

// scanPage has the rows of one keyspace for a page.
type scanPage struct {
	ks    *shard.Keyspace
	ids   []uint64
	shown names.Shown
	rows  []int64
}

// scanPages reads a page of each keyspace. All ids of the pages are below next, the first id of the
// next page. After the last page, next is 0.
func (c *conn) scanPages(q *scanCall) (next uint64, pages []scanPage, err error) {
	next, pages, err = c.readPages(q, false)
	if start := next &^ (resp.ScanBlock - 1); err == nil && next > resp.ScanExact && start != next {
		if next = start; start <= q.from { // the page would be empty, so it has the whole block
			next, pages, err = c.readPages(q, true)
			if end := start + resp.ScanBlock; next > end {
				next = end // after the last block, end is 0
			}
		}
	}
	for i := range pages {
		p := &pages[i]
		if cut, _ := slices.BinarySearch(p.ids, next); next > 0 {
			p.ids = p.ids[:cut]
		}
		opt := shard.ReadOptions{Deadline: time.Now().Add(c.server.cfg.Timeout)}
		if p.shown, err = c.server.node().names.Show(p.ks.Names, p.ids, &opt); err != nil {
			return 0, nil, err
		}
	}
	return next, pages, err
}

// readPages reads up to q.count rows of each keyspace, or all rows of a block if block is set. No
// row below the id next is missing from the pages. If next is 0, the pages reach the end of the
// keyspaces.
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
			count = resp.ScanBlock
		}
		r := rows.Scan{Width: len(ks.Columns), Limit: count, After: q.from - 1, HasAfter: q.from > 0, Dropped: ks.Dropped}
		if err := c.server.node().Read(ks, &r, nil, &opt); err != nil {
			return 0, nil, err
		}
		if r.More && len(r.IDs) > 0 {
			next = min(next-1, r.IDs[len(r.IDs)-1]) + 1 // while next is 0, next-1 is the highest id
		}
		pages = append(pages, scanPage{ks: ks, ids: r.IDs, rows: r.Rows})
	}
	return next, pages, nil
}

// appendKeys appends the keys of a page that match the request, and adds their number to n.
func (p *scanPage) appendKeys(dst []byte, n int, q *scanCall) ([]byte, int) {
	width := len(p.ks.Columns)
	var name []byte
	for i, id := range p.ids {
		if name = p.appendKey(name[:0], i, id); name == nil {
			continue
		}
		switch q.kind {
		case "hash":
			if q.match.Matches(name) {
				dst, n = resp.AppendBulk(dst, name), n+1
			}
		case "string":
			for column, count := range p.rows[i*width : (i+1)*width] {
				one := append(append(bytes.Clone(name), ':'), p.ks.Columns[column]...)
				if count != 0 && q.match.Matches(one) {
					dst, n = resp.AppendBulk(dst, one), n+1
				}
			}
		}
	}
	return dst, n
}

// appendKey appends the key of a row of the page, or returns nil for a row whose text was erased.
func (p *scanPage) appendKey(dst []byte, i int, id uint64) []byte {
	if dst = append(append(dst, p.ks.Name...), ':'); p.shown == nil {
		return strconv.AppendUint(dst, id, 10)
	}
	if p.shown[i] == "" {
		return nil
	}
	return append(dst, p.shown[i]...)
}

// there returns how many of the cells have a key that exists.
func there(cells []cell) (n int) {
	for i := range cells {
		if exists, _ := cells[i].exists(); exists {
			n++
		}
	}
	return n
}

// appendThere appends the number of cells whose key exists. appendAbsent appends the number of
// cells whose key does not exist.
func appendThere(dst []byte, cells []cell, _ bool) []byte {
	return resp.AppendInt(dst, int64(there(cells)))
}

func appendAbsent(dst []byte, cells []cell, _ bool) []byte {
	return resp.AppendInt(dst, int64(len(cells)-there(cells)))
}

// appendTTL appends -1 if the key exists, because keys never expire, and -2 if it does not.
func appendTTL(dst []byte, cells []cell, _ bool) []byte {
	return resp.AppendInt(dst, int64(there(cells))-2)
}

func appendType(dst []byte, cells []cell, _ bool) []byte {
	word := "string"
	switch c := &cells[0]; {
	case there(cells) == 0:
		word = "none"
	case c.column == wholeRow:
		word = "hash"
	case c.set:
		word = "set"
	}
	return resp.AppendWord(dst, word)
}
