package engine

// This file seals segments that no longer fill, one at a time and beside the writer,
// and undoes it where too many of their rows are written to. As with rows that go to
// disk, it changes no answer, nor rows or digest.

const (
	// sealRowsMin is how many rows a segment has that is sealed.
	sealRowsMin = 1024
	// sealGainShare is how much smaller, as a share, rows must become.
	sealGainShare = 16
	// growthShare is by how much, as a share of its rows, their number may have
	// changed since a segment was last looked at, if it no longer fills.
	growthShare = 64
	// resealShare is how many rows, as a share of the sealed ones, were written to
	// since when they are sealed anew.
	resealShare = 8
	// meltShare is how many may be until none is sealed any more: beyond, the rows
	// that they hide take more than is won.
	meltShare = 2
	// restMax bounds for how many looks a segment is left alone that was not worth
	// sealing, or melted: twice as many each time.
	restMax = 64
	// lookMax is how many segments one call looks at, which holds off writes for
	// some 50 µs.
	lookMax = 256
	// sealTriesMax is how often those rows are looked for that were written to
	// meanwhile, until the segment is given up as too busy.
	sealTriesMax = 4
)

// sealState is what is known of a segment for this, under Table.mu.
type sealState struct {
	rows  uint16 // of the segment when it was last looked at, or sealed
	rest  uint8  // looks to come that leave it alone
	again uint8  // rest, the next time
}

func (s *sealState) putOff() {
	s.again = max(1, min(2*s.again, restMax))
	s.rest = s.again
}

// Seal seals one segment: the first with ids from from on that has as many rows as
// when Seal last came by, or of whose sealed rows many were written to since. It
// returns how many rows are sealed in it, the id to go on from, and false once it
// has looked at all. Never sealed is the last segment, where new ids come. One call
// at a time, and none beside Freeze.
func (t *Table) Seal(from uint64) (rows int, next uint64, more bool) {
	f, next, more := t.sealable(from)
	if f == nil {
		return 0, next, more
	}
	var c collector
	p, err := c.collectAll(f.s, 0, f.s.widest())
	if err != nil {
		return 0, next, more // no row of the segment is on disk
	}
	before, bytes := f.s.cold.sealed(), f.s.bytes()
	if before != nil {
		if f.s.rows >= before.rows/meltShare || len(p.IDs) < sealRowsMin || len(p.IDs) > rowsMax {
			t.melt(f, p)
			return 0, next, more
		}
		bytes += before.bytes()
	}
	if packed := sealRows(p); packed.bytes() < bytes-bytes/sealGainShare && t.replaceSealed(f, p, packed) {
		return packed.rows, next, more
	}
	t.putOff(f)
	return 0, next, more
}

// sealable captures the first segment that is due.
func (t *Table) sealable(from uint64) (f *frozen, next uint64, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	start := d.find(from)
	for i := start; i < len(d.segs)-1; i++ {
		if i == start+lookMax {
			return nil, d.first(i), true
		}
		if s := d.segs[i].Load(); s.dueLocked() {
			s.watched = true
			return &frozen{first: d.first(i), last: d.last(i), s: s}, d.first(i + 1), true
		}
	}
	return nil, 0, false
}

// dueLocked says whether a segment that is looked at now should be sealed.
func (s *segment) dueLocked() bool {
	if s.cold.onDisk() || s.cold == nil && s.rows < sealRowsMin {
		return false
	}
	if s.seal.rest > 0 {
		s.seal.rest--
		return false
	}
	grown := s.rows - int(s.seal.rows)
	if packed := s.cold.sealed(); packed != nil {
		return grown >= max(foldRowsMin, packed.rows/resealShare)
	}
	s.seal.rows = uint16(s.rows)
	return max(grown, -grown) <= s.rows/growthShare
}

// replaceSealed puts sealed rows in the place of those of f.s, which p is. Rows that
// are written to meanwhile go over them. They are found without holding off the writer, who may have written
// more then. It returns false if that went on, or the segment has another shape.
func (t *Table) replaceSealed(f *frozen, p *Page, packed *sealed) bool {
	now := f.s
	for range sealTriesMax {
		over := f.over(now, p, packed)
		if len(over.IDs) > packed.rows/(2*meltShare) {
			return false
		}
		n := segmentOf(over, f.first, f.last)
		n.cold = &coldPart{packed, f.first, f.last}
		n.seal = sealState{rows: uint16(n.rows), again: now.seal.again}
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

// swapSealed puts n in the place of now. If that is not there any more it returns what
// is, captured, or nil if that has another shape.
func (t *Table) swapSealed(f *frozen, now, n *segment) (*segment, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	i := d.find(f.first)
	if d.first(i) != f.first || d.last(i) != f.last {
		return nil, false
	}
	s := d.segs[i].Load()
	if s == now {
		n.epoch = t.mu.epoch
		d.segs[i].Store(n)
		return s, true
	}
	if s.cold != f.s.cold {
		return nil, false
	}
	s.watched = true
	return s, false
}

// over returns the rows of now, a later state of f.s, that sealed rows do not say.
func (f *frozen) over(now *segment, p *Page, packed *sealed) *Page {
	over := &Page{Width: max(now.columns(), p.Width)}
	var is, says [ColumnsMax]int64
	now.each(func(slot int, id uint64) {
		now.load(slot, is[:])
		if packed.read(id, says[:]); is != says {
			over.add(id, is[:over.Width])
		}
	})
	if now != f.s { // what is not there any more, nor was sealed before, is gone
		clear(is[:])
		for _, id := range p.IDs {
			if !now.cold.mayHave(id) && (!now.covers(id) || now.find(now.place(id)) < 0) {
				over.add(id, is[:over.Width])
			}
		}
	}
	return over
}

// segmentOf returns a segment of a page's rows, in any order, that owns ids first … last,
// and has no epoch yet.
func segmentOf(p *Page, first, last uint64) *segment {
	words, slots := 1, make([]slotID, len(p.IDs))
	for i, id := range p.IDs {
		slots[i] = slotID{id, int32(i)}
		for c, v := range p.Row(i) {
			if v != 0 {
				words = max(words, c/wordColumns+1)
			}
		}
	}
	id := first
	if len(slots) > 0 {
		id = slots[0].id
	}
	for sh := shapeFor(len(slots), slots, id, first, last); ; sh.buckets *= 2 {
		for salt := range uint64(saltsMax) {
			n := newSegment(newGeometry(sh.buckets, sh.wide, sh.base, salt), sh.buckets, words, 0)
			if n.insertAll(p) {
				return n
			}
		}
	}
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

// putOff leaves a segment alone for a while.
func (t *Table) putOff(f *frozen) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	if i := d.find(f.first); d.first(i) == f.first {
		s := d.segs[i].Load()
		s.seal.putOff()
		s.watched = false
	}
}

// unsealLocked brings the row of id into the segment if it is sealed, and returns
// its slot; at is where it stands then. It returns -1 if there is no such row.
func (t *Table) unsealLocked(id uint64, at *spot, packed *sealed) int {
	var row [ColumnsMax]int64
	if packed.read(id, row[:]); isZeroRow(row[:]) {
		return -1
	}
	t.warmLocked(id, row[:])
	*at = t.locate(id)
	return at.s.find(at.p)
}
