package engine

import (
	"slices"
	"sync"
)

// Snapshot is a table as it was at one moment, while writes go on. It holds
// the segments of that moment: a segment that is written to afterwards is
// copied first, once. Close it to stop that.
type Snapshot struct {
	table  *Table
	epoch  uint64
	segs   []*segment
	closed sync.Once

	rows   int64
	digest uint64
}

// Snapshot captures the table between two Apply calls. It copies one pointer a
// segment.
func (t *Table) Snapshot() *Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	s := &Snapshot{table: t, epoch: t.mu.epoch, rows: t.rows.Load(), digest: t.digest.Load()}
	s.segs = make([]*segment, len(d.segs))
	for i := range d.segs {
		s.segs[i] = d.segs[i].Load()
	}
	t.mu.captured = append(t.mu.captured, s.epoch)
	t.mu.epoch++
	return s
}

// Close releases the snapshot. Closing again does nothing.
func (s *Snapshot) Close() {
	s.closed.Do(func() {
		s.table.mu.Lock()
		defer s.table.mu.Unlock()
		i := slices.Index(s.table.mu.captured, s.epoch)
		s.table.mu.captured = slices.Delete(s.table.mu.captured, i, i+1)
		s.segs = nil
	})
}

// Rows and Digest are those of the captured table.
func (s *Snapshot) Rows() int64    { return s.rows }
func (s *Snapshot) Digest() uint64 { return s.digest }

// Page is some rows in ascending id order. Row i holds Width counts from
// Counts[i*Width]; no row is all zero.
type Page struct {
	IDs    []uint64
	Width  int
	Counts []int64
}

// Row returns the counts of row i.
func (p *Page) Row(i int) []int64 { return p.Counts[i*p.Width : (i+1)*p.Width] }

// Pages calls fn with all rows in ascending id order, a segment's rows a page.
// A page is valid during the call only. It stops at fn's first error and
// returns it.
func (s *Snapshot) Pages(fn func(*Page) error) error {
	var c collector
	for _, seg := range s.segs {
		if p := c.collect(seg, 0, seg.columns()); len(p.IDs) > 0 {
			if err := fn(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// Scan calls fn with rows of ids from on in ascending order, width counts each,
// until fn returns false. Rows of one page are of one moment, different pages
// of different moments; rows whose first width counts are zero are left out. A
// page is valid during the call only.
func (t *Table) Scan(from uint64, width int, fn func(*Page) bool) {
	var c collector
	for {
		seg, last := t.copySegment(from)
		p := c.collect(seg, from, width)
		if len(p.IDs) > 0 && !fn(p) || last == 1<<64-1 {
			return
		}
		from = last + 1
	}
}

// copySegment returns a copy of the segment that owns id, and the last id that
// it owns. Copying holds off writes for microseconds; sorting would for longer.
func (t *Table) copySegment(id uint64) (*segment, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	i := d.find(id)
	return d.segs[i].Load().clone(t.mu.epoch), d.last(i)
}

// collector gathers the rows of segments into a page, reusing its memory.
type collector struct {
	slots []slotID
	page  Page
}

// collect takes a segment that nobody changes: a captured one or a copy.
func (c *collector) collect(s *segment, from uint64, width int) *Page {
	c.slots = c.slots[:0]
	s.each(func(slot int, id uint64) {
		if id >= from {
			c.slots = append(c.slots, slotID{id, int32(slot)})
		}
	})
	sortByID(c.slots)
	p := &c.page
	p.IDs, p.Width, p.Counts = p.IDs[:0], width, p.Counts[:0]
	var row [ColumnsMax]int64
	for _, r := range c.slots {
		s.load(int(r.slot), row[:width])
		if slices.ContainsFunc(row[:width], func(v int64) bool { return v != 0 }) {
			p.IDs = append(p.IDs, r.id)
			p.Counts = append(p.Counts, row[:width]...)
		}
	}
	return p
}
