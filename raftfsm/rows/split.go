package rows

import (
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

// Split returns for each table a table for each part, with the rows of the part. It takes the tables
// that a parting by s.By has made. If rows are left to move, it moves them. After that, the caller
// must not write to the tables any more. If they were parted in another way, or s
// has no Partition, Split copies all rows, also those on disk, and the tables stay as they are. It
// copies no more than raftfsm.SplitRowsMax rows. A part that is adopted keeps its tables.
func (p *Parting) Split(s *raftfsm.Split, tables ...*engine.Table) ([][]*engine.Table, error) {
	all := make([][]*engine.Table, len(tables))
	if s.Adopts != nil {
		for i, t := range tables {
			all[i] = []*engine.Table{t}
		}
		return all, nil
	}
	copied := s.By.Parts == 0 || s.Copies
	if !copied {
		err := p.finish(s.By, tables...)
		if copied = errors.Is(err, engine.ErrParted); err != nil && !copied {
			return nil, err
		}
	}
	if err := mayCopy(s, tables); copied && err != nil {
		return nil, err
	}
	for i, t := range tables {
		var err error
		if copied {
			all[i], err = copyParts(t, s)
		} else {
			all[i], err = engine.Split(t, s.By)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// mayCopy returns an error if the tables have more rows than Split may copy.
func mayCopy(s *raftfsm.Split, tables []*engine.Table) error {
	rows := uint64(0)
	for _, t := range tables {
		rows += t.Stats().Rows
	}
	switch {
	case rows <= raftfsm.SplitRowsMax:
		return nil
	case s.Copies:
		return fmt.Errorf("%w, and %d rows are too many to copy", raftfsm.ErrUneven, rows)
	}
	return fmt.Errorf("%w: %d rows, parted in another way, and the most that may be copied are %d", raftfsm.ErrTooLarge, rows, raftfsm.SplitRowsMax)
}

// copyParts copies each row of a table to the table of its part.
func copyParts(from *engine.Table, s *raftfsm.Split) ([]*engine.Table, error) {
	parts := make([]*engine.Table, len(s.Parts))
	for i := range parts {
		parts[i] = engine.New()
	}
	if s.By.Parts > 0 {
		for i, class := range s.By.Classes() {
			parts[i] = engine.NewOf(class)
		}
	}
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
			part := s.PartOf(key)
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
	return parts, err
}
