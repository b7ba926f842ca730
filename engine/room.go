package engine

// This file decides the structure of a table: when a segment grows, widens, splits, shrinks or is
// dropped. These decisions depend only on the ops and the table's salts.

// If the last segment has at least appendRowsMin rows, an id beyond its window opens a new segment.
// So ascending ids fill a segment and do not change it afterwards. If the last segment has fewer
// rows, because the ids are sparse, it gets wide tags instead, which cover all ids.
const appendRowsMin = rowsMax * 3 / 4

// insertLocked stores a row that is absent.
func (t *Table) insertLocked(id uint64, row []int64, words int) {
	for {
		d := t.dir.Load()
		i := d.find(id)
		s := d.segs[i].Load()
		if s.words() < words {
			t.reshapeLocked(i, words)
			continue
		}
		if s.covers(id) && !s.full() {
			s = t.ownedLocked(d, i)
			if s.insert(id, row[:s.columns()]) {
				return
			}
		}
		t.makeRoomLocked(d, i, id, words)
	}
}

// makeRoomLocked makes room in segment i for a row of id with the given number of words. One call
// may not suffice, so the caller repeats it until it can insert the row.
func (t *Table) makeRoomLocked(d *directory, i int, id uint64, words int) {
	s := d.segs[i].Load()
	inOrder := i == len(d.segs)-1 && id > s.maxID && s.cold == nil // maxID does not cover cold rows
	if inOrder && s.rows >= appendRowsMin {
		right := newSegment(newGeometry(bucketsMax, false, id, t.salts.class, t.salts.next()), bucketsMax, words, t.mu.epoch)
		t.dir.Store(d.with(i, nil, id, right))
		return
	}
	slots := s.occupied()
	// Each call must make progress, or the caller would retry forever. So ask for a larger array,
	// unless slots lacks rows of zeros that the segment had: to drop these is progress.
	want := len(slots) + 1
	if s.covers(id) && len(slots) == s.rows {
		want = max(want, rowsFor(len(s.buckets), s.wide)+1)
	}
	sh := t.salts.class.shapeFor(want, slots, id, d.first(i), d.last(i))
	if sh.buckets <= bucketsMax {
		if n := t.salts.build(sh, max(words, s.wordsUsed(slots)), t.mu.epoch, s.copier(slots)); n != nil {
			n.cold, n.seal = s.cold, s.seal
			d.segs[i].Store(n)
			return
		}
	}
	t.splitLocked(d, i, slots, id)
}

// full reports whether a segment has as many rows as its array may have, or rowsMax.
func (s *segment) full() bool { return s.rows >= min(rowsFor(len(s.buckets), s.wide), rowsMax) }

// A segment is rebuilt at the size that its rows need if a removal leaves it less than
// 1/shrinkShare full. Afterwards three quarters of the rows must go before it is rebuilt again.
const shrinkShare = 4

// removeLocked deletes the row in a slot of segment i. If the segment becomes empty, it drops the
// segment, and a neighbour takes over the range. Readers with the old directory still find the row
// as it was when they began. The last segment is never dropped: otherwise each id that is added and
// deleted at the end of the table could create a segment.
func (t *Table) removeLocked(d *directory, i, slot int) {
	if d.segs[i].Load().rows == 1 && i < len(d.segs)-1 {
		t.dir.Store(d.without(i))
		return
	}
	s := t.ownedLocked(d, i)
	s.remove(slot)
	if len(s.buckets) > bucketsMin && s.rows*shrinkShare < rowsFor(len(s.buckets), s.wide) {
		d.segs[i].Store(t.mustRebuild(s, s.occupied(), 1, d.first(i), d.last(i)))
	}
}

// occupied returns the occupied slots of a segment. It leaves out rows of zeros that the cold part
// does not cover, because they hide nothing. A split could move them into a segment without a cold
// part, where rows of zeros are invalid.
func (s *segment) occupied() []slotID {
	slots := make([]slotID, 0, s.rows)
	var row [ColumnsMax]int64
	s.each(func(slot int, id uint64) {
		if s.cold != nil && !s.cold.mayHave(id) {
			if s.load(slot, row[:]); isZeroRow(row[:]) {
				return
			}
		}
		slots = append(slots, slotID{id, int32(slot)})
	})
	return slots
}

// splitLocked splits segment i at its median. If the new id is above seven eighths of the rows, it
// splits the segment there instead. So ids in nearly ascending order leave nearly full segments
// behind.
func (t *Table) splitLocked(d *directory, i int, slots []slotID, id uint64) {
	sortByID(slots)
	s := d.segs[i].Load()
	at := len(slots) / 2
	if high := len(slots) * 7 / 8; id > slots[high].id {
		at = high
	}
	start := slots[at].id
	left := t.mustRebuild(s, slots[:at], 1, d.first(i), start-1)
	right := t.mustRebuild(s, slots[at:], 1, start, d.last(i))
	if left.cold, right.cold = s.cold.split(start); left.cold != nil && right.cold != nil {
		t.coldParts.Add(s.cold.parts())
	}
	t.dir.Store(d.with(i, left, start, right))
}

// reshapeLocked gives the rows of segment i more words each.
func (t *Table) reshapeLocked(i, words int) {
	d := t.dir.Load()
	s := d.segs[i].Load()
	n := t.mustRebuild(s, s.occupied(), words, d.first(i), d.last(i))
	n.cold, n.seal = s.cold, s.seal
	d.segs[i].Store(n)
}

// mustRebuild returns a new segment of the smallest size with the rows of s at slots, up to rowsMax
// of them. The new segment has no cold part. It has as many words per row as these rows need, but
// at least the given number.
func (t *Table) mustRebuild(s *segment, slots []slotID, words int, first, last uint64) *segment {
	sh := t.salts.class.shapeOf(slots, first, last)
	return t.salts.mustBuild(sh, max(words, s.wordsUsed(slots)), t.mu.epoch, s.copier(slots))
}

// copier returns a function that copies the rows of s at slots to another segment.
func (s *segment) copier(slots []slotID) func(*segment) bool {
	return func(n *segment) bool {
		var row [ColumnsMax]int64
		for _, r := range slots {
			if clear(row[:]); r.slot != noSlot {
				s.load(int(r.slot), row[:n.columns()])
			}
			if !n.insert(r.id, row[:n.columns()]) {
				return false
			}
		}
		return true
	}
}
