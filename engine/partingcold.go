package engine

import "slices"

// This file parts rows on disk: the parts share their generation, and nothing is written.

// diskRows are the rows that the segment of a step has on disk. A step reads them once, although it may build the
// segments several times, because a generation never changes.
type diskRows struct {
	of    Generation // nil for none
	first uint64     // the rows have ids first … last
	last  uint64
	page  Page
}

// read reads the rows of a part, which may be nil, unless it is not on disk or d has them already.
func (d *diskRows) read(part *coldPart) error {
	if !part.onDisk() || d.of == part.generation && d.first <= part.first && part.last <= d.last {
		return nil
	}
	d.of = nil
	d.page.clear(part.generation.Width())
	if err := part.load(0, &d.page); err != nil {
		return err
	}
	d.of, d.first, d.last = part.generation, part.first, part.last
	return nil
}

// rows returns the rows of a part that read has read, with width counts each, or more. part may be a
// piece of that part.
func (d *diskRows) rows(part *coldPart, width int) *Page {
	d.page.Widen(width)
	from, _ := slices.BinarySearch(d.page.IDs, part.first)
	to, found := slices.BinarySearch(d.page.IDs, part.last)
	if found {
		to++
	}
	return d.page.slice(from, to)
}

// collect sets m.rows, and the shares of the rows on disk. It returns the rows that move to the arrays of the parts:
// all rows or, if some are on disk, those in memory, including rows of zeros.
func (g *Parting) collect(m *move) (moving *Page) {
	cold := m.from.cold
	if !cold.onDisk() {
		rows, _ := g.from.collectAll(m.from, 0, m.from.widest()) // rows in memory never fail to load
		m.rows = *rows
		return rows
	}
	width := max(m.from.widest(), g.disk.page.Width)
	disk := g.disk.rows(cold, width)
	moving = g.from.collect(m.from, 0, width, true)
	g.from.merged.Merge(moving, disk)
	m.rows = g.from.merged
	whole := *cold
	whole.of = nil
	filters := m.p.by.Filters()
	for _, id := range disk.IDs {
		q := &m.parts[m.p.by.Of(id)]
		if q.share == nil {
			q.share = &coldPart{generation: cold.generation, first: cold.first, last: cold.last, filter: filters[m.p.by.Of(id)], of: &whole}
		}
		q.share.rows++
	}
	return moving
}

// releaseCold releases the rows on disk that the parts have now.
func (m *move) releaseCold() {
	if m.from.cold.onDisk() {
		m.from.cold.release()
	}
}
