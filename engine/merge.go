package engine

import (
	"cmp"
	"slices"
)

// This file merges the rows of a table's parts, whose ids alternate.

// run is a sequence of segments in ascending id order, and the rows that were read but not merged.
type run struct {
	segs   []*segment
	c      collector
	page   Page
	hiding bool      // leave out rows on disk, and include the rows of zeros that hide some
	cold   *coldPart // that of the only segment, if the caller must release it
}

// fill reads segments until there is a row to merge. It reads the first width counts of rows with
// ids at least from; if width is 0, it reads all counts.
func (r *run) fill(from uint64, width int) error {
	for len(r.page.IDs) == 0 && len(r.segs) > 0 {
		seg, w := r.segs[0], width
		if w == 0 {
			w = seg.widest()
		}
		page, err := (*Page)(nil), error(nil)
		if r.hiding && seg.cold.onDisk() {
			page = r.c.collect(seg, from, w, true)
		} else if page, err = r.c.collectAll(seg, from, w); err != nil {
			return err
		}
		r.page, r.segs = *page, r.segs[1:]
	}
	return nil
}

// merge calls fn with the rows of runs with ids from … last in ascending order, in pages of at most
// rowsMax rows, until fn returns an error. It reads as many counts as run.fill. It leaves rows with higher ids in the
// runs.
func merge(runs []*run, from, last uint64, width int, fn func(*Page) error) error {
	var out Page
	for {
		var next *run
		for _, r := range runs {
			if err := r.fill(from, width); err != nil {
				return err
			}
			if len(r.page.IDs) > 0 && r.page.IDs[0] <= last && (next == nil || r.page.IDs[0] < next.page.IDs[0]) {
				next = r
			}
		}
		if len(out.IDs) > 0 && (next == nil || next.page.Width > out.Width || len(out.IDs) == rowsMax) {
			if err := fn(&out); err != nil {
				return err
			}
			out.clear(0)
		}
		if next == nil {
			return nil
		}
		out.Width = max(out.Width, next.page.Width)
		out.add(next.page.IDs[0], next.page.Row(0))
		out.Counts = append(out.Counts, zeros[:out.Width-next.page.Width]...)
		next.page = *next.page.slice(1, len(next.page.IDs))
	}
}

var zeros [ColumnsMax]int64

// coldUnit is a part of a Snapshot that is on disk: the rows of of with ids first … last.
type coldUnit struct {
	of          *coldPart
	first, last uint64
}

// coldOfParts returns the rows on disk of the table's parts, in ascending id order. The shares of one part of the
// table, in all its parts, are that part again: so a snapshot of a half parted table names each generation as one of
// the undivided table does. Of the ids of a unit, at most rowsMax have a row in memory.
func (s *Snapshot) coldOfParts() (units []coldUnit) {
	seen := map[*coldPart]bool{}
	for _, part := range s.parts {
		for _, seg := range part.segs {
			if c := seg.cold; c.onDisk() && !seen[c.of] {
				seen[c.of] = true
				units = s.appendUnits(units, c.of)
			}
		}
	}
	slices.SortFunc(units, func(a, b coldUnit) int { return cmp.Compare(a.first, b.first) })
	return units
}

// appendUnits divides a part so that each unit has at most rowsMax rows in memory.
func (s *Snapshot) appendUnits(units []coldUnit, c *coldPart) []coldUnit {
	runs, rows := make([]*run, len(s.parts)), 0
	for i, part := range s.parts {
		runs[i] = &run{hiding: true}
		for j, seg := range part.segs {
			if last := part.before[(j+1)%len(part.before)]; last >= c.first && (j == 0 || part.before[j] < c.last) {
				runs[i].segs = append(runs[i].segs, seg)
				rows += seg.rowsInMemory()
			}
		}
	}
	first := c.first
	if rows > rowsMax {
		n := 0
		_ = merge(runs, c.first, c.last, 0, func(p *Page) error { // rows in memory never fail to load
			for _, id := range p.IDs {
				if n++; n > rowsMax {
					units = append(units, coldUnit{c, first, id - 1})
					first, n = id, 1
				}
			}
			return nil
		})
	}
	return append(units, coldUnit{c, first, c.last})
}

// partsOfParts calls fn with all rows of the table's parts, as Parts does. It calls hot with pages of rows that are
// only in memory, and with rows of zeros, which it should leave out.
func (s *Snapshot) partsOfParts(hot func(*Page) error, fn func(*Part) error) error {
	runs := s.runs(true)
	for _, u := range s.coldOfParts() {
		if u.first > 0 {
			if err := merge(runs, 0, u.first-1, 0, hot); err != nil {
				return err
			}
		}
		page := &Page{Width: 1}
		if err := merge(runs, 0, u.last, 0, page.append); err != nil {
			return err
		}
		if err := fn(u.of.part(page, u.first, u.last)); err != nil {
			return err
		}
	}
	return merge(runs, 0, 1<<64-1, 0, hot)
}

// append appends rows with higher ids. It makes p as wide as they are. It returns nil.
func (p *Page) append(rows *Page) error {
	p.Widen(rows.Width)
	for i, id := range rows.IDs {
		p.add(id, rows.Row(i))
		p.Counts = append(p.Counts, zeros[:p.Width-rows.Width]...)
	}
	return nil
}

// runs returns a run for each of the table's parts.
func (s *Snapshot) runs(hiding bool) []*run {
	runs := make([]*run, len(s.parts))
	for i, part := range s.parts {
		runs[i] = &run{segs: part.segs, hiding: hiding}
	}
	return runs
}

// pageOfParts returns the rows of runs with ids from … last, and their first width counts.
func pageOfParts(runs []*run, from, last uint64, width int) (*Page, error) {
	all := &Page{Width: width}
	err := merge(runs, from, last, width, all.append)
	return all, err
}

// copySegments returns a run for each part, with a copy of the segment that owns id. last is the
// last id that all of them own, and whose row is in a part. The caller holds the table's mutex, and releases the cold
// parts of the runs.
func (p *parted) copySegments(id uint64) (runs []*run, last uint64) {
	p.lock()
	defer p.unlock()
	if last = p.above - 1; p.whole {
		last = 1<<64 - 1
	}
	for _, table := range p.tables {
		d := table.dir.Load()
		i := d.find(id)
		last = min(last, d.last(i))
		seg := d.segs[i].Load().clone(0)
		seg.cold.retain()
		runs = append(runs, &run{segs: []*segment{seg}, cold: seg.cold})
	}
	return runs, last
}
