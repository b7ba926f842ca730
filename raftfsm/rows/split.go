package rows

import "github.com/countd/countd/engine"

// Split copies each row of a table, including rows on disk, to the table of its part. The tables of
// the parts must be empty.
func Split(from *engine.Table, partOf func(key uint64) int, parts []*engine.Table) error {
	snapshot := from.Snapshot()
	defer snapshot.Close()
	pages := make([]engine.Page, len(parts)) // for each part, rows that are not in its table yet; a full page becomes a segment
	load := func(part, width int) (err error) {
		p := &pages[part]
		if len(p.IDs) > 0 {
			err = parts[part].Load(p)
		}
		p.IDs, p.Width, p.Counts = p.IDs[:0], width, p.Counts[:0]
		return err
	}
	err := snapshot.Pages(func(page *engine.Page) error {
		for i, key := range page.IDs {
			part := partOf(key)
			p := &pages[part]
			if p.Width < page.Width || len(p.IDs) == engine.SegmentRowsMax {
				if err := load(part, page.Width); err != nil {
					return err
				}
			}
			p.IDs, p.Counts = append(p.IDs, key), append(p.Counts, page.Row(i)...)
			p.Counts = append(p.Counts, make([]int64, p.Width-page.Width)...)
		}
		return nil
	})
	for part := 0; part < len(parts) && err == nil; part++ {
		err = load(part, 0)
	}
	return err
}
