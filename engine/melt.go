package engine

// meltTriesMax bounds how often melt builds segments concurrently with the writer. At the next
// attempt, the writer waits for melt.
const meltTriesMax = 3

// melt replaces a captured segment by one without sealed rows, or by two if the rows are too many
// for one. It does nothing if the segment's range or cold part changed since the capture.
func (t *Table) melt(f *frozen) {
	for range meltTriesMax {
		pieces, start := t.salts.melted(f)
		t.mu.Lock()
		done := t.replaceMeltedLocked(f, pieces, start)
		t.mu.Unlock()
		if done {
			return
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, _, now := t.successorLocked(f); now != nil {
		f.s = now
		pieces, start := t.salts.melted(f)
		t.replaceMeltedLocked(f, pieces, start)
	}
}

// melted returns one or two segments with all rows of f.s. If there are two, start is the first id
// of the second. Two always suffice: the sealed rows came from one segment, and the rows in memory
// are in one.
func (s *salts) melted(f *frozen) (pieces []*segment, start uint64) {
	var c collector
	p, _ := c.collectAll(f.s, 0, f.s.widest()) // rows in memory never fail to load
	if sh := s.shape(p, f.first, f.last); sh.buckets <= bucketsMax {
		return []*segment{s.segmentOf(p, sh)}, 0
	}
	half := len(p.IDs) / 2
	start = p.IDs[half]
	left, right := p.slice(0, half), p.slice(half, len(p.IDs))
	return []*segment{
		s.segmentOf(left, s.shape(left, f.first, start-1)),
		s.segmentOf(right, s.shape(right, start, f.last)),
	}, start
}

// replaceMeltedLocked replaces f.s by pieces. If f.s was written to, it sets f.s to the present
// segment and returns false.
func (t *Table) replaceMeltedLocked(f *frozen, pieces []*segment, start uint64) (done bool) {
	d, i, now := t.successorLocked(f)
	switch {
	case now == nil:
		return true
	case now != f.s:
		now.watched |= toSeal
		f.s = now
		return false
	}
	now.seal.putOff()
	for _, n := range pieces {
		n.seal, n.epoch = now.seal, t.mu.epoch
	}
	if len(pieces) == 1 && pieces[0].rows == 0 && i < len(d.segs)-1 {
		t.dir.Store(d.without(i))
	} else {
		t.dir.Store(d.divide(i, pieces, func(int) uint64 { return start }))
	}
	return true
}

// shape returns the shape of a segment with the page's rows.
func (s *salts) shape(p *Page, first, last uint64) shape {
	slots := make([]slotID, len(p.IDs))
	for i, id := range p.IDs {
		slots[i].id = id
	}
	return s.class.shapeOf(slots, first, last)
}

// segmentOf returns a segment with a page's rows and the given shape, at most twice as large. The page
// may have rowsMax rows at most. The epoch of the segment is not set.
func (s *salts) segmentOf(p *Page, sh shape) *segment {
	words := 1
	for i, v := range p.Counts {
		if v != 0 {
			words = max(words, i%p.Width/wordColumns+1)
		}
	}
	return s.mustBuild(sh, words, 0, func(n *segment) bool {
		var row [ColumnsMax]int64
		for i, id := range p.IDs {
			copy(row[:], p.Row(i))
			if !n.insert(id, row[:n.columns()]) {
				return false
			}
		}
		return true
	})
}
