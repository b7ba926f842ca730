package bulk

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/countd/countd/client"
)

// rowsOf gathers the values of a page into rows.
type rowsOf struct {
	patterns []*Pattern        // all of the import
	columns  map[string]string // by the names of their counts in keys and hashes
	page     *page
	index    map[client.ID]int // in page.ops
}

type cell struct {
	id     client.ID
	column string
	name   string // the column's name in its key or field
}

// cellOf returns the cell that a key counts, and false if the key is not to be copied.
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

// match matches a key with the page's pattern. A key with a bad id matches too, unless another
// pattern matches it with a number.
func (r *rowsOf) match(key string) (id client.ID, column string, ok bool, err error) {
	id, column, ok, err = r.page.pattern.match(key)
	if err == nil {
		return id, column, ok, nil
	}
	if slices.ContainsFunc(r.patterns, func(p *Pattern) bool { return p != r.page.pattern && p.hasNumber(key) }) {
		return 0, "", false, nil
	}
	return 0, column, true, fmt.Errorf("the id %w", err)
}

// expires records that a copied key has a time to live.
func (r *rowsOf) expires(key string, left time.Duration) {
	if left <= 0 {
		return
	}
	if r.page.expiring++; len(r.page.expiringKeys) < expiringKeysMax {
		r.page.expiringKeys = append(r.page.expiringKeys, key)
	}
}

// idOf returns the id of the row in a hash, and false if the hash is not to be copied.
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

// set sets a count in its row. If Redis returns a key twice, the last value counts.
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
