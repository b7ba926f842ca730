package engine

import "slices"

// This file merges the rows of a table's parts, whose ids alternate.

// run is a sequence of segments in ascending id order, and the rows that were read but not merged.
type run struct {
	segs []*segment
	c    collector
	page Page
}

// fill reads segments until there is a row to merge. It reads the first width counts of rows with
// ids from … last; if width is 0, it reads all counts.
func (r *run) fill(from, last uint64, width int) error {
	for len(r.page.IDs) == 0 && len(r.segs) > 0 {
		w := width
		if w == 0 {
			w = r.segs[0].widest()
		}
		page, err := r.c.collectAll(r.segs[0], from, w)
		if err != nil {
			return err
		}
		r.page, r.segs = *page, r.segs[1:]
		n, found := slices.BinarySearch(r.page.IDs, last)
		if found {
			n++
		}
		r.page = *r.page.slice(0, n)
	}
	return nil
}

// merge calls fn with the rows of runs with ids from … last in ascending order, in pages of at most
// rowsMax rows, until fn returns an error. It reads as many counts as run.fill.
func merge(runs []*run, from, last uint64, width int, fn func(*Page) error) error {
	var out Page
	for {
		var next *run
		for _, r := range runs {
			if err := r.fill(from, last, width); err != nil {
				return err
			}
			if len(r.page.IDs) > 0 && (next == nil || r.page.IDs[0] < next.page.IDs[0]) {
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

// mergeParts calls fn with pages of all rows of the parts.
func (s *Snapshot) mergeParts(fn func(*Page) error) error {
	runs := make([]*run, len(s.parts))
	for i, part := range s.parts {
		runs[i] = &run{segs: part.segs}
	}
	return merge(runs, 0, 1<<64-1, 0, fn)
}

// pageOfParts returns the rows of runs with ids from … last, and their first width counts.
func pageOfParts(runs []*run, from, last uint64, width int) (*Page, error) {
	all := &Page{Width: width}
	err := merge(runs, from, last, width, func(p *Page) error {
		all.IDs, all.Counts = append(all.IDs, p.IDs...), append(all.Counts, p.Counts...)
		return nil
	})
	return all, err
}

// copySegments returns a run for each part, with a copy of the segment that owns id. last is the
// last id that all of them own, and whose row is in a part. The caller holds the table's mutex.
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
		runs = append(runs, &run{segs: []*segment{d.segs[i].Load().clone(0)}})
	}
	return runs, last
}
