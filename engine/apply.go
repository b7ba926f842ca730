package engine

import "sync/atomic"

// This file is the write path: it finds the row of an op and stores the result.

// Apply applies ops in their order. If width is not 0, it fills rows with width counts for each op.
// These are the counts of the row right after the op or, for an OpTake, the counts that it took. It
// appends an Overflow for each refused op to overflows and returns the longer slice. A refused op
// changes nothing. Apply panics if a cell names a column of ColumnsMax or above. Apply allocates
// only for new rows, for overflows, and when it rebuilds a segment after many deletes.
//
// Apply first brings cold rows of ops into memory. If it cannot read one, it returns an
// error and applies nothing.
//
// After Apply, the method Cuts returns the deltas that bounds changed.
func (t *Table) Apply(ops []Op, width int, rows []int64, overflows []Overflow) ([]Overflow, error) {
	return t.ApplyJudged(ops, width, rows, overflows, nil)
}

// A Judge may change each op just before ApplyJudged applies it, and gets a call for each refused
// op. Its methods must not use the table.
type Judge interface {
	// Before is called once all earlier ops are applied, just before the op itself is applied. It may
	// change the values of the op's cells.
	Before(op int)
	// ApplyJudged calls Refused just after it has refused an op.
	Refused(op int)
}

// ApplyJudged is like Apply, but also calls the methods of judge for each op. judge may be nil.
func (t *Table) ApplyJudged(ops []Op, width int, rows []int64, overflows []Overflow, judge Judge) ([]Overflow, error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	t.cuts = t.cuts[:0]
	k := t.dir.Load().keys
	if k != nil {
		k.check(ops)
	}
	if t.coldParts.Load() > 0 || k != nil && k.parted.anyCold() {
		if err := t.warmOps(ops); err != nil {
			return overflows, err
		}
	}
	if k != nil && k.parted != nil {
		return k.parted.apply(t, ops, width, rows, overflows, judge), nil
	}
	if len(ops) == 1 {
		return t.applyOne(&ops[0], rows[:width], overflows, judge), nil
	}
	t.mu.Lock()
	defer t.unlock()
	for from := 0; from < len(ops); from += pageRows {
		overflows = t.applyPageLocked(ops, from, width, rows, overflows, judge)
	}
	return overflows, nil
}

// Cuts returns the deltas of the last Apply that bounds changed, ordered by op. The
// slice is valid until the next Apply; only the goroutine that calls Apply may call Cuts.
func (t *Table) Cuts() []Cut { return t.cuts }

func (t *Table) applyOne(op *Op, dst []int64, overflows []Overflow, judge Judge) []Overflow {
	at := t.locate(op.ID)
	// Prefetch before Lock: the locked instruction in Lock would wait for an ordinary load.
	at.s.prefetch(at.p)
	t.mu.Lock()
	defer t.unlock()
	if !at.standsIn(t.dir.Load()) {
		at = t.locate(op.ID)
	}
	if judge != nil {
		judge.Before(0)
	}
	if refused, ok := t.applyLocked(op, 0, &at, dst); !ok {
		overflows = append(overflows, refused)
		if judge != nil {
			judge.Refused(0)
		}
	}
	return overflows
}

func (t *Table) applyPageLocked(ops []Op, from, width int, rows []int64, overflows []Overflow, judge Judge) []Overflow {
	var spots [pageRows]spot
	page := ops[from:min(len(ops), from+pageRows)]
	for i := range page {
		spots[i] = t.locate(page[i].ID)
		spots[i].s.prefetch(spots[i].p)
		if packed := spots[i].s.cold.sealed(); packed != nil && packed.covers(page[i].ID) {
			packed.prefetchStart(packed.place(page[i].ID))
		}
	}
	for i := range page {
		if !spots[i].standsIn(t.dir.Load()) { // an earlier op changed the structure
			spots[i] = t.locate(page[i].ID)
		}
		dst := rows[(from+i)*width : (from+i+1)*width]
		if judge != nil {
			judge.Before(from + i)
		}
		if refused, ok := t.applyLocked(&page[i], from+i, &spots[i], dst); !ok {
			overflows = append(overflows, refused)
			if judge != nil {
				judge.Refused(from + i)
			}
		}
	}
	return overflows
}

// apply applies ops to table t and its parts.
func (p *parted) apply(t *Table, ops []Op, width int, rows []int64, overflows []Overflow, judge Judge) []Overflow {
	t.mu.Lock()
	defer t.unlock()
	p.lock()
	defer p.unlock()
	var owners [pageRows]*Table
	var spots [pageRows]spot
	for from := 0; from < len(ops); from += pageRows {
		page := ops[from:min(len(ops), from+pageRows)]
		for i := range page {
			if owners[i] = t; p.has(page[i].ID) {
				owners[i] = p.tableOf(page[i].ID)
			}
			spots[i] = owners[i].locate(page[i].ID)
			spots[i].s.prefetch(spots[i].p)
		}
		for i := range page {
			owner := owners[i]
			if !spots[i].standsIn(owner.dir.Load()) { // an earlier op changed the structure
				spots[i] = owner.locate(page[i].ID)
			}
			if judge != nil {
				judge.Before(from + i)
			}
			owner.cuts = t.cuts
			refused, ok := owner.applyLocked(&page[i], from+i, &spots[i], rows[(from+i)*width:(from+i+1)*width])
			t.cuts = owner.cuts
			if owner != t {
				owner.cuts = nil // after Split the parts are written at one time
			}
			if !ok {
				overflows = append(overflows, refused)
				if judge != nil {
					judge.Refused(from + i)
				}
			}
		}
	}
	return overflows
}

// applyLocked applies one op and fills dst with the op's row; number is the index of the op. If a
// column refuses the op, applyLocked returns the refusal and false.
func (t *Table) applyLocked(op *Op, number int, at *spot, dst []int64) (refused Overflow, ok bool) {
	slot := -1
	if at.s.covers(op.ID) {
		slot = at.s.find(at.p)
	}
	if packed := at.s.cold.sealed(); slot < 0 && packed != nil && at.s.cold.mayHave(op.ID) {
		slot = t.unsealLocked(op.ID, at, packed)
	}
	if slot >= 0 && (op.Kind == OpAdd || op.Kind == OpSet) && t.applyWordLocked(op, at, slot) {
		at.s.load(slot, dst)
		return refused, true
	}

	old, row := t.mu.old[:], t.mu.row[:]
	if slot >= 0 {
		at.s.load(slot, old)
	} else {
		clear(old)
	}
	copy(row, old)
	cuts, refused, ok := op.change(row, number, t.cuts)
	if !ok {
		copy(dst, old)
		return refused, false
	}
	t.cuts = cuts
	if copy(dst, row); op.Kind == OpTake {
		for c := range dst {
			dst[c] = old[c] - row[c]
		}
	}
	t.replaceLocked(at.i, slot, op.ID, old, row)
	return refused, true
}

// applyWordLocked is the fast path of nearly all ops. In such an op, all cells are in the first
// word, and neither their old nor their new counts are in overflow. For any other op it returns
// false and changes nothing.
func (t *Table) applyWordLocked(op *Op, at *spot, slot int) bool {
	old := *at.s.word(slot, 0)
	word, digest := old, uint64(0)
	for i := range op.Cells {
		c := &op.Cells[i]
		if c.Column >= wordColumns {
			return false
		}
		shift := 16 * c.Column & 63
		was := word >> shift & 0xFFFF
		now := c.Value
		if op.Kind == OpAdd {
			if c.Value > inOverflow || c.Value < -inOverflow {
				return false
			}
			now += int64(was)
		}
		if was == inOverflow || !fits16(now) {
			return false
		}
		if now >= t.Rises.places[c.Column].Count {
			t.Rises.note(op.ID, c.Column, int64(was), now)
		}
		word += (uint64(now) - was) << shift
		digest += cellHash(op.ID, c.Column) * (uint64(now) - was)
	}
	if word == 0 || old == 0 && at.s.cold != nil { // the row is created or deleted
		return false
	}
	if word != old {
		at.s = t.ownedLocked(at.d, at.i)
		atomic.StoreUint64(at.s.word(slot, 0), word)
		t.mu.digest += digest
	}
	return true
}

// replaceLocked makes the row of id equal to row. The row is at slot of segment i; slot is -1 if
// the row is absent.
func (t *Table) replaceLocked(i, slot int, id uint64, old, row []int64) {
	digest, last, was := uint64(0), -1, false
	for c, v := range row {
		if v != 0 {
			last = c
		}
		was = was || old[c] != 0
		if v != old[c] {
			digest += cellHash(id, uint8(c)) * uint64(v-old[c])
			if v >= t.Rises.places[c].Count {
				t.Rises.note(id, uint8(c), old[c], v)
			}
		}
	}
	d := t.dir.Load()
	s := d.segs[i].Load()
	switch {
	case last < 0 && !was:
		return
	case last < 0 && s.cold != nil:
		t.ownedLocked(d, i).update(slot, row) // zeros hide the cold row
		t.rows.Add(-1)
	case last < 0:
		t.removeLocked(d, i, slot)
		t.rows.Add(-1)
	case slot >= 0 && last < s.columns():
		t.ownedLocked(d, i).update(slot, row)
		if !was {
			t.rows.Add(1)
		}
	case slot >= 0:
		// The row outgrows its segment's words: reshape the segment first. Reshaping may drop a row
		// of zeros whose id the cold part does not cover, and may move the window. So look the slot
		// up again.
		t.reshapeLocked(i, last/wordColumns+1)
		slot := -1
		if s := d.segs[i].Load(); s.covers(id) {
			slot = s.find(s.place(id))
		}
		t.replaceLocked(i, slot, id, old, row)
		return
	default:
		t.insertLocked(id, row, last/wordColumns+1)
		t.rows.Add(1)
	}
	t.mu.digest += digest
}
