package engine

// Least returns the least id of the rows that the first segment has in memory, 0 if
// it has none. That segment owns all ids from 0 on, so where it begins says nothing
// of the rows in it. A row that is written later may have a lesser one.
func (t *Table) Least() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	least := uint64(1<<64 - 1)
	s := t.dir.Load().segs[0].Load()
	s.each(func(_ int, id uint64) { least = min(least, id) })
	if s.rows == 0 {
		return 0
	}
	return least
}
