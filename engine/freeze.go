package engine

import (
	"fmt"
	"slices"
)

// This file moves rows out of memory and back, a segment at a time and beside the
// writer. Rows that are written while their segment is on its way stay in memory
// over the cold ones. What moves when changes no answer, nor rows or digest.

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
// the next call is copied then, once.
func (t *Table) Watch(old func(first, last uint64) bool) []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var idle []uint64
	d := t.dir.Load()
	for i := range len(d.segs) - 1 {
		s := d.segs[i].Load()
		disk := s.cold.onDisk()
		if !disk && !old(d.first(i), s.highest()) || disk && !s.worthFolding(foldShare) {
			continue
		}
		if s.watched || disk && s.worthFolding(foldSoonShare) {
			idle = append(idle, d.first(i))
		}
		s.watched = true
	}
	return idle
}

// highest is at least the id of every row of a segment with none on disk.
func (s *segment) highest() uint64 {
	if packed := s.cold.sealed(); packed != nil {
		return max(s.maxID, packed.maxID)
	}
	return s.maxID
}

func (s *segment) worthFolding(share int) bool {
	return s.rows >= max(foldRowsMin, s.cold.generation.Rows()/share)
}

// frozen is a segment on its way out of memory.
type frozen struct {
	first, last uint64 // the ids that it owned
	s           *segment
	page        Page // its rows, cold ones too
	generation  Generation
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
		if len(f.page.IDs) > 0 {
			pages = append(pages, &f.page)
		}
	}
	if len(pages) > 0 {
		made, err := cold.Write(pages)
		if err != nil {
			return 0, err
		}
		for _, f := range leaving {
			if len(f.page.IDs) > 0 {
				f.generation, made = made[0], made[1:]
			}
		}
	}
	for _, f := range leaving {
		if t.replaceFrozen(f) {
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
		s.watched = true
		s.cold.retain()
		leaving = append(leaving, &frozen{first: first, last: d.last(i), s: s})
	}
	return leaving
}

// replaceFrozen puts a segment in the place of one whose rows are cold now, with
// only those in memory that were written since it was captured. It returns false
// if the segment was divided, joined or frozen meanwhile.
func (t *Table) replaceFrozen(f *frozen) bool {
	t.writing.Lock() // Apply has rows in memory that it is about to use
	defer t.writing.Unlock()
	t.mu.Lock()
	defer t.unlock()
	d := t.dir.Load()
	i := d.find(f.first)
	now := d.segs[i].Load()
	if d.first(i) != f.first || d.last(i) != f.last || now.cold != f.s.cold {
		if f.generation != nil {
			f.generation.Release()
		}
		return false
	}
	n := t.mustRebuild(now, f.s.changed(now, f.generation != nil), now.words(), f.first, f.last)
	t.coldParts.Add(now.cold.parts(-1))
	if f.generation != nil {
		n.cold = &coldPart{f.generation, f.first, f.last}
		t.addColdLocked(f.last)
	}
	d.segs[i].Store(n)
	if f.s.cold == nil {
		var zeros [ColumnsMax]int64
		for _, id := range now.gone(f.s) {
			t.insertLocked(id, zeros[:], 1)
		}
	}
	if n.rows == 0 && n.cold == nil && i < len(d.segs)-1 {
		t.dir.Store(d.without(i))
	}
	now.cold.release()
	return true
}

// parts is n for a part on disk, 0 for none.
func (c *coldPart) parts(n int64) int64 {
	if c.onDisk() {
		return n
	}
	return 0
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

// Warm brings the rows of so many segments, from an id on, back into memory, and
// returns the id to go on from, and false when there are none left.
func (t *Table) Warm(from uint64, segments int) (next uint64, more bool, err error) {
	for n := 0; n < segments; {
		first, part := t.nextCold(from)
		if part == nil {
			return 0, false, nil
		}
		if err := t.warmPart(part); err != nil {
			return 0, false, fmt.Errorf("cannot warm rows from %d on: %w", first, err)
		}
		if part.last == 1<<64-1 {
			return 0, false, nil
		}
		from = part.last + 1
		n++
	}
	return from, true, nil
}

// nextCold returns the first cold part with ids from from on.
func (t *Table) nextCold(from uint64) (first uint64, part *coldPart) {
	d := t.dir.Load()
	for i := d.find(from); i < len(d.segs); i++ {
		if s := d.segs[i].Load(); s.cold.onDisk() && s.cold.last >= from {
			return d.first(i), s.cold
		}
	}
	return 0, nil
}

// warmPart holds writes off while it reads a part.
func (t *Table) warmPart(part *coldPart) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.coldAt(part) == nil {
		return nil // frozen anew meanwhile, or warm
	}
	p := Page{Width: part.generation.Width()}
	if err := part.generation.Load(part.first, part.last, &p); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.unlock()
	for i, id := range p.IDs {
		at := t.locate(id)
		if !at.s.covers(id) || at.s.find(at.p) < 0 {
			row := t.mu.row[:]
			clear(row[copy(row, p.Row(i)):])
			t.warmLocked(id, row)
		}
	}
	// The rows may have divided the segment.
	for s := t.coldAt(part); s != nil; s = t.coldAt(part) {
		t.uncoverLocked(s)
	}
	return nil
}

// coldAt returns the first segment that has a piece of the part.
func (t *Table) coldAt(part *coldPart) *segment {
	d := t.dir.Load()
	for i := d.find(part.first); i < len(d.segs) && d.first(i) <= part.last; i++ {
		if s := d.segs[i].Load(); s.cold != nil && s.cold.generation == part.generation {
			return s
		}
	}
	return nil
}

// uncoverLocked replaces a segment all of whose rows are in memory by one without a
// cold part, and without the rows of zeros.
func (t *Table) uncoverLocked(s *segment) {
	d := t.dir.Load()
	i := d.find(s.cold.first)
	var slots []slotID
	var row [ColumnsMax]int64
	s.each(func(slot int, id uint64) {
		if s.load(slot, row[:]); row != [ColumnsMax]int64{} {
			slots = append(slots, slotID{id, int32(slot)})
		}
	})
	t.coldParts.Add(-1)
	s.cold.release()
	if len(slots) == 0 && i < len(d.segs)-1 {
		t.dir.Store(d.without(i))
		return
	}
	d.segs[i].Store(t.mustRebuild(s, slots, s.words(), d.first(i), d.last(i)))
}
