package engine

import (
	"fmt"
	"slices"
)

// Load adds a page of a snapshot, from Snapshot.Pages, to a table that contains only lower ids. The caller
// must be the only writer. After an error, the table contains an arbitrary part of the page.
func (t *Table) Load(p *Page) error {
	if err := t.salts.class.check(p); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.unlock()
	if len(p.IDs) < appendRowsMin {
		return t.loadLocked(p)
	}
	if err := p.checkBehindLocked(t); err != nil {
		return err
	}
	for _, piece := range p.pieces() {
		piece.appendLocked(t)
	}
	return nil
}

// appendLocked appends a page, whose ids are above all rows of table t, as new segments. It builds
// each segment once. If it added the rows one by one, it would rebuild their segment several times.
func (p *Page) appendLocked(t *Table) {
	d, rows := t.dir.Load(), len(p.IDs)
	end := len(d.segs) - 1
	last, first := d.segs[end].Load(), p.IDs[0]
	empty := last.rows == 0 && last.cold == nil
	if empty {
		first = d.first(end)
	}
	sh := t.salts.class.shapeFor(rows, []slotID{{id: p.IDs[rows-1]}}, p.IDs[0], first, 1<<64-1)
	if sh.buckets > bucketsMax {
		p.slice(0, rows/2).appendLocked(t)
		p.slice(rows/2, rows).appendLocked(t)
		return
	}
	if sh.wide {
		// Few salts suit a full array with wide tags, so leave some slots empty.
		sh.buckets = bucketsFor(rows+rows/64, true)
	}
	columns := 1
	for i, id := range p.IDs {
		row := p.Row(i)
		for columns < p.Width && !isZeroRow(row[columns:]) {
			columns++
		}
		t.mu.digest += RowDigest(id, row)
	}
	n := t.salts.mustBuild(sh, (columns+wordColumns-1)/wordColumns, t.mu.epoch, func(n *segment) bool {
		var row [ColumnsMax]int64
		for i, id := range p.IDs {
			if copy(row[:], p.Row(i)); !n.insert(id, row[:n.columns()]) {
				return false
			}
		}
		return true
	})
	if t.rows.Add(int64(rows)); empty {
		d.segs[end].Store(n)
	} else {
		t.dir.Store(d.with(end, nil, first, n))
	}
}

func (t *Table) loadLocked(p *Page) error {
	if err := p.checkShape(); err != nil {
		return err
	}
	for i, id := range p.IDs {
		if !t.isBehindLocked(id) {
			return fmt.Errorf("cannot load page: id %d is not above all others", id)
		}
		row, old := t.mu.row[:], t.mu.old[:]
		clear(row[copy(row, p.Row(i)):])
		clear(old)
		t.replaceLocked(t.dir.Load().find(id), -1, id, old, row)
	}
	return nil
}

// Cut starts a new segment at id, so that later rows share no segment with rows below id. If the
// last segment is empty, Cut reuses it and returns the first id of its range. Otherwise it returns
// id. If id is not above all rows, Cut changes nothing.
func (t *Table) Cut(id uint64) (first uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	end := len(d.segs) - 1
	last := d.segs[end].Load()
	switch {
	case !t.isBehindLocked(id):
		return id
	case id == d.first(end) || last.rows == 0 && last.cold == nil:
		return d.first(end)
	}
	t.dir.Store(d.with(end, nil, id, t.emptyLocked(id)))
	return id
}

// emptyLocked returns a small empty segment whose range begins at first.
func (t *Table) emptyLocked(first uint64) *segment {
	return newSegment(newGeometry(bucketsMin, false, t.salts.class.floor(first), t.salts.class, t.salts.next()), bucketsMin, 1, t.mu.epoch)
}

// LoadSealed is like Load, but packs the rows directly, without first building an ordinary segment.
// If there are too few rows, or they cannot be sealed, it loads them unsealed.
func (t *Table) LoadSealed(p *Page, with *Sealer) error {
	if len(p.IDs) < sealRowsMin {
		return t.Load(p)
	}
	if err := t.salts.class.check(p); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.unlock()
	if err := p.checkBehindLocked(t); err != nil {
		return err
	}
	for _, piece := range p.pieces() {
		packed := with.seal(piece, &t.salts)
		if packed == nil {
			if err := t.loadLocked(piece); err != nil {
				return err
			}
			continue
		}
		t.appendSealedLocked(packed)
		t.rows.Add(int64(len(piece.IDs)))
		for i, id := range piece.IDs {
			t.mu.digest += RowDigest(id, piece.Row(i))
		}
	}
	return nil
}

// checkShape verifies that the number of counts matches the ids and the width.
func (p *Page) checkShape() error {
	if p.Width < 1 || p.Width > ColumnsMax || len(p.Counts) != len(p.IDs)*p.Width {
		return fmt.Errorf("cannot load page: %d counts for %d ids of width %d", len(p.Counts), len(p.IDs), p.Width)
	}
	return nil
}

// checkBehindLocked verifies that a page's rows are in order and above all rows of the table, which
// the caller has locked.
func (p *Page) checkBehindLocked(t *Table) error {
	if err := p.checkShape(); err != nil {
		return err
	}
	for i := range p.IDs {
		if i > 0 && p.IDs[i] <= p.IDs[i-1] || i == 0 && !t.isBehindLocked(p.IDs[0]) || isZeroRow(p.Row(i)) {
			return fmt.Errorf("cannot load page: row %d is id %d %v", i, p.IDs[i], p.Row(i))
		}
	}
	return nil
}

// isBehindLocked reports whether an id is above all rows.
func (t *Table) isBehindLocked(id uint64) bool {
	d := t.dir.Load()
	end := len(d.segs) - 1
	last := d.segs[end].Load()
	return id >= d.first(end) && (last.rows == 0 || id > last.maxID) && (last.cold == nil || id > last.cold.last)
}

// appendSealedLocked adds packed rows that are above all other rows.
func (t *Table) appendSealedLocked(packed *sealed) {
	d := t.dir.Load()
	first := packed.base
	if end := len(d.segs) - 1; d.segs[end].Load().rows == 0 {
		first = d.first(end)
	}
	t.appendPartLocked(&coldPart{generation: packed, first: first, last: packed.maxID})
}

// appendPartLocked adds a part as a segment above all rows, and after it an empty
// segment for the ids that follow.
func (t *Table) appendPartLocked(part *coldPart) *segment {
	d := t.dir.Load()
	end := len(d.segs) - 1
	last := d.segs[end].Load()
	n := t.emptyLocked(part.first)
	n.cold = part
	if last.rows == 0 && last.cold == nil {
		d.segs[end].Store(n)
	} else {
		d = d.with(end, nil, part.first, n)
		end++
	}
	if part.last < 1<<64-1 {
		d = d.with(end, nil, part.last+1, t.emptyLocked(part.last+1))
	}
	t.dir.Store(d)
	return n
}

// LoadCold adds a part of a snapshot, from Snapshot.Parts, to a table that contains only lower ids.
// It takes over the caller's reference to the generation, also on an error. It does not read the
// cold rows, so the table's row count and digest do not include them. Adopt sets both after the
// last part.
func (t *Table) LoadCold(p *Part) error {
	t.mu.Lock()
	defer t.unlock()
	d := t.dir.Load()
	end := len(d.segs) - 1
	last := d.segs[end].Load()
	if p.Last < p.First || p.Rows < 0 || last.cold != nil || last.rows > 0 && p.First <= last.maxID || p.First < d.first(end) {
		p.Cold.Release()
		return fmt.Errorf("cannot load cold rows %d…%d: they are not above all earlier rows", p.First, p.Last)
	}
	part := &coldPart{generation: p.Cold, first: p.First, last: p.Last, divided: d.noteDivided(p.Cold), filter: p.Filter}
	if part.share() {
		part.rows = p.Rows
	}
	t.appendPartLocked(part)
	t.addColdLocked(p.Last)
	for i, id := range p.Page.IDs {
		row := t.mu.row[:]
		clear(row[copy(row, p.Page.Row(i)):])
		if id < p.First || id > p.Last || i > 0 && id <= p.Page.IDs[i-1] {
			return fmt.Errorf("cannot load cold rows %d…%d: row %d in memory", p.First, p.Last, id)
		}
		t.warmLocked(id, row)
	}
	return nil
}

// partsNearMax is how many of the last segments noteDivided searches for another part of a
// generation. The parts of a generation are near each other, because it has only about 10,000
// adjacent rows.
const partsNearMax = 16

// noteDivided reports whether the last segments already have a part of the generation. If so, it
// marks that part as one of several. It needs no copy for that, because nobody reads a table that
// is being loaded.
func (d *directory) noteDivided(g Generation) bool {
	for i := len(d.segs) - 1; i >= max(0, len(d.segs)-partsNearMax); i-- {
		if part := d.segs[i].Load().cold; part != nil && part.generation == g {
			part.divided = true
			return true
		}
	}
	return false
}

// Adopt sets the row count and the digest of a table after LoadCold has loaded its last part.
func (t *Table) Adopt(rows int64, digest uint64) {
	t.mu.Lock()
	defer t.unlock()
	t.rows.Store(rows)
	t.mu.digest = digest
}

// Close releases the table's cold rows. Afterwards the caller must not call Apply or Freeze, and
// reads of cold rows may fail.
func (t *Table) Close() {
	for _, part := range t.cold() {
		part.release()
	}
}

// cold returns the parts to which the table has references.
func (t *Table) cold() (parts []*coldPart) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	for i := range d.segs {
		if part := d.segs[i].Load().cold; part != nil {
			parts = append(parts, part)
		}
	}
	switch p := d.parted(); {
	case p == nil:
	case t.mu.handed != nil:
		parts = append(parts, t.mu.handed...)
	default:
		for _, table := range p.tables {
			parts = append(parts, table.cold()...)
		}
	}
	return parts
}

// Shares reports whether a table shares generations with tables of other parts of a split shard.
func Shares(t *Table) bool { return slices.ContainsFunc(t.cold(), (*coldPart).share) }

// OnDisk returns the generations on disk to which a table has references.
func OnDisk(t *Table) (all []Generation) {
	for _, part := range t.cold() {
		if part.onDisk() {
			all = append(all, part.generation)
		}
	}
	return all
}
