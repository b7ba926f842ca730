package engine

// This file seals segments that are no longer written, one at a time and concurrently with the
// writer. It melts a sealed segment once too many of its rows were written again. Like moving rows
// to disk, this changes neither answers, nor rows, nor digest.

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
	// restMax bounds the number of checks that skip a segment after it was written to, was not
	// worth sealing, or was melted. The number doubles each time, so a segment with a write a
	// minute is copied once an hour.
	restMax = 64
	// lookMax bounds the segments that one call checks. The call blocks writes meanwhile, for about
	// 50 µs.
	lookMax = 256
)

func (s *sealState) putOff() {
	s.again = max(1, min(2*s.again, restMax))
	s.rest, s.looked = s.again, false
}

// Seal checks the segments, beginning at the one that owns start, and seals the first one that is due. A
// segment is due if isOld returns true for its range of ids and it was not written to since the previous
// check. A sealed segment is also due once enough of its rows were written; once too many were, Seal melts
// it instead. Seal returns the number of rows that the segment now has sealed, the id to continue from, and
// false once it has checked all segments. It never seals the last segment, which takes new ids. Calls must
// not run concurrently, nor with Freeze.
func (t *Table) Seal(start uint64, isOld func(first, last uint64) bool) (rows int, next uint64, more bool) {
	f, next, more := t.sealable(start, isOld)
	if f == nil {
		return 0, next, more
	}
	var c collector
	p, _ := c.collectAll(f.s, 0, f.s.widest()) // rows in memory never fail to load
	before, bytes := f.s.cold.sealed(), f.s.bytes()
	if before != nil {
		if f.s.worthMelting(before) || len(p.IDs) < sealRowsMin || len(p.IDs) > rowsMax {
			t.melt(f)
			return 0, next, more
		}
		bytes += before.bytes()
	}
	if packed := new(Sealer).seal(p, &t.salts); packed != nil && packed.bytes() < bytes-bytes/sealGainShare && t.replaceSealed(f, packed) {
		return packed.rows, next, more
	}
	t.putOff(f)
	return 0, next, more
}

// sealable captures the first segment that is due, and checks lookMax segments at most.
func (t *Table) sealable(id uint64, isOld func(first, last uint64) bool) (f *frozen, next uint64, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	start := d.find(id)
	for i := start; i < len(d.segs)-1; i++ {
		if i == start+lookMax {
			return nil, d.first(i), true
		}
		if s := d.segs[i].Load(); s.dueLocked(d.first(i), isOld) {
			s.watched |= toSeal
			return &frozen{first: d.first(i), last: d.last(i), s: s}, d.first(i + 1), true
		}
	}
	return nil, 0, false
}

// dueLocked checks a segment whose range begins at first, and reports whether to seal
// or melt it.
func (s *segment) dueLocked(first uint64, isOld func(first, last uint64) bool) bool {
	packed := s.cold.sealed()
	switch {
	case s.cold.onDisk() || packed == nil && s.rows < sealRowsMin:
		return false
	case s.seal.rest > 0:
		s.seal.rest--
		return false
	case packed != nil && s.worthMelting(packed):
		return true
	case packed != nil && s.rows < packed.rows/resealShare || !isOld(first, s.highest()):
		return false
	case s.watched&toSeal != 0:
		return true
	case s.seal.looked:
		s.seal.putOff() // the segment was written to since the last check
		return false
	}
	s.watched |= toSeal
	s.seal.looked = true
	return false
}

// worthMelting reports whether the rows that hide sealed ones take more memory than
// sealing saves.
func (s *segment) worthMelting(packed *sealed) bool { return s.rows >= packed.rows/meltShare }

// replaceSealed replaces the rows of f.s by packed, and keeps the rows that were written since the
// capture over them. It returns false if too many rows were written, or if the segment was split,
// joined or replaced meanwhile.
func (t *Table) replaceSealed(f *frozen, packed *sealed) bool {
	f.generations = []Generation{packed}
	_, replaced := t.replaceFrozen(f, packed.rows/(2*meltShare))
	return replaced
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

// If the row of id is sealed, unsealLocked copies it into the segment, sets *at, and returns the row's
// slot. It returns -1 if no such row is sealed.
func (t *Table) unsealLocked(id uint64, at *spot, packed *sealed) int {
	var row [ColumnsMax]int64
	if packed.read(id, row[:]); isZeroRow(row[:]) {
		return -1
	}
	t.warmLocked(id, row[:])
	*at = t.locate(id)
	return at.s.find(at.p)
}
