package engine

import "fmt"

// This file moves rows out of memory, a segment at a time and concurrently with the writer. Rows
// that are written while their segment is being moved stay in memory and hide the cold ones. The
// moment at which a segment moves affects neither answers, nor the number of rows, nor the digest.

const (
	// A segment is folded once it has 1/foldShare as many rows in memory as cold ones. At that
	// point, these rows take about a third as much memory as the index of the cold rows, because a
	// row in memory takes about ten times as much as a cold row's part of the index.
	foldShare = 32
	// foldSoonShare replaces foldShare for a segment that is still being written to.
	foldSoonShare = 8
	foldRowsMin   = 32
)

// Watch returns the segments that may be frozen, each as the first id of its range. A segment that is not on disk is a
// candidate if isOld returns true for its range of ids. A segment on disk is a candidate if it has enough changed rows
// in memory. Watch returns a candidate if it was not written to since the previous call, or if it is on disk and has
// very many changed rows. If shares is set, each segment with a share of a generation is a candidate, so that a table
// in the end shares none. The last segment is never a candidate, because new ids come to it. Nor are segments of the
// parts of a parted table. Watch marks all candidates. Before the writer first changes a marked segment, it copies the
// segment, and the copy has no mark. due is the number of rows in memory of all candidates, including those that were
// written to.
func (t *Table) Watch(isOld func(first, last uint64) bool, shares bool) (idle []uint64, due int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	for i := range len(d.segs) - 1 {
		s := d.segs[i].Load()
		disk := s.cold.onDisk()
		if !disk && !isOld(d.first(i), s.highest()) || disk && !(shares && s.cold.share()) && !s.worthFolding(foldShare) {
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

func (s *segment) worthFolding(share int) bool {
	// The rows of a generation count as rowsMax at most. Otherwise the threshold could exceed what a
	// segment can hold in memory, and a generation that is too large would never be split.
	return s.rows >= max(foldRowsMin, min(s.cold.size(), rowsMax)/share)
}

// frozen is a segment that is being replaced: written to disk, sealed or melted.
type frozen struct {
	first, last uint64 // bounds of the ids that the segment owned
	s           *segment
	next        *frozen // the segment behind it, if the rows of both go into the same generations
	page        Page    // the segment's rows, including cold ones, on their way to disk
	// generations has one generation for each piece of page; if the rows were sealed, it has one
	// with the packed rows. A piece has at most rowsMax rows. Without this bound, new ids would
	// make a cold segment ever larger, because an array splits only if it has too many rows in
	// memory. The first piece begins with the segment's range, any other one at its first row.
	pieces      []*Page
	generations []Generation
}

// Freeze writes the rows of segments that Watch returned to cold, with one call of Write. It then
// removes them from memory. It returns the number of cold rows that it wrote; rewritten ones count
// too. It skips a segment if, meanwhile, the segment was split or joined, its cold part was
// replaced, or more than rowsMax of its rows were written. On an error it changes nothing. Calls
// must not run concurrently.
func (t *Table) Freeze(cold Cold, firsts []uint64) (rows int, err error) {
	leaving := t.leaving(firsts)
	defer func() {
		for _, f := range leaving {
			for ; f != nil; f = f.next {
				f.s.cold.release()
			}
		}
	}()
	var c collector
	var pages []*Page
	for _, f := range leaving {
		f.page.Width = 1
		for of := f; of != nil; of = of.next {
			p, err := c.collectAll(of.s, 0, of.s.widest())
			if err != nil {
				return 0, fmt.Errorf("cannot read the rows of segment %d: %w", of.first, err)
			}
			_ = f.page.append(p)
		}
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
		unneeded, replaced := t.replaceFrozen(f, rowsMax)
		for _, part := range unneeded {
			part.release() // without a lock: it may wait for the disk
		}
		if replaced {
			rows += len(f.page.IDs)
		}
	}
	return rows, nil
}

// leaving captures segments. Afterwards the writer copies a captured segment before it changes it.
func (t *Table) leaving(firsts []uint64) []*frozen {
	t.mu.Lock()
	defer t.mu.Unlock()
	var leaving []*frozen
	var end *frozen // the segment before
	joined := 0     // rows of the segments that go together with end
	d := t.dir.Load()
	for _, first := range firsts {
		i := d.find(first)
		s := d.segs[i].Load()
		if d.first(i) != first || i == len(d.segs)-1 || s.rows == 0 && s.cold.sealed() == nil && !s.cold.share() {
			continue
		}
		s.watched |= toFreeze
		s.cold.retain()
		f := &frozen{first: first, last: d.last(i), s: s}
		if rows := f.rows(); end != nil && end.last+1 == first && f.joins() && end.joins() && joined+rows <= rowsMax {
			end.next, joined = f, joined+rows
		} else {
			leaving, joined = append(leaving, f), rows
		}
		end = f
	}
	return leaving
}

// joins reports whether the segment has a share of a generation. Its rows are then written together with those of its
// neighbours, because otherwise each growth would leave more and smaller segments and generations.
func (f *frozen) joins() bool { return f.s.cold.share() }

// rows returns an upper bound of the segment's rows.
func (f *frozen) rows() int {
	if f.s.cold == nil {
		return f.s.rows
	}
	return f.s.rows + f.s.cold.size()
}

// end returns the last segment whose rows go together with those of f.
func (f *frozen) end() *frozen {
	for f.next != nil {
		f = f.next
	}
	return f
}

// parts returns one part for each generation of segments of d. The range of the first segment of a half parted table
// begins at 0, but the part begins at the frontier, because the rows before are in the tables of the parts.
func (f *frozen) parts(d *directory) []*coldPart {
	parts, first := make([]*coldPart, len(f.generations)), f.first
	if p := d.parted(); p != nil {
		first = max(first, p.above)
	}
	for i, g := range f.generations {
		parts[i] = &coldPart{generation: g, first: first, last: f.end().last}
		if i > 0 {
			parts[i].first = f.pieces[i].IDs[0]
			parts[i-1].last = parts[i].first - 1
		}
	}
	return parts
}

// successorLocked returns the segment that now has the range and the cold part of f.s, and its
// place in the directory. It returns nil if there is none: f.s was split or joined, or another part
// has replaced its cold part.
func (t *Table) successorLocked(f *frozen) (d *directory, i int, now *segment) {
	d = t.dir.Load()
	i = d.find(f.first)
	if now = d.segs[i].Load(); d.first(i) != f.first || d.last(i) != f.last || now.cold != f.s.cold {
		now = nil
	}
	return d, i, now
}

// replaceFrozen replaces a segment whose rows are now on disk or sealed by one segment for each generation; so it does
// with several segments. If f has no generations, it melts the segment. In memory, the new segments have only the rows
// written since the capture, and rows of zeros for rows deleted since. Readers see the new segments only once all are
// complete. replaceFrozen returns false if successorLocked finds no segment, or if more than rowsLimit rows were
// written. unneeded are parts that the caller must release; some may be nil.
func (t *Table) replaceFrozen(f *frozen, rowsLimit int) (unneeded []*coldPart, replaced bool) {
	t.writing.Lock() // Apply must not lose rows that it brought into memory
	defer t.writing.Unlock()
	t.mu.Lock()
	defer t.unlock()
	made := f.parts(t.dir.Load())
	rows := Page{Width: 1}
	var now *segment // the last one; the only one if the rows are sealed
	for of := f; of != nil; of = of.next {
		if _, _, now = t.successorLocked(of); now == nil {
			return made, false
		}
		_ = rows.append(of.s.written(now, len(made) > 0))
		unneeded = append(unneeded, now.cold)
	}
	if len(rows.IDs) > rowsLimit {
		return made, false
	}
	d := t.dir.Load()
	i := d.find(f.first)
	for of := f.next; of != nil; of = of.next {
		d = d.without(i + 1)
	}
	for _, part := range unneeded {
		t.coldParts.Add(-part.parts())
	}
	build := func(rows *Page, first, last uint64) *segment {
		n := t.salts.segmentOf(rows, t.salts.shape(rows, first, last))
		n.epoch = t.mu.epoch
		return n
	}
	if len(made) == 0 {
		n := build(&rows, f.first, f.end().last)
		if d.segs[i].Store(n); n.rows == 0 && i < len(d.segs)-1 {
			d = d.without(i)
		}
		t.dir.Store(d)
		return unneeded, true
	}
	segs := make([]*segment, len(made))
	at := 0
	for j, part := range made {
		from := at
		for at < len(rows.IDs) && rows.IDs[at] <= part.last {
			at++
		}
		segs[j] = build(rows.slice(from, at), part.first, part.last)
		segs[j].cold, segs[j].seal.again = part, now.seal.again
		if part.onDisk() {
			t.addColdLocked(part.last)
		} else if now == f.s {
			segs[j].watched = now.watched & toFreeze // nobody wrote to it: keep the mark of Watch
		}
	}
	t.dir.Store(d.divide(i, segs, func(j int) uint64 { return made[j].first }))
	return unneeded, true
}

// written returns the rows of a later state of the segment that differ in s. If zeros is set, it includes the rows of
// zeros that hide cold rows, and a row of zeros for each row that was removed.
func (s *segment) written(later *segment, zeros bool) *Page {
	rows := s.changed(later, zeros)
	if zeros {
		// In a segment with a cold part, deleted rows stay as rows of zeros. In a segment without
		// one they are removed, so changed does not return them.
		for _, id := range later.gone(s) {
			rows = append(rows, slotID{id, noSlot})
		}
	}
	sortByID(rows)
	p := &Page{Width: later.columns()}
	row := make([]int64, p.Width)
	for _, r := range rows {
		if clear(row); r.slot != noSlot {
			later.load(int(r.slot), row)
		}
		p.add(r.id, row)
	}
	return p
}

// changed compares s with a later state of the same segment. It returns the slots of the later
// state whose rows are absent from s or differ there. It includes rows of zeros, which hide cold
// rows, only if zeros is set.
func (s *segment) changed(later *segment, zeros bool) []slotID {
	var slots []slotID
	if s == later {
		return nil
	}
	var was, is [ColumnsMax]int64
	later.each(func(slot int, id uint64) {
		later.load(slot, is[:])
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

// gone returns the ids of rows that the segment old has and s lacks.
func (s *segment) gone(old *segment) []uint64 {
	var ids []uint64
	if s == old {
		return nil
	}
	old.each(func(_ int, id uint64) {
		if !s.covers(id) || s.find(s.place(id)) < 0 {
			ids = append(ids, id)
		}
	})
	return ids
}
