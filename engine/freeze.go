package engine

import (
	"fmt"
	"slices"
)

// This file moves rows out of memory, a segment at a time and beside the writer.
// Rows that are written while their segment is on its way stay in memory over the
// cold ones. What moves when changes no answer, nor rows or digest.

const (
	// foldShare is how many rows a segment has in memory, as a share of its cold
	// ones, when it is written out anew: they take some ten times the memory of an
	// index of cold rows.
	foldShare = 32
	// foldSoonShare is when it is though it is being written to.
	foldSoonShare = 8
	foldRowsMin   = 32
)

// Watch returns the segments, by the first id that they own, that may be frozen:
// old says so of the range of their ids, and they were not written to since the
// call before; and those with cold rows of which many have changed. The last
// segment, where new ids come, is not among them. One that is written to before
// the next call is copied then, once. due is how many rows in memory all of these
// have, with those that were written to.
func (t *Table) Watch(old func(first, last uint64) bool) (idle []uint64, due int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	for i := range len(d.segs) - 1 {
		s := d.segs[i].Load()
		disk := s.cold.onDisk()
		if !disk && !old(d.first(i), s.highest()) || disk && !s.worthFolding(foldShare) {
			continue
		}
		if s.watched&toFreeze != 0 || disk && s.worthFolding(foldSoonShare) {
			idle = append(idle, d.first(i))
		}
		due += s.rowsInMemory()
		s.watched |= toFreeze
	}
	return idle, due
}

// rowsInMemory counts sealed rows that a row of the segment hides too.
func (s *segment) rowsInMemory() int {
	if packed := s.cold.sealed(); packed != nil {
		return s.rows + packed.rows
	}
	return s.rows
}

// highest is at least the id of every row of a segment with none on disk.
func (s *segment) highest() uint64 {
	if packed := s.cold.sealed(); packed != nil {
		return max(s.maxID, min(packed.maxID, s.cold.last))
	}
	return s.maxID
}

func (s *segment) worthFolding(share int) bool {
	// One of more rows than a segment has is of an earlier version, and to be divided. A
	// share of all of them may be more than a segment ever has in memory.
	return s.rows >= max(foldRowsMin, min(s.cold.generation.Rows(), rowsMax)/share)
}

// frozen is a segment on its way out of memory.
type frozen struct {
	first, last uint64 // the ids that it owned
	s           *segment
	page        Page // its rows, cold ones too
	// Generations of pieces of page, rowsMax rows each at most: new ids that come to a
	// cold segment would else make it ever larger, as only rows in memory divide one.
	// A piece begins at its first row, but for the first one.
	pieces      []*Page
	generations []Generation
}

// Freeze writes the rows of segments that Watch returned to cold, all together,
// and then lets go of them in memory. It returns how many rows became cold or were
// written anew. A segment that has another shape meanwhile is left as it is. On an
// error all are. One call at a time.
func (t *Table) Freeze(cold Cold, firsts []uint64) (rows int, err error) {
	leaving := t.leaving(firsts)
	defer func() {
		for _, f := range leaving {
			f.s.cold.release()
		}
	}()
	var c collector
	var pages []*Page
	for _, f := range leaving {
		p, err := c.collectAll(f.s, 0, f.s.widest())
		if err != nil {
			return 0, fmt.Errorf("cannot read the rows of segment %d: %w", f.first, err)
		}
		f.page = Page{slices.Clone(p.IDs), p.Width, slices.Clone(p.Counts)}
		f.pieces = f.page.pieces()
		pages = append(pages, f.pieces...)
	}
	if len(pages) > 0 {
		made, err := cold.Write(pages)
		if err != nil {
			return 0, err
		}
		for _, f := range leaving {
			n := len(f.pieces)
			f.generations, made = made[:n], made[n:]
		}
	}
	for _, f := range leaving {
		unneeded, replaced := t.replaceFrozen(f)
		for _, part := range unneeded {
			part.release() // which may wait for the disk, and so holds up nobody here
		}
		if replaced {
			rows += len(f.page.IDs)
		}
	}
	return rows, nil
}

// widest is how many columns rows of the segment may have, cold ones too.
func (s *segment) widest() int {
	if s.cold != nil {
		return max(s.columns(), s.cold.generation.Width())
	}
	return s.columns()
}

// leaving captures segments: from here on they are copied before they are changed.
func (t *Table) leaving(firsts []uint64) []*frozen {
	t.mu.Lock()
	defer t.mu.Unlock()
	var leaving []*frozen
	d := t.dir.Load()
	for _, first := range firsts {
		i := d.find(first)
		s := d.segs[i].Load()
		if d.first(i) != first || i == len(d.segs)-1 || s.rows == 0 && s.cold.sealed() == nil {
			continue
		}
		s.watched |= toFreeze
		s.cold.retain()
		leaving = append(leaving, &frozen{first: first, last: d.last(i), s: s})
	}
	return leaving
}

// parts returns a part for each generation.
func (f *frozen) parts() []*coldPart {
	parts := make([]*coldPart, len(f.generations))
	for i, g := range f.generations {
		parts[i] = &coldPart{generation: g, first: f.first, last: f.last}
		if i > 0 {
			parts[i].first = f.pieces[i].IDs[0]
			parts[i-1].last = parts[i].first - 1
		}
	}
	return parts
}

// replaceFrozen puts segments, one for each generation, in the place of one whose rows are
// cold now, with only those in memory that were written since it was captured, and rows of
// zeros for those that were deleted. Readers see them once they have all of these. It
// returns false if the segment was divided, joined or frozen meanwhile, or too much of it
// written; and the parts, some nil, that are the caller's to release.
func (t *Table) replaceFrozen(f *frozen) (unneeded []*coldPart, replaced bool) {
	t.writing.Lock() // Apply has rows in memory that it is about to use
	defer t.writing.Unlock()
	t.mu.Lock()
	defer t.unlock()
	made := f.parts()
	d := t.dir.Load()
	i := d.find(f.first)
	now := d.segs[i].Load()
	if d.first(i) != f.first || d.last(i) != f.last || now.cold != f.s.cold {
		return made, false
	}
	rows := f.s.changed(now, len(made) > 0)
	if len(made) > 0 {
		// Where there was a cold part these are there already, unless a part of the
		// segment was one of its own for a time.
		for _, id := range now.gone(f.s) {
			rows = append(rows, slotID{id, noSlot})
		}
	}
	if len(rows) > rowsMax {
		return made, false
	}
	t.coldParts.Add(-now.cold.parts())
	if len(made) == 0 {
		n := t.mustRebuild(now, rows, 1, f.first, f.last)
		d.segs[i].Store(n)
		if n.rows == 0 && i < len(d.segs)-1 {
			t.dir.Store(d.without(i))
		}
		return []*coldPart{now.cold}, true
	}
	sortByID(rows)
	segs := make([]*segment, len(made))
	for j, part := range made {
		n := 0
		for n < len(rows) && rows[n].id <= part.last {
			n++
		}
		segs[j] = t.mustRebuild(now, rows[:n], 1, part.first, part.last)
		segs[j].cold = part
		t.addColdLocked(part.last)
		rows = rows[n:]
	}
	if len(segs) == 1 {
		d.segs[i].Store(segs[0])
		return []*coldPart{now.cold}, true
	}
	divided := d.with(i, segs[0], made[1].first, segs[1])
	for j := 2; j < len(segs); j++ {
		divided = divided.with(i+j-1, nil, made[j].first, segs[j])
	}
	t.dir.Store(divided)
	return []*coldPart{now.cold}, true
}

// changed returns the slots of now, a later state of the segment, whose rows s
// does not have, or has otherwise; of rows of zeros only if those are to hide cold
// ones.
func (s *segment) changed(now *segment, zeros bool) []slotID {
	var slots []slotID
	if s == now {
		return nil
	}
	var was, is [ColumnsMax]int64
	now.each(func(slot int, id uint64) {
		now.load(slot, is[:])
		if s.covers(id) {
			if old := s.find(s.place(id)); old >= 0 {
				if s.load(old, was[:]); was == is {
					return
				}
			}
		}
		if !zeros && is == [ColumnsMax]int64{} {
			return
		}
		slots = append(slots, slotID{id, int32(slot)})
	})
	return slots
}

// gone returns the ids that the segment no longer has rows of and before has.
func (s *segment) gone(before *segment) []uint64 {
	var ids []uint64
	if s == before {
		return nil
	}
	before.each(func(_ int, id uint64) {
		if !s.covers(id) || s.find(s.place(id)) < 0 {
			ids = append(ids, id)
		}
	})
	return ids
}
