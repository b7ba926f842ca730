package engine

import "sync/atomic"

// This file is the writer's side of a segment. The writer must own the segment
// (Table.ownedLocked) and hold Table.mu.

// openSeq and closeSeq enclose changes that readers must not see partly done.
func (s *segment) openSeq()  { s.seq.Add(1) }
func (s *segment) closeSeq() { s.seq.Add(1) }

// insert stores a row that is absent. The row must have a count other than zero, or hide a cold
// row. If it finds no room in either bucket, insert returns false and changes nothing.
func (s *segment) insert(id uint64, row []int64) bool {
	p := s.place(id)
	slot := s.emptyIn(p.first)
	if slot < 0 {
		slot = s.emptyIn(p.second)
	}
	if slot < 0 {
		slot = s.makeRoom(p)
	}
	if slot < 0 {
		return false
	}
	if hasWide(row) {
		s.openSeq()
		s.storeRow(slot, row)
		s.closeSeq()
	} else {
		s.storeRow(slot, row)
	}
	if tag := p.tag; slot/lineWords == int(p.first) {
		s.setTag(slot, tag)
	} else {
		s.setTag(slot, tag|tagSecond)
	}
	s.rows++
	s.maxID = max(s.maxID, id)
	return true
}

func (s *segment) emptyIn(bucket uint64) int {
	if i := s.buckets[bucket].empty(s.wide); i >= 0 {
		return int(bucket)*lineWords + i
	}
	return -1
}

func (s *segment) tag(slot int) uint64 {
	return s.buckets[slot/lineWords].tag(slot%lineWords, s.wide)
}

func (s *segment) setTag(slot int, tag uint64) {
	s.buckets[slot/lineWords].setTag(slot%lineWords, s.wide, tag)
}

// update makes the row at slot equal to row. row may be all zero only if it hides a cold row.
func (s *segment) update(slot int, row []int64) {
	s.openSeq()
	s.storeRow(slot, row)
	s.closeSeq()
}

func (s *segment) remove(slot int) {
	s.openSeq()
	var zeros [ColumnsMax]int64
	s.storeRow(slot, zeros[:s.columns()])
	s.setTag(slot, 0)
	s.closeSeq()
	s.rows--
}

// storeRow writes all columns of a row to a slot, and keeps the overflow table consistent with the
// marks.
func (s *segment) storeRow(slot int, row []int64) {
	for w := range s.words() {
		at := s.word(slot, w)
		old, word := *at, uint64(0)
		for i := range wordColumns {
			column := w*wordColumns + i
			v := row[column]
			if fits16(v) {
				word |= uint64(v) << (16 * i)
				if old>>(16*i)&0xFFFF == inOverflow {
					s.over.Load().remove(overflowKey(slot, column))
				}
				continue
			}
			word |= inOverflow << (16 * i)
			s.over.Store(s.over.Load().put(overflowKey(slot, column), v))
		}
		atomic.StoreUint64(at, word)
	}
}

func fits16(v int64) bool { return uint64(v) < inOverflow }

func hasWide(row []int64) bool {
	for _, v := range row {
		if !fits16(v) {
			return true
		}
	}
	return false
}

// roomSearchMax bounds the buckets that makeRoom visits. Up to the load that rowsFor allows, the
// nearest empty slot is a few moves away.
const roomSearchMax = 256

// roomStep is a bucket that the search for an empty slot has reached. The row at slot, which is in
// the parent's bucket, can move to this bucket.
type roomStep struct {
	bucket uint32
	parent int16 // index of the previous step; -1 for the two buckets of the new row
	slot   int32
}

// makeRoom empties a slot in one of p's buckets. It searches for a shortest path to an empty slot,
// and moves each row on the path to its other bucket. It returns the emptied slot, or -1 if it
// finds no path within roomSearchMax buckets.
func (s *segment) makeRoom(p place) int {
	var steps [roomSearchMax]roomStep
	steps[0] = roomStep{bucket: uint32(p.first), parent: -1}
	steps[1] = roomStep{bucket: uint32(p.second), parent: -1}
	n := 2
	for i := 0; i < n; i++ {
		at := int(steps[i].bucket) * lineWords
		for slot := at + firstSlot(s.wide); slot < at+lineWords; slot++ {
			other := otherBucket(s.tag(slot)>>tagShift, uint64(steps[i].bucket), uint64(len(s.buckets)))
			if uint32(other) == steps[i].bucket {
				continue
			}
			step := roomStep{bucket: uint32(other), parent: int16(i), slot: int32(slot)}
			if empty := s.emptyIn(other); empty >= 0 {
				return s.shift(&steps, step, empty)
			}
			if n < len(steps) {
				steps[n] = step
				n++
			}
		}
	}
	return -1
}

// shift moves the rows of a path, beginning with the last one, and returns the slot that becomes
// empty at the start of the path. A path may visit a bucket twice, but a shortest path never moves
// the row of a slot twice.
func (s *segment) shift(steps *[roomSearchMax]roomStep, last roomStep, empty int) int {
	s.openSeq()
	for step := last; ; step = steps[step.parent] {
		s.move(int(step.slot), empty)
		empty = int(step.slot)
		if steps[step.parent].parent < 0 {
			break
		}
	}
	s.closeSeq()
	return empty
}

// move moves the row in fromSlot to toSlot, an empty slot of its other bucket.
func (s *segment) move(fromSlot, toSlot int) {
	for w := range s.words() {
		source := s.word(fromSlot, w)
		for i := range wordColumns {
			if *source>>(16*i)&0xFFFF == inOverflow {
				column := w*wordColumns + i
				o := s.over.Load()
				v := o.get(overflowKey(fromSlot, column))
				o.remove(overflowKey(fromSlot, column))
				s.over.Store(o.put(overflowKey(toSlot, column), v))
			}
		}
		atomic.StoreUint64(s.word(toSlot, w), *source)
		atomic.StoreUint64(source, 0)
	}
	s.setTag(toSlot, s.tag(fromSlot)^tagSecond)
	s.setTag(fromSlot, 0)
}
