package engine

// This file undoes sealing, concurrently with the writer.

// melt replaces f.s, whose rows are p, by one segment without sealed rows, or by two if
// one cannot hold the rows. It leaves the segment as it is if its range or cold part
// changed meanwhile, or if the writes since need another shape.
func (t *Table) melt(f *frozen, p *Page) {
	pieces, start := t.salts.melted(f, p)
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dir.Load()
	i := d.find(f.first)
	now := d.segs[i].Load()
	if d.first(i) != f.first || d.last(i) != f.last || now.cold != f.s.cold || !f.follow(now, pieces, start) {
		return
	}
	state := now.seal
	state.putOff()
	for _, n := range pieces {
		n.seal, n.epoch = state, t.mu.epoch
	}
	switch {
	case len(pieces) == 2:
		t.dir.Store(d.with(i, pieces[0], start, pieces[1]))
	case pieces[0].rows == 0 && i < len(d.segs)-1:
		t.dir.Store(d.without(i))
	default:
		d.segs[i].Store(pieces[0])
	}
}

// melted returns one or two segments with the rows of p, and the first id of the second.
// Sealed rows came from one segment, so two segments always have room for all rows.
func (s *salts) melted(f *frozen, p *Page) (pieces []*segment, start uint64) {
	if p.shape(f.first, f.last).buckets <= bucketsMax {
		return []*segment{s.segmentOf(p, f.first, f.last)}, 0
	}
	half := len(p.IDs) / 2
	start = p.IDs[half]
	left := s.segmentOf(&Page{p.IDs[:half], p.Width, p.Counts[:half*p.Width]}, f.first, start-1)
	right := s.segmentOf(&Page{p.IDs[half:], p.Width, p.Counts[half*p.Width:]}, start, f.last)
	return []*segment{left, right}, start
}

// follow applies to pieces, which hold the rows of f.s, the changes that lead to now, a
// later state of f.s. It returns false if a piece would need another shape, or if one of
// two pieces ends up empty.
func (f *frozen) follow(now *segment, pieces []*segment, start uint64) bool {
	if now == f.s {
		return true
	}
	var row [ColumnsMax]int64
	set := func(id uint64) bool {
		if len(pieces) == 2 && id >= start {
			return pieces[1].set(id, row[:])
		}
		return pieces[0].set(id, row[:])
	}
	for _, id := range now.gone(f.s) { // outside the part, where no row of zeros needs to stay
		if !set(id) {
			return false
		}
	}
	for _, r := range f.s.changed(now, true) {
		if now.load(int(r.slot), row[:]); !set(r.id) {
			return false
		}
	}
	return len(pieces) == 1 || pieces[0].rows > 0 && pieces[1].rows > 0
}

// set makes the row of id equal to row, which has ColumnsMax counts. It returns false and
// changes nothing if that needs another shape.
func (s *segment) set(id uint64, row []int64) bool {
	if !s.covers(id) || !isZeroRow(row[s.columns():]) {
		return false
	}
	slot, zero := s.find(s.place(id)), isZeroRow(row)
	switch {
	case slot < 0 && zero:
		return true
	case slot < 0:
		return !s.full() && s.insert(id, row[:s.columns()])
	case zero:
		s.remove(slot)
	default:
		s.update(slot, row)
	}
	return true
}
