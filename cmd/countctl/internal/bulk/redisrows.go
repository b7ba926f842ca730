package bulk

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/countd/countd/client"
)

// rowsOf collects the values of a page, grouped by row.
type rowsOf struct {
	patterns []*Pattern        // all patterns of the import
	columns  map[string]string // columns of the keyspace, by their names in the keys or hash fields of Redis
	page     *page
	index    map[client.ID]int // index of each row in page.ops
}

type cell struct {
	id     client.ID
	column string
	name   string // name of the column in the Redis key or field
}

// cellOf returns the cell for the count in a key. It returns false if the key is not to be copied.
func (r *rowsOf) cellOf(key string) (cell, bool) {
	r.page.keys++
	id, name, ok, err := r.match(key)
	column := name
	if r.page.pattern.Column == "" {
		column = r.columns[name]
	}
	if !ok || column == "" {
		r.page.ignored++
		if ok {
			r.page.left.add(name, 1)
		}
		return cell{}, false
	}
	if err != nil {
		r.page.bad = append(r.page.bad, &BadValueError{Key: key, Reason: err.Error()})
		return cell{}, false
	}
	return cell{id, column, name}, true
}

// match matches a key with the page's pattern. If the id in the key is bad, ok is true and err is
// set, unless another pattern matches the key with a possible id.
func (r *rowsOf) match(key string) (id client.ID, column string, ok bool, err error) {
	id, column, ok, err = r.page.pattern.match(key)
	if err == nil {
		return id, column, ok, nil
	}
	if slices.ContainsFunc(r.patterns, func(p *Pattern) bool { return p != r.page.pattern && p.hasID(key) }) {
		return client.ID{}, "", false, nil
	}
	return client.ID{}, column, true, fmt.Errorf("the id %w", err)
}

// expires records a copied key if left, its time to live, is above 0.
func (r *rowsOf) expires(key string, left time.Duration) {
	if left <= 0 {
		return
	}
	if r.page.expiring++; len(r.page.expiringKeys) < expiringKeysMax {
		r.page.expiringKeys = append(r.page.expiringKeys, key)
	}
}

// idOf returns the row id for a hash. It returns false if the hash is not to be copied.
func (r *rowsOf) idOf(key string) (client.ID, bool) {
	r.page.keys++
	id, _, ok, err := r.match(key)
	if err != nil {
		r.page.bad = append(r.page.bad, &BadValueError{Key: key, Reason: err.Error()})
	}
	if !ok {
		r.page.ignored++
	}
	return id, ok && err == nil
}

func (r *rowsOf) put(key, field string, c cell, text string) {
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.page.bad = append(r.page.bad, &BadValueError{Key: key, Field: field, Value: text, Reason: "the value is not a signed 64-bit integer"})
		return
	}
	r.set(c, value)
}

// set sets a count in its row. If Redis returns a key twice, the last value wins.
func (r *rowsOf) set(c cell, value int64) {
	r.page.came.add(c.name, 1)
	at, ok := r.index[c.id]
	if !ok {
		at = len(r.page.ops)
		r.index[c.id] = at
		r.page.ops = append(r.page.ops, client.Op{ID: c.id})
	}
	op := &r.page.ops[at]
	if n := slices.IndexFunc(op.Cells, func(have client.Count) bool { return have.Column == c.column }); n >= 0 {
		op.Cells[n].Value = value
		return
	}
	op.Cells = append(op.Cells, client.Count{Column: c.column, Value: value})
	r.page.values++
}
