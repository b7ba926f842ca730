package api

import (
	"fmt"

	"github.com/countd/countd/shard"
)

const (
	idsMax      = 1_000  // ids of one read: about 100 KB of answer
	scanMax     = 10_000 // rows of a page: about 1 MB of answer
	scanDefault = 1_000
)

// decodeGet reads {"ids":[…],"columns":[…]?,"member":…?} into r.ids, r.columns and r.sets.
func (r *request) decodeGet(body []byte) error {
	c := r.objectIn(body)
	var s seen
	for n := 0; c.Next(n, '}'); n++ {
		switch key := c.Key(); string(key) {
		case "ids":
			s.once(c, 0, "ids")
			r.decodeIDs("ids", 1, idsMax)
		case "columns":
			s.once(c, 1, "columns")
			r.decodeColumns()
		case "member":
			s.once(c, 2, "member")
			r.readMember()
		default:
			c.Fail(shown(key), noField("ids", "columns", "member"))
		}
	}
	s.need(c, 0, "ids")
	if !s.has(1) {
		r.allColumns()
	}
	if r.sets.asked && len(r.ids)*len(r.columns) > lookupsMax {
		c.Fail("member", fmt.Sprintf("%d ids of %d columns are more than %d sets: ask for fewer columns or ids", len(r.ids), len(r.columns), lookupsMax))
	}
	return r.decoded()
}

// decodeIDs reads a list of countMin to countMax ids into r.ids.
func (r *request) decodeIDs(path string, countMin, countMax int) {
	c := &r.cursor
	if !c.Begin('[') {
		c.Fail(path, notArray)
	}
	for n := 0; c.Next(n, ']'); n++ {
		if n == countMax {
			c.Fail(path, fmt.Sprintf("more than %d", countMax))
			return
		}
		id, ok := c.ID()
		if !ok {
			c.Fail(fmt.Sprintf("%s[%d]", path, n), notUint64)
			return
		}
		r.ids = append(r.ids, id)
	}
	if len(r.ids) < countMin {
		c.Fail(path, "at least one is needed")
	}
}

// decodeColumns parses the columns of a read.
func (r *request) decodeColumns() {
	c := &r.cursor
	if !c.Begin('[') {
		c.Fail("columns", notArray)
	}
	var columns uint64 // asked so far, by number
	for n := 0; c.Next(n, ']'); n++ {
		if c.Peek() != '"' {
			c.Fail(fmt.Sprintf("columns[%d]", n), notString)
			return
		}
		column := r.columnNumber(c.Str())
		switch {
		case c.Err != nil:
			return
		case column < 0:
			c.Fail(fmt.Sprintf("columns[%d]", n), noColumnOf(r.keyspace))
			return
		case columns&(1<<column) != 0:
			c.Fail(fmt.Sprintf("columns[%d]", n), givenTwice)
			return
		}
		columns |= 1 << column
		r.columns = append(r.columns, uint8(column))
	}
	if columns == 0 {
		c.Fail("columns", oneColumn)
	}
}

// allColumns selects every column of the keyspace that was not dropped.
func (r *request) allColumns() {
	for i, name := range r.keyspace.Columns {
		if name != "" {
			r.columns = append(r.columns, uint8(i))
		}
	}
}

// page selects the rows of a scan.
type page struct {
	after    uint64
	hasAfter bool
	limit    int
	skip     bool // skip the shards that no living node has
}

// decodeScan reads {"cursor":…?,"limit":n?,"columns":[…]?,"skip_unreadable":bool?}; columns go to
// r.columns. The cursor is the last id of the previous page; "after" is another name for it. If the
// request names no consistency, skip_unreadable makes the read stale.
func (r *request) decodeScan(body []byte) (page, error) {
	p := page{limit: scanDefault}
	known := []string{"cursor", "limit", "columns", "skip_unreadable", "after"}
	s, err := r.members(body, known, func(c *cursor, member int) {
		switch name := known[member]; name {
		case "cursor", "after":
			if p.hasAfter {
				c.Fail(name, givenTwice)
			}
			if p.after, p.hasAfter = c.ID(); !p.hasAfter {
				c.Fail(name, map[string]string{"cursor": notCursor, "after": notUint64}[name])
			}
		case "limit":
			p.limit = c.countIn("limit", scanMax)
		case "columns":
			r.decodeColumns()
		case "skip_unreadable":
			p.skip = c.boolean("skip_unreadable")
			switch {
			case p.skip && !r.namesLevel:
				r.read.Consistency, r.read.MaxStaleness = shard.Stale, 0
			case p.skip && r.read.Consistency != shard.Stale:
				c.Fail("skip_unreadable", "only of a read with consistency stale")
			}
		}
	})
	if !s.has(2) {
		r.allColumns()
	}
	return p, err
}

// countIn reads an integer from 1 to limit.
func (c *cursor) countIn(path string, limit int64) int {
	v, ok := c.Int64()
	if !ok || v < 1 || v > limit {
		c.Fail(path, fmt.Sprintf("not an integer from 1 to %d", limit))
		return 0
	}
	return int(v)
}
