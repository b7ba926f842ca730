package engine

// This file seals segments that are no longer written, one at a time and concurrently
// with the writer, and melts those of which too many rows are written again. Like moving
// rows to disk, this changes neither answers, nor rows, nor digest.

const (
	// sealRowsMin is the fewest rows of a segment worth sealing.
	sealRowsMin = 1024
	// sealGainShare: sealing must save more than 1/sealGainShare of a segment's memory.
	sealGainShare = 16
	// resealShare: a segment is sealed again once it has 1/resealShare as many written
	// rows as sealed ones.
	resealShare = 8
	// meltShare: a segment melts once it has 1/meltShare as many written rows as sealed
	// ones, because the hidden rows take more memory than sealing saves.
	meltShare = 2
	// restMax bounds how many checks skip a segment after it was written to, was not
	// worth sealing, or was melted. The number doubles each time, so a segment with a
	// write a minute is copied once an hour.
	restMax = 64
	// lookMax bounds the segments that one call checks, during which it blocks writes:
	// about 50 µs.
	lookMax = 256
	// sealTriesMax bounds how often replaceSealed collects the rows that were written
	// meanwhile, before it gives up on the segment as too busy.
	sealTriesMax = 4
)

func (s *sealState) putOff() {
	s.again = max(1, min(2*s.again, restMax))
	s.rest, s.looked = s.again, false
}

// Seal seals one segment: the first one with ids at or above from for whose range of ids
// old returns true and that was not written to since the previous check. It reseals a
// sealed segment with enough written rows, or melts it if those are too many. It returns
// how many rows the segment has sealed, the id to continue from, and false once it has
// checked all segments. It never seals the last segment, which takes new ids. Calls must
// not run concurrently, nor with Freeze.
func (t *Table) Seal(from uint64, old func(first, last uint64) bool) (rows int, next uint64, more bool) {
	f, next, more := t.sealable(from, old)
	if f == nil {
		return 0, next, more
	}
	var c collector
	p, err := c.collectAll(f.s, 0, f.s.widest())
	if err != nil {
		return 0, next, more // impossible: no row of the segment is on disk
	}
	before, bytes := f.s.cold.sealed(), f.s.bytes()
	if before != nil {
		if f.s.worthMelting(before) || len(p.IDs) < sealRowsMin || len(p.IDs) > rowsMax {
			t.melt(f, p)
			return 0, next, more
		}
		bytes += before.bytes()
	}
	if packed := new(Sealer).seal(p, &t.salts); packed != nil && packed.bytes() < bytes-bytes/sealGainShare && t.replaceSealed(f, p, packed) {
		return packed.rows, next, more
	}
	t.putOff(f)
	return 0, next, more
}

// sealable captures the first segment that is due, and checks lookMax segments at most.
func (t *Table) sealable(from uint64, old func(first, last uint64) bool) (f *frozen, next uint64, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	start := d.find(from)
	for i := start; i < len(d.segs)-1; i++ {
		if i == start+lookMax {
			return nil, d.first(i), true
		}
		if s := d.segs[i].Load(); s.dueLocked(d.first(i), old) {
			s.watched |= toSeal
			return &frozen{first: d.first(i), last: d.last(i), s: s}, d.first(i + 1), true
		}
	}
	return nil, 0, false
}

// dueLocked checks a segment that owns ids from first on, and reports whether to seal or
// melt it.
func (s *segment) dueLocked(first uint64, old func(first, last uint64) bool) bool {
	packed := s.cold.sealed()
	switch {
	case s.cold.onDisk() || packed == nil && s.rows < sealRowsMin:
		return false
	case s.seal.rest > 0:
		s.seal.rest--
		return false
	case packed != nil && s.worthMelting(packed):
		return true
	case packed != nil && s.rows < packed.rows/resealShare || !old(first, s.highest()):
		return false
	case s.watched&toSeal != 0:
		return true
	case s.seal.looked:
		s.seal.putOff() // it was written to
		return false
	}
	s.watched |= toSeal
	s.seal.looked = true
	return false
}

// worthMelting reports whether the rows that hide sealed ones take more memory than
// sealing saves.
func (s *segment) worthMelting(packed *sealed) bool { return s.rows >= packed.rows/meltShare }

// replaceSealed replaces the rows of f.s, which are p, by packed, and keeps rows that
// were written meanwhile over them. It collects those without blocking the writer, so
// more may be written during that. It returns false if the writes do not stop within
// sealTriesMax, if too many rows changed, or if the segment has another shape.
func (t *Table) replaceSealed(f *frozen, p *Page, packed *sealed) bool {
	now := f.s
	for range sealTriesMax {
		over := f.over(now, p, packed)
		if len(over.IDs) > packed.rows/(2*meltShare) {
			return false
		}
		n := t.salts.segmentOf(over, f.first, f.last)
		n.cold = &coldPart{generation: packed, first: f.first, last: f.last}
		n.seal = sealState{again: now.seal.again}
		var ok bool
		if now, ok = t.swapSealed(f, now, n); ok {
			return true
		}
		if now == nil {
			return false
		}
	}
	return false
}

// swapSealed replaces now by n. If now is no longer in the table, it returns its
// successor, captured, or nil if that has another shape.
func (t *Table) swapSealed(f *frozen, now, n *segment) (*segment, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	i := d.find(f.first)
	if d.first(i) != f.first || d.last(i) != f.last {
		return nil, false
	}
	s := d.segs[i].Load()
	if s == now { // unwritten, so n may inherit the mark of Watch
		n.epoch, n.watched = t.mu.epoch, now.watched&toFreeze
		d.segs[i].Store(n)
		return s, true
	}
	if s.cold != f.s.cold {
		return nil, false
	}
	s.watched |= toSeal
	return s, false
}

// over returns the rows of now, a later state of f.s, that differ from the sealed ones.
func (f *frozen) over(now *segment, p *Page, packed *sealed) *Page {
	over := &Page{Width: max(now.columns(), p.Width)}
	var is, says [ColumnsMax]int64
	now.each(func(slot int, id uint64) {
		now.load(slot, is[:])
		if packed.read(id, says[:]); is != says {
			over.add(id, is[:over.Width])
		}
	})
	if now != f.s { // rows outside of the earlier part that are absent now were deleted
		clear(is[:])
		for _, id := range p.IDs {
			if !now.cold.mayHave(id) && (!now.covers(id) || now.find(now.place(id)) < 0) {
				over.add(id, is[:over.Width])
			}
		}
	}
	return over
}

// segmentOf returns a segment of a page's rows, rowsMax at most and in any order, that
// owns ids first … last. Its epoch is not set.
func (s *salts) segmentOf(p *Page, first, last uint64) *segment {
	words := 1
	for i := range p.IDs {
		for c, v := range p.Row(i) {
			if v != 0 {
				words = max(words, c/wordColumns+1)
			}
		}
	}
	return s.mustBuild(p.shape(first, last), words, 0, func(n *segment) bool { return n.insertAll(p) })
}

// shape returns the shape of a segment with the page's rows.
func (p *Page) shape(first, last uint64) shape {
	slots := make([]slotID, len(p.IDs))
	for i, id := range p.IDs {
		slots[i].id = id
	}
	return shapeOf(slots, first, last)
}

func (s *segment) insertAll(p *Page) bool {
	var row [ColumnsMax]int64
	for i, id := range p.IDs {
		copy(row[:], p.Row(i))
		if !s.insert(id, row[:s.columns()]) {
			return false
		}
	}
	return true
}

// putOff makes the next checks skip a segment.
func (t *Table) putOff(f *frozen) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	if i := d.find(f.first); d.first(i) == f.first {
		s := d.segs[i].Load()
		s.seal.putOff()
		s.watched &^= toSeal
	}
}

// unsealLocked copies the row of id, if it is sealed, into the segment, and returns its
// slot and sets at. It returns -1 if no such row is sealed.
func (t *Table) unsealLocked(id uint64, at *spot, packed *sealed) int {
	var row [ColumnsMax]int64
	if packed.read(id, row[:]); isZeroRow(row[:]) {
		return -1
	}
	t.warmLocked(id, row[:])
	*at = t.locate(id)
	return at.s.find(at.p)
}
