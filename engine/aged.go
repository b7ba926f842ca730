package engine

// Least returns a lower bound of the ids that the first segment has in memory, or 0 if it has no
// row in memory. A later write may add a lower id.
func (t *Table) Least() uint64 {
	if p := t.dir.Load().parted(); p != nil {
		least, found := uint64(1<<64-1), false
		for _, table := range p.tables {
			if table.rows.Load() > 0 {
				least, found = min(least, table.Least()), true
			}
		}
		if found {
			return least
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.dir.Load().segs[0].Load()
	packed := s.cold.sealed()
	if s.rows == 0 && packed == nil {
		return 0
	}
	least := uint64(1<<64 - 1)
	if packed != nil {
		least = packed.minID
	}
	s.each(func(_ int, id uint64) { least = min(least, id) })
	return least
}

// Aged returns the number of rows in all segments for whose range of ids isOld returns true. It
// skips segments with rows on disk, and the last segment. It includes segments that are being
// written to.
func (t *Table) Aged(isOld func(first, last uint64) bool) (rows int) {
	if p := t.dir.Load().parted(); p != nil {
		for _, table := range p.tables {
			rows += table.Aged(isOld)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	for i := range len(d.segs) - 1 {
		if s := d.segs[i].Load(); !s.cold.onDisk() && isOld(d.first(i), s.highest()) {
			rows += s.rowsInMemory()
		}
	}
	return rows
}

// InMemory returns the number of rows in memory with ids first … last, and their lowest id or an id
// near it. A sealed row counts until its segment is sealed again, even if it was deleted or if a
// row in the segment hides it.
func (t *Table) InMemory(first, last uint64) (id uint64, rows int) {
	if p := t.dir.Load().parted(); p != nil {
		for _, table := range p.tables {
			if least, n := table.InMemory(first, last); n > 0 {
				if rows == 0 || least < id {
					id = least
				}
				rows += n
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	for i := d.find(first); i < len(d.segs) && (i == 0 || d.first(i) <= last); i++ {
		s := d.segs[i].Load()
		if rows > 0 && d.first(i) >= first && s.highest() <= last {
			rows += s.rowsInMemory()
			continue
		}
		least := uint64(1<<64 - 1)
		see := func(row uint64) {
			if row >= first && row <= last {
				rows, least = rows+1, min(least, row)
			}
		}
		before := rows
		if packed := s.cold.sealed(); packed != nil {
			p := Page{Width: packed.Width()}
			_ = packed.Load(first, last, &p) // rows in memory never fail to load
			for _, row := range p.IDs {
				if s.cold.mayHave(row) {
					see(row)
				}
			}
		}
		if s.each(func(_ int, row uint64) { see(row) }); before == 0 && rows > 0 {
			id = least
		}
	}
	return id, rows
}
