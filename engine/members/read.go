package members

import (
	"encoding/binary"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// begin keeps the store open, and the group's generation in use, until the caller calls done. It
// returns an error if the sets are unusable.
func (g *Group) begin() (done func(), err error) {
	release, err := g.store.db.Use()
	if err != nil {
		return nil, err
	}
	g.reading.RLock()
	if err := g.broken; err != nil {
		g.reading.RUnlock()
		release()
		return nil, err
	}
	return func() { g.reading.RUnlock(); release() }, nil
}

// lookup finds pairs on disk.
type lookup struct {
	it *pebble.Iterator
	at prefix
}

// lookup returns a lookup of pairs. If onDisk is set, it finds flushed pairs only. The caller must
// have called Use, and must keep the store in use until it closes l.it.
func (g *Group) lookup(onDisk bool) (l lookup, err error) {
	first := g.at.kind(keyMember)
	l.at = g.at
	l.it, err = g.store.iterate(first, scarce.PrefixEnd(first), onDisk)
	return l, damaged(err)
}

// stamp returns the stamp of a pair, 0 if there is none.
func (l lookup) stamp(p Pair) (Stamp, error) {
	key := l.at.member(p, 0)
	if !l.it.SeekPrefixGE(key[:]) {
		return 0, damaged(l.it.Error())
	}
	_, at, err := parsePair(l.it.Key())
	return at, err
}

// Contains stores in contained[i] whether member is in the set of rows[i] and column. contained
// must have at least len(rows) values.
func (g *Group) Contains(member uint64, column uint8, rows []uint64, contained []bool) error {
	done, err := g.begin()
	if err != nil {
		return err
	}
	defer done()
	pair := func(row uint64) Pair { return Pair{Row: row, Member: member, Column: column} }
	clear(contained[:len(rows)])
	f := g.known.now.Load()
	found := 0
	for _, row := range rows {
		if f.mayHave(pair(row)) {
			found++
		}
	}
	g.store.countLookups(len(rows), found)
	if found == 0 {
		return nil
	}
	l, err := g.lookup(false)
	if err != nil {
		return err
	}
	if g.known.now.Load() != f {
		f = nil // f may lack pairs that l reads
	}
	for i, row := range rows {
		if !f.mayHave(pair(row)) { // check again: by now f is nil or has all pairs that l reads
			continue
		}
		at, failed := l.stamp(pair(row))
		if err = failed; err != nil {
			break
		}
		contained[i] = at > g.dead[row]
	}
	return damaged(errors.Join(err, l.it.Close()))
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
// page begins at the row page.After.ID, not after it.
func (g *Group) Rows(member uint64, column uint8, page Page) (List, error) {
	done, err := g.begin()
	if err != nil {
		return List{}, err
	}
	defer done()
	return g.list(keyOf, member, column, page, func(line Entry) bool { return line.At > g.dead[line.ID] })
}

// list reads one page. A page of members begins after page.After, and a page of rows at page.After:
// that row may be in another shard, so the caller computes where the rows of this shard begin.
func (g *Group) list(kind byte, of uint64, column uint8, page Page, alive func(Entry) bool) (l List, err error) {
	var start [listBytes]byte
	g.at.put(start[:], kind)
	binary.BigEndian.PutUint64(start[prefixBytes:], of)
	start[prefixBytes+8] = column
	first, end := start[:], scarce.PrefixEnd(start[:])
	if page.Continues {
		key := g.at.byTime(kind, of, column, page.After)
		if first = key[:]; kind == keyTime {
			first = append(first, 0) // the key right after it
		}
	}
	it, err := g.store.iterate(start[:], end, false)
	if err != nil {
		return List{}, damaged(err)
	}
	for valid := it.SeekPrefixGE(first); valid && err == nil; valid = it.Next() {
		var line Entry
		if _, _, line, err = parseLine(it.Key()); err != nil {
			break
		}
		if !alive(line) {
			if kind == keyTime { // older members of the row are deleted too
				break
			}
			continue
		}
		if l.More = len(l.Entries) == page.Limit; l.More {
			break
		}
		l.Entries = append(l.Entries, line)
	}
	return l, damaged(errors.Join(err, it.Error(), it.Close()))
}
