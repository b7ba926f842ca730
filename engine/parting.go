package engine

import (
	"errors"
	"fmt"
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
	disk   diskRows
}

var (
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
// in the parts. It needs the memory of the segment, and of the last segment of each part, twice. It reads
// rows on disk, and leaves them there: each part gets a share of their generation.
// Calls must run concurrently neither with each other nor with Seal nor with Freeze.
func (g *Parting) Step() (more bool, err error) {
	defer func() { g.disk.of = nil }()
	for try := 0; ; try++ {
		m := g.capture()
		if m == nil {
			return false, nil
		}
		if err := g.build(m); err != nil {
			return false, err
		}
		p := g.lock()
		done := m.follow()
		if !done && try == partTriesMax {
			m = g.captureLocked()
			err = g.build(m) // has the rows on disk from the first attempt, so the writer does not wait for the disk
			done = err == nil
		}
		if done {
			more = m.publish()
		}
		g.unlock(p)
		switch {
		case err != nil:
			return false, err
		case !done:
			continue
		}
		m.releaseCold()
		if !more {
			*g = Parting{table: g.table, by: g.by} // free the memory
		}
		return more, nil
	}
}

// Split returns the tables of the parts of a table, in their order. It returns ErrUnparted unless
// Partings by an equal Partition have moved all rows, and ErrParted if another Partition has moved
// some. It takes the same time for any number of rows. Afterwards the table must not be written any
// more. Readers that still use it see the later writes to the parts. The caller closes the table and
// those of the parts, because each has references to rows on disk.
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
	held := []*coldPart{}
	for _, table := range p.tables {
		table.Rises = newRises(&table.mu.Mutex)
		d := table.dir.Load()
		for i := range d.segs {
			if part := d.segs[i].Load().cold; part != nil {
				part.retain()
				held = append(held, part)
			}
		}
	}
	if t.mu.handed == nil {
		t.mu.handed = held
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
	rows  Page     // its rows, including those on disk
	parts []movedPart
}

// movedPart is what a move does to one part: it replaces the last segment of the part by pieces or,
// if the last segment is sealed and from is not or vice versa, appends the pieces to it. If the pieces have rows on
// disk, it appends them, unless the last segment is empty, and after them an empty segment. So the last segment of a
// part never has rows on disk.
type movedPart struct {
	end    *segment // the last segment of the part when it was captured
	first  uint64   // first id that it owns
	moved  int64    // number of rows moved to the part
	digest uint64   // their digest

	share    *coldPart // its rows on disk; nil for none
	replaces bool      // the pieces replace end
	pieces   []*segment
	starts   []uint64 // the first id of each piece's range
}

func (g *Parting) capture() *move {
	p := g.lock()
	defer g.unlock(p)
	return g.captureLocked()
}

// captureLocked captures the segment that moves next. It returns nil if there is none.
func (g *Parting) captureLocked() *move {
	d := g.table.dir.Load()
	p, s := d.parted(), d.segs[0].Load()
	if p.whole {
		return nil
	}
	s.watched |= toPart
	m := &move{table: g.table, p: p, last: d.last(0), from: s, parts: make([]movedPart, len(p.tables))}
	for i, table := range p.tables {
		of := table.dir.Load()
		end := len(of.segs) - 1
		m.parts[i] = movedPart{end: of.segs[end].Load(), first: of.first(end)}
		m.parts[i].end.watched |= toPart
	}
	return m
}

// build makes the segments of the parts.
func (g *Parting) build(m *move) error {
	if err := g.disk.read(m.from.cold); err != nil {
		return fmt.Errorf("cannot read the rows of segment %d: %w", m.p.above, err)
	}
	moving := g.collect(m)
	for i, id := range m.rows.IDs {
		q := &m.parts[m.p.by.Of(id)]
		q.moved++
		q.digest += RowDigest(id, m.rows.Row(i))
	}
	for i := range g.pages {
		g.pages[i].clear(moving.Width)
	}
	for i, id := range moving.IDs {
		part := m.p.by.Of(id)
		if row := moving.Row(i); !isZeroRow(row) || m.parts[part].share.mayHave(id) {
			g.pages[part].add(id, row)
		}
	}
	packed := m.from.cold.sealed() != nil
	for i := range m.parts {
		q, page, salts := &m.parts[i], &g.pages[i], &m.p.tables[i].salts
		if len(page.IDs) == 0 && q.share == nil {
			continue
		}
		first := m.p.above
		empty := q.end.rows == 0 && q.end.cold == nil
		if q.replaces = empty || q.share == nil && packed == (q.end.cold.sealed() != nil); q.replaces {
			first = q.first
		}
		if q.share != nil {
			q.add(salts, page, first, m.last, q.share)
			continue
		}
		if q.replaces {
			page = g.ends[i].join(q.end, page)
		}
		for {
			n := piece(salts, page, first, m.last)
			if n == len(page.IDs) {
				q.pack(salts, &g.sealer, page, first, m.last, packed)
				break
			}
			next := page.IDs[n]
			q.pack(salts, &g.sealer, page.slice(0, n), first, next-1, packed)
			page, first = page.slice(n, len(page.IDs)), next
		}
	}
	return nil
}

// join returns the rows of a segment and of a page with higher ids.
func (c *collector) join(s *segment, page *Page) *Page {
	all, _ := c.collectAll(s, 0, max(s.widest(), page.Width)) // rows in memory never fail to load
	_ = all.append(page)
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

// pack is like add, without rows on disk. It seals the rows if packed is set.
func (q *movedPart) pack(salts *salts, sealer *Sealer, page *Page, first, last uint64, packed bool) {
	if packed && len(page.IDs) >= bucketRows {
		if sealed := sealer.seal(page, salts); sealed != nil {
			n := newSegment(newGeometry(bucketsMin, false, salts.class.floor(first), salts.class, salts.next()), bucketsMin, 1, 0)
			n.cold = &coldPart{generation: sealed, first: first, last: last}
			q.pieces, q.starts = append(q.pieces, n), append(q.starts, first)
			return
		}
	}
	q.add(salts, page, first, last, nil)
}

// add makes a piece, or several if the rows do not fit in one. The pieces own the ids first … last, and have
// the rows of a page in their arrays, and those of share on disk. share may be nil.
func (q *movedPart) add(salts *salts, page *Page, first, last uint64, share *coldPart) {
	sh := salts.shape(page, first, last)
	if sh.wide {
		sh.buckets = bucketsFor(len(page.IDs)+len(page.IDs)/64, true)
	}
	if half := len(page.IDs) / 2; sh.buckets > bucketsMax {
		middle := page.IDs[half]
		below, above := share.cut(middle)
		q.add(salts, page.slice(0, half), first, middle-1, below)
		q.add(salts, page.slice(half, len(page.IDs)), middle, last, above)
		return
	}
	n := salts.segmentOf(page, sh)
	n.cold = share
	q.pieces, q.starts = append(q.pieces, n), append(q.starts, first)
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
		d := table.dir.Load()
		for _, piece := range q.pieces {
			piece.epoch = table.mu.epoch
			if piece.cold.onDisk() {
				piece.cold.retain()
				table.addColdLocked(piece.cold.last)
			}
		}
		if end := len(d.segs) - 1; len(q.pieces) > 0 {
			if !q.replaces {
				d = d.with(end, nil, q.starts[0], q.pieces[0])
				end++
			}
			d = d.divide(end, q.pieces, func(j int) uint64 { return q.starts[j] })
		}
		if q.share != nil && m.last < 1<<64-1 {
			d = d.with(len(d.segs)-1, nil, m.last+1, table.emptyLocked(m.last+1))
		}
		table.dir.Store(d) // once: readers of the part must find its earlier rows at any moment
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
	m.table.coldParts.Add(-m.from.cold.parts())
	return !p.whole
}
