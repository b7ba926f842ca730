package engine

import "fmt"

// Load adds a page of a snapshot to a table that holds only smaller ids, as
// Snapshot.Pages gave it. Nobody else may write to the table. An error leaves
// the table with some of the rows.
func (t *Table) Load(p *Page) error {
	t.mu.Lock()
	defer t.unlock()
	if p.Width < 1 || p.Width > ColumnsMax || len(p.Counts) != len(p.IDs)*p.Width {
		return fmt.Errorf("cannot load page: %d counts for %d ids of width %d", len(p.Counts), len(p.IDs), p.Width)
	}
	for i, id := range p.IDs {
		d := t.dir.Load()
		if last := d.segs[len(d.segs)-1].Load(); last.rows > 0 && id <= last.maxID || id < d.first(len(d.segs)-1) || last.cold.mayHave(id) {
			return fmt.Errorf("cannot load page: id %d after %d", id, last.maxID)
		}
		row, old := t.mu.row[:], t.mu.old[:]
		clear(row[copy(row, p.Row(i)):])
		clear(old)
		t.replaceLocked(d.find(id), -1, id, old, row)
	}
	return nil
}

// LoadCold adds a part of a snapshot, as Snapshot.Parts gave it, to a table that
// holds only smaller ids. It takes the caller's count of the generation, also when
// it fails. It does not read the cold rows, so rows and digest of the table do not
// count them: Adopt sets both once all is loaded.
func (t *Table) LoadCold(p *Part) error {
	t.mu.Lock()
	defer t.unlock()
	d := t.dir.Load()
	end := len(d.segs) - 1
	last := d.segs[end].Load()
	if p.Last < p.First || last.cold != nil || last.rows > 0 && p.First <= last.maxID || p.First < d.first(end) {
		p.Cold.Release()
		return fmt.Errorf("cannot load cold rows %d…%d: they do not lie behind those that were", p.First, p.Last)
	}
	n := newSegment(newGeometry(bucketsMin, false, p.First, 0), bucketsMin, 1, t.mu.epoch)
	n.cold = &coldPart{p.Cold, p.First, p.Last}
	if last.rows == 0 {
		d.segs[end].Store(n)
	} else {
		d = d.with(end, nil, p.First, n)
		end++
	}
	if p.Last < 1<<64-1 { // what comes next has a segment of its own
		next := newSegment(newGeometry(bucketsMin, false, p.Last+1, 0), bucketsMin, 1, t.mu.epoch)
		d = d.with(end, nil, p.Last+1, next)
	}
	t.dir.Store(d)
	t.addColdLocked(p.Last)
	for i, id := range p.Page.IDs {
		row := t.mu.row[:]
		clear(row[copy(row, p.Page.Row(i)):])
		if id < p.First || id > p.Last || i > 0 && id <= p.Page.IDs[i-1] {
			return fmt.Errorf("cannot load cold rows %d…%d: row %d in memory", p.First, p.Last, id)
		}
		t.warmLocked(id, row)
	}
	return nil
}

// Adopt sets rows and digest of a table into which cold parts were loaded.
func (t *Table) Adopt(rows int64, digest uint64) {
	t.mu.Lock()
	defer t.unlock()
	t.rows.Store(rows)
	t.mu.digest = digest
}

// Close releases what the table holds of cold rows. Nobody may write to it, freeze
// or warm any more; reads of cold rows may fail from then on.
func (t *Table) Close() {
	for _, part := range t.cold() {
		part.release()
	}
}

// cold returns the cold parts of all segments.
func (t *Table) cold() (parts []*coldPart) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	for i := range d.segs {
		if part := d.segs[i].Load().cold; part != nil {
			parts = append(parts, part)
		}
	}
	return parts
}
