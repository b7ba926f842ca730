package members

import (
	"encoding/binary"
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// begin keeps the store open and the group's generation on disk until the caller calls done.
func (g *Group) begin() (done func(), err error) {
	release, err := g.store.use()
	if err != nil {
		return nil, err
	}
	g.reading.RLock()
	if g.broken != nil {
		g.reading.RUnlock()
		release()
		return nil, g.broken
	}
	return func() { g.reading.RUnlock(); release() }, nil
}

// get returns the stamp of a pair on disk, 0 if there is none.
func get(from pebble.Reader, at prefix, p Pair) (Stamp, error) {
	key := at.member(p)
	value, closer, err := from.Get(key[:])
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, damaged(err)
	}
	defer closer.Close()
	if len(value) != stampBytes {
		return 0, damaged(errors.New("a stamp of another length"))
	}
	return stampAt(value), nil
}

// Contains fills in, len(rows) values: whether the member is in the set of each row's
// column.
func (g *Group) Contains(member uint64, column uint8, rows []uint64, in []bool) error {
	done, err := g.begin()
	if err != nil {
		return err
	}
	defer done()
	for i, row := range rows {
		at, err := get(g.store.db, g.at, Pair{Row: row, Member: member, Column: column})
		if err != nil {
			return err
		}
		in[i] = at > g.dead[row]
	}
	return nil
}

// Members returns a page of the members of a row, newest first.
func (g *Group) Members(row uint64, column uint8, page Page) (List, error) {
	done, err := g.begin()
	if err != nil {
		return List{}, err
	}
	defer done()
	deadTo := g.dead[row]
	return g.list(keyTime, row, column, page, func(line Entry) bool { return line.At > deadTo })
}

// Rows returns a page of the rows that a member is in, newest first. Among equal stamps the
// page begins at the row page.After.ID, not behind it.
func (g *Group) Rows(member uint64, column uint8, page Page) (List, error) {
	done, err := g.begin()
	if err != nil {
		return List{}, err
	}
	defer done()
	return g.list(keyOf, member, column, page, func(line Entry) bool { return line.At > g.dead[line.ID] })
}

// list reads one page. A page of members begins behind page.After, one of rows at it: the
// caller knows which row of this shard is the first behind one of another.
func (g *Group) list(kind byte, of uint64, column uint8, page Page, alive func(Entry) bool) (l List, err error) {
	var start [listBytes]byte
	g.at.put(start[:], kind)
	binary.BigEndian.PutUint64(start[prefixBytes:], of)
	start[prefixBytes+8] = column
	first, end := start[:], after(start[:])
	if page.Continues {
		key := g.at.byTime(kind, of, column, page.After)
		if first = key[:]; kind == keyTime {
			first = append(first, 0) // the least key behind it
		}
	}
	err = eachFrom(g.store.db, first, end, func(key, _ []byte) (bool, error) {
		_, _, line, err := parseLine(key)
		if err != nil || !alive(line) {
			return kind == keyOf, err // older members of a deleted row are gone too
		}
		if len(l.Entries) == page.Limit {
			l.More = true
			return false, nil
		}
		l.Entries = append(l.Entries, line)
		return true, nil
	})
	return l, err
}
