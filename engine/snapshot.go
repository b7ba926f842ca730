package engine

import (
	"slices"
	"sync"
)

// Snapshot is a table as it was at one moment. The writer goes on meanwhile: before it first
// changes a segment of the snapshot, it copies that segment. After Close the writer makes no such
// copies.
type Snapshot struct {
	table  *Table
	epoch  uint64
	segs   []*segment
	before []uint64    // as directory.before of segs
	parts  []*Snapshot // of the table's parts, whose rows come before those of segs
	closed sync.Once

	rows   int64
	digest uint64
}

// Snapshot captures the table between two calls of Apply. It copies only a pointer per segment.
func (t *Table) Snapshot() *Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := captureLocked(t)
	if p := t.dir.Load().parted(); p != nil {
		p.lock()
		defer p.unlock()
		for _, table := range p.tables {
			part := captureLocked(table)
			s.parts = append(s.parts, part)
			s.rows, s.digest = s.rows+part.rows, s.digest+part.digest
		}
	}
	return s
}

// captureLocked captures a table without its parts.
func captureLocked(t *Table) *Snapshot {
	d := t.dir.Load()
	s := &Snapshot{table: t, epoch: t.mu.epoch, rows: t.rows.Load(), digest: t.digest.Load()}
	s.segs, s.before = make([]*segment, len(d.segs)), d.before
	for i := range d.segs {
		s.segs[i] = d.segs[i].Load()
		s.segs[i].cold.retain()
	}
	t.mu.captured = append(t.mu.captured, s.epoch)
	t.mu.epoch++
	return s
}

// Close releases the snapshot. Further calls do nothing.
func (s *Snapshot) Close() {
	s.closed.Do(func() {
		s.table.mu.Lock()
		i := slices.Index(s.table.mu.captured, s.epoch)
		s.table.mu.captured = slices.Delete(s.table.mu.captured, i, i+1)
		s.table.mu.Unlock()
		for _, seg := range s.segs {
			seg.cold.release()
		}
		s.segs = nil
		for _, part := range s.parts {
			part.Close()
		}
	})
}

// Rows and Digest return the values of the captured table.
func (s *Snapshot) Rows() int64    { return s.rows }
func (s *Snapshot) Digest() uint64 { return s.digest }

// Pages calls fn with all rows in ascending id order, in pages of about a segment. It reads cold rows
// from disk. A page is valid only during the call. Pages stops at the first error of fn or of a read,
// and returns it.
func (s *Snapshot) Pages(fn func(*Page) error) error {
	if err := merge(s.runs(false), 0, 1<<64-1, 0, fn); err != nil {
		return err
	}
	var c collector
	for _, seg := range s.segs {
		p, err := c.collectAll(seg, 0, seg.widest())
		if err != nil {
			return err
		}
		if len(p.IDs) > 0 {
			if err := fn(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// Part is a set of adjacent rows: those of Page, and those of the generation Cold with ids First …
// Last that Filter selects. If both have a row of an id, that of Page counts, even if it is a row of zeros.
type Part struct {
	Page        *Page
	Cold        Generation // may be nil; then Page has no rows of zeros
	First, Last uint64     // set if Cold is; all ids of Page are in this range
	Filter      Filter     // if it is set, Rows is the number of rows of Cold, as in coldPart
	Rows        int
}

// part returns the cold rows with ids first … last as a Part.
func (c *coldPart) part(page *Page, first, last uint64) *Part {
	return &Part{Page: page, Cold: c.generation, First: first, Last: last, Filter: c.filter, Rows: c.rows}
}

// Parts calls fn with all rows in ascending id order. It reads no rows from disk, but unpacks
// sealed rows. A part is valid only during the call. Parts stops at fn's first error and returns
// it.
func (s *Snapshot) Parts(fn func(*Part) error) error {
	hot := func(p *Page) error {
		var some Page
		some.clear(p.Width)
		for i, id := range p.IDs {
			if row := p.Row(i); !isZeroRow(row) {
				some.add(id, row)
			}
		}
		if len(some.IDs) == 0 {
			return nil
		}
		return fn(&Part{Page: &some})
	}
	if err := s.partsOfParts(hot, fn); err != nil {
		return err
	}
	var c collector
	for _, seg := range s.segs {
		if !seg.cold.onDisk() {
			p, err := c.collectAll(seg, 0, seg.widest())
			if err != nil {
				return err
			}
			if len(p.IDs) == 0 {
				continue
			}
			if err := fn(&Part{Page: p}); err != nil {
				return err
			}
			continue
		}
		p := c.collect(seg, 0, seg.columns(), true)
		// The segment may own ids below and above the range of its cold part.
		from, _ := slices.BinarySearch(p.IDs, seg.cold.first)
		to, found := slices.BinarySearch(p.IDs, seg.cold.last)
		if found {
			to++
		}
		if err := hot(p.slice(0, from)); err != nil {
			return err
		}
		if err := fn(seg.cold.part(p.slice(from, to), seg.cold.first, seg.cold.last)); err != nil {
			return err
		}
		if err := hot(p.slice(to, len(p.IDs))); err != nil {
			return err
		}
	}
	return nil
}

// Scan calls fn with pages of all rows with ids from start on, in ascending order, until fn returns
// false. Each row has width counts. A page shows its rows as they were at one moment; the next page
// shows a later moment. Scan omits rows whose first width counts are zero. A page is valid only
// during the call of fn. Scan reads cold rows from disk, and returns an error if it cannot.
func (t *Table) Scan(start uint64, width int, fn func(*Page) bool) error {
	var c collector
	for {
		seg, parts, last := t.copySegment(start)
		var p *Page
		var err error
		if seg == nil {
			p, err = pageOfParts(parts, start, last, width)
			for _, r := range parts {
				r.cold.release()
			}
		} else {
			p, err = c.collectAll(seg, start, width)
			seg.cold.release()
		}
		if err != nil {
			return err
		}
		if len(p.IDs) > 0 && !fn(p) || last == 1<<64-1 {
			return nil
		}
		start = last + 1
	}
}

// copySegment returns a copy of the segment that owns id, and the last id that the segment owns.
// The caller must release the copy's cold part. If the row of id is in a part, copySegment returns
// instead a run for each part, with a copy of a segment, and the last id that all these segments
// own. The caller must release the cold parts of the runs. Copying blocks writes only for microseconds;
// sorting the rows under the lock would block them for longer.
func (t *Table) copySegment(id uint64) (own *segment, parts []*run, last uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	if p := d.parted(); p != nil && p.has(id) {
		parts, last = p.copySegments(id)
		return nil, parts, last
	}
	i := d.find(id)
	s := d.segs[i].Load().clone(t.mu.epoch)
	s.cold.retain()
	return s, nil, d.last(i)
}

// collector copies the rows of segments into a page. It reuses its memory.
type collector struct {
	slots              []slotID
	page, cold, merged Page
}

// collect returns the rows of a segment's array whose ids are at least from. The segment must not
// change: it must be a captured one or a copy. If zeros is set, the result includes rows whose
// first width counts are zero.
func (c *collector) collect(s *segment, from uint64, width int, zeros bool) *Page {
	c.slots = c.slots[:0]
	s.each(func(slot int, id uint64) {
		if id >= from {
			c.slots = append(c.slots, slotID{id, int32(slot)})
		}
	})
	sortByID(c.slots)
	c.page.clear(width)
	var row [ColumnsMax]int64
	for _, r := range c.slots {
		s.load(int(r.slot), row[:width])
		if zeros || !isZeroRow(row[:width]) {
			c.page.add(r.id, row[:width])
		}
	}
	return &c.page
}

// Cold calls fn with each part that is on disk, in ascending id order. The parts are those of Parts, with nil Pages.
func (s *Snapshot) Cold(fn func(*Part)) {
	for _, u := range s.coldOfParts() {
		fn(u.of.part(nil, u.first, u.last))
	}
	for _, seg := range s.segs {
		if seg.cold.onDisk() {
			fn(seg.cold.part(nil, seg.cold.first, seg.cold.last))
		}
	}
}

// collectAll is like collect, but includes sealed and cold rows. Rows of zeros are left out.
func (c *collector) collectAll(s *segment, from uint64, width int) (*Page, error) {
	if s.cold == nil || from > s.cold.last {
		return c.collect(s, from, width, false), nil
	}
	c.cold.clear(width)
	if err := s.cold.load(from, &c.cold); err != nil {
		return nil, err
	}
	c.merged.Merge(c.collect(s, from, width, true), &c.cold)
	return &c.merged, nil
}
