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
		if last := d.segs[len(d.segs)-1].Load(); t.rows.Load() > 0 && id <= last.maxID {
			return fmt.Errorf("cannot load page: id %d after %d", id, last.maxID)
		}
		row, old := t.mu.row[:], t.mu.old[:]
		clear(row[copy(row, p.Row(i)):])
		clear(old)
		t.replaceLocked(d.find(id), -1, id, old, row)
	}
	return nil
}
