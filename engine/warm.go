package engine

import "fmt"

// This file moves cold rows back into memory, one part at a time and concurrently with
// the writer. The writer waits neither for the disk nor for the removal of the
// generation.

// warmRowBytes bounds the memory of a row of up to wordColumns columns, and warmWordBytes
// that of each further word of columns.
const (
	warmRowBytes  = 20
	warmWordBytes = 10
)

// WarmCost returns how many rows Warm would bring back for ids from … to, and an upper
// bound of their memory.
func (t *Table) WarmCost(from, to uint64) (rows int, bytes uint64) {
	var last Generation // parts of one generation are adjacent
	for {
		_, part := t.nextCold(from, to)
		if part == nil {
			return rows, bytes
		}
		if g := part.generation; g != last {
			last = g
			words := (g.Width() - 1) / wordColumns
			rows += g.Rows()
			bytes += uint64(g.Rows() * (warmRowBytes + words*warmWordBytes))
		}
		end := part.last
		part.release()
		if end >= to {
			return rows, bytes
		}
		from = end + 1
	}
}

// Warm brings the rows of up to the given number of segments with ids from … to back into
// memory, each segment whole. It returns the number of rows, the id to continue from, and
// whether more may follow. After an error, that id is behind the rows that could not be
// read.
func (t *Table) Warm(from, to uint64, segments int) (rows int, next uint64, more bool, err error) {
	for range segments {
		first, part := t.nextCold(from, to)
		if part == nil {
			return rows, 0, false, nil
		}
		n, err := t.warmPart(part)
		rows, from = rows+n, part.last+1
		if more = part.last < to; err != nil {
			return rows, from, more, fmt.Errorf("cannot warm rows from %d on: %w", first, err)
		}
		if !more {
			return rows, 0, false, nil
		}
	}
	return rows, from, true, nil
}

// nextCold returns the first part on disk with ids from … to, which the caller releases,
// and the first id of its segment.
func (t *Table) nextCold(from, to uint64) (first uint64, part *coldPart) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	for i := d.find(from); i < len(d.segs) && d.first(i) <= to; i++ {
		if s := d.segs[i].Load(); s.cold.onDisk() && s.cold.last >= from {
			s.cold.retain()
			return d.first(i), s.cold
		}
	}
	return 0, nil
}

// warmPart brings the rows of a part into memory, releases the part, and returns how many
// rows it has.
func (t *Table) warmPart(part *coldPart) (rows int, err error) {
	defer part.release()
	p := Page{Width: part.generation.Width()}
	if err := part.generation.Load(part.first, part.last, &p); err != nil {
		return 0, err
	}
	uncovered := t.uncover(part, &p)
	for _, piece := range uncovered {
		piece.release()
	}
	if len(uncovered) == 0 {
		return 0, nil
	}
	return len(p.IDs), nil
}

// uncover stores the rows of a part that are not in memory yet. It returns the pieces of
// the part that nothing needs any more, for the caller to release: none if the part was
// frozen again meanwhile.
func (t *Table) uncover(part *coldPart, p *Page) (uncovered []*coldPart) {
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	defer t.unlock()
	if t.coldAt(part) == nil {
		return nil
	}
	for i, id := range p.IDs {
		at := t.locate(id)
		if !at.s.covers(id) || at.s.find(at.p) < 0 {
			row := t.mu.row[:]
			clear(row[copy(row, p.Row(i)):])
			t.warmLocked(id, row)
		}
	}
	// Storing the rows may have split the segment.
	for s := t.coldAt(part); s != nil; s = t.coldAt(part) {
		uncovered = append(uncovered, s.cold)
		t.uncoverLocked(s)
	}
	return uncovered
}

// coldAt returns the first segment that has a piece of the part. The segment that owns
// the part's ids may have another part of the generation instead: it may be a neighbour
// that took over the range of a piece without rows.
func (t *Table) coldAt(part *coldPart) *segment {
	d := t.dir.Load()
	for i := d.find(part.first); i < len(d.segs) && d.first(i) <= part.last; i++ {
		if s := d.segs[i].Load(); s.cold != nil && s.cold.generation == part.generation && part.mayHave(s.cold.first) {
			return s
		}
	}
	return nil
}

// uncoverLocked replaces a segment, all of whose rows are in memory, by one without a
// cold part and without rows of zeros.
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
	if len(slots) == 0 && i < len(d.segs)-1 {
		t.dir.Store(d.without(i))
		return
	}
	d.segs[i].Store(t.mustRebuild(s, slots, s.words(), d.first(i), d.last(i)))
}
