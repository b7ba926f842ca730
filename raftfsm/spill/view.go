package spill

import (
	"slices"

	"github.com/countd/countd/engine/cold"
)

// View walks all bodies as they were at one moment, by the hashes of their keys. It also reads the
// bodies on disk.
type View struct {
	Keys uint64 // in total

	cfg    *Config
	ranges [][]*cursor       // tables with the keys of a range of hashes, ascending by range; those that have keys left
	out    *cold.RecordsView // nil for none
	body   []byte            // reused for bodies read from disk
}

// cursor is the next key of a table.
type cursor struct {
	pages []*page // begins with the page of the key
	i     int     // index of the key in the page
	hash  uint64  // hash of the key
}

// settle reports whether the table has a key left.
func (c *cursor) settle() bool {
	for len(c.pages) > 0 && c.i == c.pages[0].keys() {
		c.pages[0] = nil // free it, because writes or a parting may have replaced it
		c.pages, c.i = c.pages[1:], 0
	}
	if len(c.pages) > 0 {
		c.hash = Hash(c.pages[0].key(c.i))
	}
	return len(c.pages) > 0
}

// Capture captures pages and their records at one moment. The caller must close the view.
func (b *Bodies) Capture() *View {
	b.pages.mu.Lock()
	defer b.pages.mu.Unlock()
	v := &View{Keys: uint64(b.pages.keys.Load()), cfg: &b.shard.cfg}
	for _, tables := range b.pages.tables() {
		var cursors []*cursor
		for _, t := range tables {
			if c := (&cursor{pages: t.pages()}); c.settle() {
				cursors = append(cursors, c)
			}
		}
		if len(cursors) > 0 {
			v.ranges = append(v.ranges, cursors)
		}
	}
	if b.out != nil && b.pages.marks.Load() > 0 {
		v.out = b.out.records.Capture()
	}
	return v
}

// More reports whether there is another body.
func (v *View) More() bool { return len(v.ranges) > 0 }

// Next returns the next body, which is valid until the next call. Call it only if More returns
// true. cold.ErrDamaged means that the body cannot be read.
func (v *View) Next() (key uint64, body []byte, err error) {
	tables, least := v.ranges[0], 0
	for i, c := range tables {
		if c.hash < tables[least].hash {
			least = i
		}
	}
	c := tables[least]
	key, body = c.pages[0].key(c.i), c.pages[0].body(c.i)
	if c.i++; !c.settle() {
		if v.ranges[0] = slices.Delete(tables, least, least+1); len(v.ranges[0]) == 0 {
			v.ranges = v.ranges[1:]
		}
	}
	if IsMark(body) {
		body, err = v.read(key, body)
	}
	return key, body, err
}

// read reads the body for which a mark stands. It is valid until the next call.
func (v *View) read(key uint64, mark []byte) ([]byte, error) {
	b, err := v.out.Get(v.body[:0], Hash(key), versionOf(mark))
	if err != nil {
		return nil, v.cfg.lost("read", key, err)
	}
	v.body = padded(b)
	return v.body, nil
}

// Close releases the view. Next must not be called any more.
func (v *View) Close() {
	v.ranges = nil
	if v.out != nil {
		_ = v.out.Close() // nobody needs the records any more
	}
}
