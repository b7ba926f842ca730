package engine

// This file seals segments that rest, one at a time and beside the writer, and undoes
// it where too many of their rows are written to. As with rows that go to disk, it
// changes no answer, nor rows or digest.

const (
	// sealRowsMin is how many rows a segment has that is sealed.
	sealRowsMin = 1024
	// sealGainShare is how much smaller, as a share, rows must become.
	sealGainShare = 16
	// resealShare is how many rows, as a share of the sealed ones, were written to
	// since when they are sealed anew.
	resealShare = 8
	// meltShare is the largest share of written rows in a sealed segment. Beyond it the
	// segment is melted, because the hidden rows take more memory than sealing saves.
	meltShare = 2
	// restMax bounds for how many looks a segment is skipped after it was written to,
	// was not worth sealing, or was melted. The number doubles each time, so a segment
	// with a write a minute is copied once an hour.
	restMax = 64
	// lookMax is how many segments one call checks, which blocks writes for about 50
	// µs.
	lookMax = 256
	// sealTriesMax is how often those rows are looked for that were written to
	// meanwhile, until the segment is given up as too busy.
	sealTriesMax = 4
)

// sealState is what is known of a segment for this, under Table.mu.
type sealState struct {
	looked bool  // the segment, or one that it is a copy of, was watched
	rest   uint8 // looks to come that leave it alone
	again  uint8 // rest, the next time
}

func (s *sealState) putOff() {
	s.again = max(1, min(2*s.again, restMax))
	s.rest, s.looked = s.again, false
}

// Seal seals one segment: the first with ids from from on of which old says so, by the
// range of its ids, and that was not written to since Seal last came by. One of which
// rows are sealed already, and some were written to, is sealed anew, and melts if those
// are too many. It returns how many rows are sealed in it, the id to go on from, and
// false once it has looked at all. Never sealed is the last segment, where new ids
// come. One call at a time, and none beside Freeze.
func (t *Table) Seal(from uint64, old func(first, last uint64) bool) (rows int, next uint64, more bool) {
	f, next, more := t.sealable(from, old)
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

// sealable captures the first segment that is due.
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

// dueLocked says whether a segment that is looked at now, and owns ids from first on,
// should be sealed or melted.
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

// worthMelting says whether so many rows hide sealed ones that those take more than
// they save.
func (s *segment) worthMelting(packed *sealed) bool { return s.rows >= packed.rows/meltShare }

// replaceSealed puts sealed rows in the place of those of f.s, which p is. Rows that
// are written to meanwhile go over them. They are found without holding off the writer,
// who may have written more then. It returns false if that went on, or the segment has
// another shape.
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
	if s == now { // nor has anybody written to n since Watch came by
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

// segmentOf returns a segment of a page's rows, rowsMax at most and in any order, that
// owns ids first … last, and has no epoch yet.
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

// shape is that of a segment of a page's rows.
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

// putOff leaves a segment alone for a while.
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
