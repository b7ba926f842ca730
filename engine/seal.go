package engine

// This file seals segments to which nobody writes any more, one at a time and concurrently with the
// writer. It melts a sealed segment once too many of its rows were written again. Like moving rows
// to disk, this changes neither results, nor rows, nor the digest.

const (
	// sealRowsMin is the least number of rows for which sealing a segment is worthwhile.
	sealRowsMin = 1024
	// Sealing must save more than 1/sealGainShare of a segment's memory.
	sealGainShare = 16
	// A segment is sealed again once it has 1/resealShare as many written rows as sealed ones.
	resealShare = 8
	// A segment melts once it has 1/meltShare as many written rows as sealed ones, because the
	// outdated sealed rows then take more memory than sealing saves.
	meltShare = 2
	// restMax bounds how many checks in a row skip a segment. They skip it after somebody wrote to
	// it, after sealing it was not worthwhile, and after it melted. The number doubles each time,
	// so a segment with a write a minute is copied only once an hour.
	restMax = 64
	// lookMax bounds the segments that one call of Seal checks. Meanwhile it blocks writes, for
	// about 50 µs.
	lookMax = 256
)

func (s *sealState) putOff() {
	s.again = max(1, min(2*s.again, restMax))
	s.rest, s.looked = s.again, false
}

// Seal checks the segments, beginning at the one that owns start, and seals the first one that is
// due. A segment is due if isOld returns true for its range of ids, and nobody wrote to it between
// the previous check and this one. A sealed segment is due again only if enough of its rows were
// written since it was sealed. If too many were, Seal melts the segment, even if it is not old.
// rows is the number of rows that Seal has packed. next is the start for the next call; more is
// false once all segments are checked. Seal never seals the last segment, because new ids come to
// it. Calls must run concurrently neither with each other nor with Freeze nor with a step of a Parting.
func (t *Table) Seal(start uint64, isOld func(first, last uint64) bool) (rows int, next uint64, more bool) {
	p := t.dir.Load().parted()
	if p == nil || t.sealing == len(p.tables) && start != 0 {
		return sealNext(t, start, isOld)
	}
	if start == 0 {
		t.sealing = 0
	}
	table := p.tables[t.sealing]
	if start <= 1 { // the range of its first segment begins at 0, but its first row has a higher id
		least := table.Least()
		of := isOld
		isOld = func(first, last uint64) bool { return of(max(first, least), last) }
	}
	if rows, next, more = sealNext(table, start, isOld); !more {
		t.sealing++
		return rows, 1, true
	}
	return rows, next, more
}

// sealNext is Seal for one table without its parts.
func sealNext(t *Table, start uint64, isOld func(first, last uint64) bool) (rows int, next uint64, more bool) {
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

// sealable captures the first segment that is due. It checks at most lookMax segments.
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
		s.seal.putOff() // somebody wrote to it since the last check
		return false
	}
	s.watched |= toSeal
	s.seal.looked = true
	return false
}

// worthMelting reports whether so many rows were written that the segment should melt.
func (s *segment) worthMelting(packed *sealed) bool { return s.rows >= packed.rows/meltShare }

// replaceSealed replaces f.s by a segment with the sealed rows packed. Rows that were written since
// the capture stay in its array. If these are too many, or if the segment was split, joined or
// replaced meanwhile, replaceSealed changes nothing and returns false.
func (t *Table) replaceSealed(f *frozen, packed *sealed) bool {
	f.generations = []Generation{packed}
	_, replaced := t.replaceFrozen(f, packed.rows/(2*meltShare))
	return replaced
}

// putOff makes the next checks skip the segment of f.
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

// unsealLocked copies the sealed row of id into the segment's array, updates *at, and returns the
// row's slot. If packed has no such row, it returns -1.
func (t *Table) unsealLocked(id uint64, at *spot, packed *sealed) int {
	var row [ColumnsMax]int64
	if packed.read(id, row[:]); isZeroRow(row[:]) {
		return -1
	}
	t.warmLocked(id, row[:])
	*at = t.locate(id)
	return at.s.find(at.p)
}
