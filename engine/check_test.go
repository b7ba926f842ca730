package engine

import "fmt"

// Check verifies the whole structure: the order of the directory, the windows, the marks and the
// overflow tables, the numbers of rows, and the digest. It also verifies that each row is in
// exactly one of its two buckets. It blocks writes, and reads the cold rows. The error names the
// first fault found.
func (t *Table) Check() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	if len(d.before) != len(d.segs) || d.first(0) != 0 {
		return fmt.Errorf("directory: %d ranges from %d for %d segments", len(d.before), d.first(0), len(d.segs))
	}
	rows, digest, coldParts := int64(0), uint64(0), int64(0)
	for i := range d.segs {
		if d.first(i) > d.last(i) {
			return fmt.Errorf("directory: segment %d owns ids %d…%d", i, d.first(i), d.last(i))
		}
		s := d.segs[i].Load()
		sum, n, err := s.check(d.first(i), d.last(i))
		if err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
		if s.rows == 0 && i < len(d.segs)-1 && s.cold == nil {
			return fmt.Errorf("segment %d of %d is empty", i, len(d.segs))
		}
		coldParts += s.cold.parts()
		rows += int64(n)
		digest += sum
	}
	if coldParts != t.coldParts.Load() {
		return fmt.Errorf("%d segments with cold rows, %d counted", coldParts, t.coldParts.Load())
	}
	if rows != t.rows.Load() {
		return fmt.Errorf("%d rows stored, %d counted", rows, t.rows.Load())
	}
	if err := d.parted().check(t.salts.class); err != nil {
		return err
	}
	if digest != t.digest.Load() {
		return fmt.Errorf("digest of the rows %016x, kept %016x", digest, t.digest.Load())
	}
	return nil
}

// check verifies the tables of the parts, and that each row is in its part. p may be nil.
func (p *parted) check(of Class) error {
	if p == nil {
		return nil
	}
	for i, table := range p.tables {
		if err := table.Check(); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
		var fault error
		table.Scan(0, ColumnsMax, func(page *Page) bool {
			for _, id := range page.IDs {
				if !p.has(id) || p.by.Of(id) != i || !of.Has(id) || !table.salts.class.Has(id) {
					fault = fmt.Errorf("part %d has id %d, frontier %d, whole %v", i, id, p.above, p.whole)
				}
			}
			return true
		})
		if fault != nil {
			return fault
		}
	}
	return nil
}

// check verifies a segment that owns ids first … last. It returns the digest and the number of the
// segment's rows.
func (s *segment) check(first, last uint64) (digest uint64, rows int, err error) {
	if s.seq.Load()&1 != 0 {
		return 0, 0, fmt.Errorf("seq %d is odd while nobody writes", s.seq.Load())
	}
	if err := s.checkEmpty(); err != nil {
		return 0, 0, err
	}
	if s.stride == 0 || s.cold.sealed() != nil && s.cold.sealed().stride != s.stride {
		return 0, 0, fmt.Errorf("stride %d", s.stride)
	}
	seen, wide := make(map[uint64]int, s.rows), 0
	var fault error
	s.each(func(slot int, id uint64) {
		if other, twice := seen[id]; twice {
			fault = fmt.Errorf("id %d in slots %d and %d", id, other, slot)
		}
		seen[id] = slot
		if id < first || id > last || !s.covers(id) || id > s.maxID {
			fault = fmt.Errorf("id %d outside of %d…%d, window %d+%d, largest %d", id, first, last, s.base, s.span, s.maxID)
		} else if got := s.find(s.place(id)); got != slot {
			fault = fmt.Errorf("id %d is in slot %d, but find returns %d", id, slot, got)
		}
		sum, n, zero, err := s.checkRow(slot, id)
		if err != nil {
			fault = err
		}
		if !zero {
			rows++
		}
		digest += sum
		wide += n
	})
	if fault != nil {
		return 0, 0, fault
	}
	if s.rows > SegmentRowsMax {
		return 0, 0, fmt.Errorf("%d rows", s.rows)
	}
	if len(seen) != s.rows {
		return 0, 0, fmt.Errorf("%d rows stored, %d counted", len(seen), s.rows)
	}
	if o := s.over.Load(); o != nil && o.used != wide || o == nil && wide > 0 {
		return 0, 0, fmt.Errorf("%d marks in rows, overflow table %+v", wide, o)
	}
	if s.cold == nil {
		return digest, rows, nil
	}
	sum, n, err := s.checkCold(first, last, seen)
	return digest + sum, rows + n, err
}

// checkCold returns the digest and number of the cold rows that no row in memory hides.
func (s *segment) checkCold(first, last uint64, inMemory map[uint64]int) (digest uint64, rows int, err error) {
	c := s.cold
	if c.first < first || c.last > last || c.first > c.last {
		return 0, 0, fmt.Errorf("cold ids %d…%d are not a range within %d…%d", c.first, c.last, first, last)
	}
	p := Page{Width: c.generation.Width()}
	if err := c.load(0, &p); err != nil {
		return 0, 0, err
	}
	if packed := c.sealed(); packed != nil {
		if err := packed.check(); err != nil {
			return 0, 0, err
		}
	}
	for i, id := range p.IDs {
		if id < c.first || id > c.last || i > 0 && id <= p.IDs[i-1] || isZeroRow(p.Row(i)) {
			return 0, 0, fmt.Errorf("cold row %d is %v", id, p.Row(i))
		}
		if _, hidden := inMemory[id]; hidden {
			continue
		}
		digest += RowDigest(id, p.Row(i))
		rows++
	}
	return digest, rows, nil
}

// checkEmpty verifies that empty slots have no counts.
func (s *segment) checkEmpty() error {
	for i := range s.buckets {
		for j := firstSlot(s.wide); j < lineWords; j++ {
			for w := range s.words() {
				if slot := i*lineWords + j; s.tag(slot) == 0 && *s.word(slot, w) != 0 {
					return fmt.Errorf("empty slot %d has counts", slot)
				}
			}
		}
	}
	return nil
}

// checkRow verifies a row. It returns the row's digest, its number of counts in overflow, and
// whether it is a row of zeros that hides a cold row.
func (s *segment) checkRow(slot int, id uint64) (digest uint64, wide int, zero bool, err error) {
	var row [ColumnsMax]int64
	s.load(slot, row[:s.columns()])
	zero = true
	for c, v := range row[:s.columns()] {
		zero = zero && v == 0
		mark := *s.word(slot, c/wordColumns)>>(16*(c%wordColumns))&0xFFFF == inOverflow
		if mark {
			wide++
		}
		if mark && (fits16(v) || s.over.Load().find(overflowKey(slot, c)) < 0) {
			return 0, 0, false, fmt.Errorf("id %d column %d: marked, but overflow has %d", id, c, v)
		}
	}
	if zero && s.cold == nil {
		return 0, 0, false, fmt.Errorf("id %d: a row of zeros is stored", id)
	}
	return RowDigest(id, row[:s.columns()]), wide, zero, nil
}
