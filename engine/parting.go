package engine

import (
	"errors"
	"slices"
)

// Parting divides a table into a table for each part, in place and concurrently with the writer.
// The rows below a frontier of ids are in the tables of the parts; each Step moves the rows of the
// next segment to them. The table serves all rows meanwhile, and its contents stay as they are. To
// drop a Parting, call Step no more: the table then stays half parted, and a later Parting of an
// equal Partition goes on. Segments below the frontier do not move to disk (Table.Watch).
type Parting struct {
	table *Table
	by    Partition

	// Memory that the steps reuse.
	from   collector
	ends   []collector
	pages  []Page
	sealer Sealer
}

var (
	// ErrOnDisk is returned by Step if the next segment has rows on disk.
	ErrOnDisk = errors.New("a table with rows on disk cannot be parted")
	// ErrParted is returned by NewParting if the table was parted by another Partition.
	ErrParted = errors.New("the table was parted in another way")
	// ErrUnparted is returned by Split if the table still has rows of its own.
	ErrUnparted = errors.New("not all rows of the table were parted")
)

// NewParting begins to part a table, or goes on. The table must not be loading.
func NewParting(t *Table, by Partition) (*Parting, error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	if p := d.parted(); p != nil {
		if p.by != by {
			return nil, ErrParted
		}
		return newParting(t, by, len(p.tables)), nil
	}
	p := &parted{by: by}
	for _, class := range by.Classes() {
		table := NewOf(class)
		table.Rises = t.Rises
		p.tables = append(p.tables, table)
	}
	began := newDirectory(len(d.segs), &keys{t.salts.class, p})
	copy(began.before, d.before)
	for i := range d.segs {
		began.segs[i].Store(d.segs[i].Load())
	}
	t.dir.Store(began)
	return newParting(t, by, len(p.tables)), nil
}

// CheckParting returns ErrParted if another Partition than by has parted the table.
func CheckParting(t *Table, by Partition) error {
	if p := t.dir.Load().parted(); p != nil && p.by != by {
		return ErrParted
	}
	return nil
}

func newParting(t *Table, by Partition, parts int) *Parting {
	return &Parting{table: t, by: by, ends: make([]collector, parts), pages: make([]Page, parts)}
}

// partTriesMax bounds how often Step builds segments concurrently with the writer. At the next
// attempt, the writer waits for Step.
const partTriesMax = 3

// Step moves the rows of the table's first segment to the parts. It returns false once all rows are
// in the parts. It needs the memory of the segment, and of the last segment of each part, twice.
// Calls must run concurrently neither with each other nor with Seal nor with Freeze.
func (g *Parting) Step() (more bool, err error) {
	for range partTriesMax {
		m, err := g.capture()
		if m == nil {
			return false, err
		}
		g.build(m)
		p := g.lock()
		done := m.follow()
		if done {
			more = m.publish()
		}
		g.unlock(p)
		if done {
			if !more {
				*g = Parting{table: g.table, by: g.by} // free the memory
			}
			return more, nil
		}
	}
	p := g.lock()
	defer g.unlock(p)
	m, err := g.captureLocked()
	if m == nil {
		return false, err
	}
	g.build(m)
	return m.publish(), nil
}

// Split returns the tables of the parts of a table, in their order. It returns ErrUnparted unless
// Partings by an equal Partition have moved all rows, and ErrParted if another Partition has moved
// some. It takes the same time for any number of rows. Afterwards the table must not be written any
// more. Readers that still use it see the later writes to the parts.
func Split(t *Table, by Partition) ([]*Table, error) {
	p := t.dir.Load().parted()
	switch {
	case p == nil:
		return nil, ErrUnparted
	case p.by != by:
		return nil, ErrParted
	}
	g := Parting{table: t}
	p = g.lock()
	defer g.unlock(p)
	if !p.whole {
		return nil, ErrUnparted
	}
	for _, table := range p.tables {
		table.Rises = newRises(&table.mu.Mutex)
	}
	return p.tables, nil
}

// lock excludes all writes to the table and its parts.
func (g *Parting) lock() *parted {
	g.table.writing.Lock()
	g.table.mu.Lock()
	p := g.table.dir.Load().parted()
	p.lock()
	return p
}

func (g *Parting) unlock(p *parted) {
	p.unlock()
	g.table.unlock()
	g.table.writing.Unlock()
}

// move is the move of one segment to the parts.
type move struct {
	table *Table
	p     *parted
	last  uint64   // last id that the segment owns
	from  *segment // the segment when it was captured
	rows  Page     // its rows
	parts []movedPart
}

// movedPart is what a move does to one part: it replaces the last segment of the part by pieces or,
// if the last segment is sealed and from is not or vice versa, appends the pieces to it.
type movedPart struct {
	end    *segment // the last segment of the part when it was captured
	first  uint64   // first id that it owns
	moved  int64    // number of rows moved to the part
	digest uint64   // their digest

	replaces bool // the pieces replace end
	pieces   []*segment
	starts   []uint64 // the first id of each piece's range
}

func (g *Parting) capture() (*move, error) {
	p := g.lock()
	defer g.unlock(p)
	return g.captureLocked()
}

// captureLocked captures the segment that moves next. It returns nil if there is none.
func (g *Parting) captureLocked() (*move, error) {
	d := g.table.dir.Load()
	p, s := d.parted(), d.segs[0].Load()
	if p.whole {
		return nil, nil
	}
	if s.cold.onDisk() {
		return nil, ErrOnDisk
	}
	s.watched |= toPart
	m := &move{table: g.table, p: p, last: d.last(0), from: s, parts: make([]movedPart, len(p.tables))}
	for i, table := range p.tables {
		of := table.dir.Load()
		end := len(of.segs) - 1
		m.parts[i] = movedPart{end: of.segs[end].Load(), first: of.first(end)}
		m.parts[i].end.watched |= toPart
	}
	return m, nil
}

// build makes the segments of the parts.
func (g *Parting) build(m *move) {
	rows, _ := g.from.collectAll(m.from, 0, m.from.widest()) // rows in memory never fail to load
	m.rows = *rows
	for i := range g.pages {
		g.pages[i].clear(rows.Width)
	}
	for i, id := range rows.IDs {
		part := m.p.by.Of(id)
		g.pages[part].add(id, rows.Row(i))
		m.parts[part].moved++
		m.parts[part].digest += RowDigest(id, rows.Row(i))
	}
	packed := m.from.cold.sealed() != nil
	for i := range m.parts {
		q, page, salts := &m.parts[i], &g.pages[i], &m.p.tables[i].salts
		if len(page.IDs) == 0 {
			continue
		}
		first := m.p.above
		empty := q.end.rows == 0 && q.end.cold == nil
		if q.replaces = empty || packed == (q.end.cold.sealed() != nil); q.replaces {
			page, first = g.ends[i].join(q.end, page), q.first
		}
		for {
			n := piece(salts, page, first, m.last)
			if n == len(page.IDs) {
				q.add(salts, &g.sealer, page, first, m.last, packed)
				break
			}
			next := page.IDs[n]
			q.add(salts, &g.sealer, page.slice(0, n), first, next-1, packed)
			page, first = page.slice(n, len(page.IDs)), next
		}
	}
}

// join returns the rows of a segment and of a page with higher ids.
func (c *collector) join(s *segment, page *Page) *Page {
	all, _ := c.collectAll(s, 0, max(s.widest(), page.Width)) // rows in memory never fail to load
	for i, id := range page.IDs {
		all.add(id, page.Row(i))
		all.Counts = append(all.Counts, zeros[:all.Width-page.Width]...)
	}
	return all
}

// pieceRowsWide is the number of rows in a full piece with wide tags. Few salts suit a full array
// with wide tags, so some slots stay empty.
const pieceRowsWide = bucketsMax * slotsWide * loadNumerator / loadDenominator * 64 / 65

// piece returns how many of the page's rows fit in one piece, so that the piece is as full as
// possible.
func piece(salts *salts, page *Page, first, last uint64) int {
	n := min(len(page.IDs), rowsMax)
	if n > pieceRowsWide && salts.shape(page.slice(0, n), first, last).wide {
		return pieceRowsWide
	}
	return n
}

// add makes a piece, or several if the rows do not fit in one. The rows own the ids first … last.
func (q *movedPart) add(salts *salts, sealer *Sealer, page *Page, first, last uint64, packed bool) {
	if packed && len(page.IDs) >= bucketRows {
		if sealed := sealer.seal(page, salts); sealed != nil {
			n := newSegment(newGeometry(bucketsMin, false, salts.class.floor(first), salts.class, salts.next()), bucketsMin, 1, 0)
			n.cold = &coldPart{generation: sealed, first: first, last: last}
			q.pieces, q.starts = append(q.pieces, n), append(q.starts, first)
			return
		}
	}
	sh := salts.shape(page, first, last)
	if sh.wide {
		sh.buckets = bucketsFor(len(page.IDs)+len(page.IDs)/64, true)
	}
	if half := len(page.IDs) / 2; sh.buckets > bucketsMax {
		middle := page.IDs[half]
		q.add(salts, sealer, page.slice(0, half), first, middle-1, packed)
		q.add(salts, sealer, page.slice(half, len(page.IDs)), middle, last, packed)
		return
	}
	q.pieces, q.starts = append(q.pieces, salts.segmentOf(page, sh)), append(q.starts, first)
}

// follow changes the pieces so that they have the rows written since the capture. It returns false
// if it cannot. It must exclude writes.
func (m *move) follow() bool {
	d := m.table.dir.Load()
	now := d.segs[0].Load()
	if d.last(0) != m.last || now.cold != m.from.cold {
		return false
	}
	var row [ColumnsMax]int64
	if !m.from.eachChange(now, func(id uint64, slot int32) bool {
		clear(row[:])
		if slot != noSlot {
			now.load(int(slot), row[:])
		}
		part := m.p.by.Of(id)
		q := &m.parts[part]
		if i, had := slices.BinarySearch(m.rows.IDs, id); had {
			q.digest -= RowDigest(id, m.rows.Row(i))
			q.moved--
		}
		if !isZeroRow(row[:]) {
			q.digest += RowDigest(id, row[:])
			q.moved++
		}
		return q.put(&m.p.tables[part].salts, m.last, id, row[:])
	}) {
		return false
	}
	for i := range m.parts {
		q := &m.parts[i]
		of := m.p.tables[i].dir.Load()
		end := len(of.segs) - 1
		now := of.segs[end].Load()
		emptied := now.rows == 0 && now.cold == nil // only the last segment may be empty
		if of.first(end) != q.first || now.cold != q.end.cold || len(q.pieces) > 0 && !q.replaces && emptied {
			return false
		}
		if q.replaces && !q.end.eachChange(now, func(id uint64, slot int32) bool {
			clear(row[:])
			if slot != noSlot {
				now.load(int(slot), row[:])
			}
			return q.put(&m.p.tables[i].salts, m.last, id, row[:])
		}) {
			return false
		}
		for j, piece := range q.pieces {
			if piece.rows == 0 && piece.cold == nil && j < len(q.pieces)-1 {
				return false
			}
		}
	}
	return true
}

// eachChange calls fn with each row that differs in a later state of the segment, and its slot
// there; the slot is noSlot if the row was removed. It stops if fn returns false, and returns that.
func (s *segment) eachChange(later *segment, fn func(id uint64, slot int32) bool) bool {
	for _, r := range s.changed(later, later.cold != nil) {
		if !fn(r.id, r.slot) {
			return false
		}
	}
	for _, id := range later.gone(s) {
		if !fn(id, noSlot) {
			return false
		}
	}
	return true
}

// put changes a row of the pieces. last is the last id that they own. It returns false if the row
// needs other pieces.
func (q *movedPart) put(salts *salts, last, id uint64, row []int64) bool {
	if len(q.pieces) == 0 {
		return isZeroRow(row)
	}
	i, found := slices.BinarySearch(q.starts, id)
	if !found {
		i = max(i-1, 0)
	}
	if q.pieces[i].put(id, row) {
		return true
	}
	if i < len(q.starts)-1 {
		last = q.starts[i+1] - 1
	}
	n := q.pieces[i].grown(salts, id, row, q.starts[i], last)
	if n == nil || !n.put(id, row) {
		return false
	}
	q.pieces[i] = n
	return true
}

// put changes a row of a segment that has no readers. It returns false if the row does not fit.
func (s *segment) put(id uint64, row []int64) bool {
	if !s.covers(id) || !isZeroRow(row[s.columns():]) {
		return false
	}
	slot := s.find(s.place(id))
	zero, hides := isZeroRow(row), s.cold.mayHave(id)
	switch row = row[:s.columns()]; {
	case slot >= 0 && zero && !hides:
		s.remove(slot)
	case slot >= 0:
		s.update(slot, row)
	case !zero || hides:
		return s.rows < rowsMax && s.insert(id, row)
	}
	return true
}

// grown returns a larger copy of a segment that owns ids first … last, with room for a row. It
// returns nil if there is none.
func (s *segment) grown(salts *salts, id uint64, row []int64, first, last uint64) *segment {
	words := 1
	for c, v := range row {
		if v != 0 {
			words = c/wordColumns + 1
		}
	}
	slots := s.occupied()
	sh := salts.class.shapeFor(max(len(slots), rowsFor(len(s.buckets), s.wide))+1, slots, id, first, last)
	if sh.buckets > bucketsMax {
		return nil
	}
	n := salts.build(sh, max(words, s.wordsUsed(slots)), 0, s.copier(slots))
	if n != nil {
		n.cold = s.cold
	}
	return n
}

// publish gives the pieces to the parts, and moves the frontier. It must exclude writes. It returns
// false if the parts have all rows now.
func (m *move) publish() (more bool) {
	for i := range m.parts {
		q, table := &m.parts[i], m.p.tables[i]
		for j, piece := range q.pieces {
			piece.epoch = table.mu.epoch
			d := table.dir.Load()
			if end := len(d.segs) - 1; j == 0 && q.replaces {
				d.segs[end].Store(piece)
			} else {
				table.dir.Store(d.with(end, nil, q.starts[j], piece))
			}
		}
		table.rows.Add(q.moved)
		table.mu.digest += q.digest
		m.table.rows.Add(-q.moved)
		m.table.mu.digest -= q.digest
	}
	// Readers look up the rows in the parts only once they see the new frontier.
	d, p := m.table.dir.Load(), *m.p
	var rest *directory
	if len(d.segs) > 1 {
		rest = d.without(0)
		p.above = m.last + 1
	} else {
		rest = newDirectory(1, nil)
		rest.segs[0].Store(m.table.emptyLocked(0))
		p.whole = true
	}
	rest.keys = &keys{m.table.salts.class, &p}
	m.table.dir.Store(rest)
	return !p.whole
}
