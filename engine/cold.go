package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
)

// This file reads cold rows. Readers read them concurrently with the writer. The writer brings a
// cold row into memory before it changes it; from then on the row in the segment hides the
// unchanged cold row. Apply's overflows, digest and rows are therefore the same as if no row had
// ever been cold.

// ReadCold is like Get, but for a row that may be cold. It waits for the disk until ctx ends.
func (t *Table) ReadCold(ctx context.Context, id uint64, dst []int64) error {
	for {
		part := t.coldOf(id, dst)
		if part == nil {
			return nil
		}
		err := part.generation.Get(ctx, id, dst)
		if err == nil {
			return nil
		}
		// The generation may have been replaced and removed meanwhile. If so, look the row up
		// again.
		if now := t.coldOf(id, dst); now == part || ctx.Err() != nil {
			return fmt.Errorf("cannot read row %d: %w", id, err)
		}
	}
}

// coldOf fills dst and returns nil, or returns the part on disk that may contain the row.
func (t *Table) coldOf(id uint64, dst []int64) *coldPart {
	d := t.dir.Load()
	if d.keys != nil {
		d = d.keys.dirOf(d, id)
	}
	s := d.segs[d.find(id)].Load()
	if s.covers(id) && s.readAt(s.place(id), dst) {
		return nil
	}
	if s.cold.read(id, dst) {
		return nil
	}
	return s.cold
}

// warmReadersMax bounds the cold rows that Apply reads concurrently.
const warmReadersMax = 16

// coldRow is a cold row that an op needs in memory.
type coldRow struct {
	id   uint64
	in   *Table // the table or its part that owns the row
	part *coldPart
	row  [ColumnsMax]int64
}

// warmOps brings the cold rows of ops into memory. The caller holds t.writing, so nobody moves rows
// out of memory before the ops are applied.
func (t *Table) warmOps(ops []Op) error {
	missing := t.missing(ops)
	if len(missing) == 0 {
		return nil
	}
	var readers errgroup.Group
	readers.SetLimit(warmReadersMax)
	for i := range missing {
		readers.Go(func() error {
			r := &missing[i]
			if err := r.part.generation.GetNow(r.id, r.row[:]); err != nil {
				return fmt.Errorf("cannot bring row %d into memory: %w", r.id, err)
			}
			return nil
		})
	}
	if err := readers.Wait(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.unlock()
	if p := t.dir.Load().parted(); p != nil {
		p.lock()
		defer p.unlock()
	}
	for i := range missing {
		if row := missing[i].row[:]; !isZeroRow(row) { // a row of zeros is an absent row, which needs no place in memory
			missing[i].in.warmLocked(missing[i].id, row)
		}
	}
	return nil
}

// missing returns the rows of ops that may be on disk, without duplicates.
func (t *Table) missing(ops []Op) []coldRow {
	var missing []coldRow
	p := t.dir.Load().parted()
	for i := range ops {
		in := t
		if p != nil && p.has(ops[i].ID) {
			in = p.tableOf(ops[i].ID)
		}
		if ops[i].ID > in.coldMax.Load() {
			continue
		}
		at := in.locate(ops[i].ID)
		if at.s.cold.onDisk() && at.s.cold.mayHave(ops[i].ID) && (!at.s.covers(ops[i].ID) || at.s.find(at.p) < 0) {
			missing = append(missing, coldRow{id: ops[i].ID, in: in, part: at.s.cold})
		}
	}
	if len(missing) < 2 {
		return missing
	}
	slices.SortFunc(missing, func(a, b coldRow) int { return cmp.Compare(a.id, b.id) })
	return slices.CompactFunc(missing, func(a, b coldRow) bool { return a.id == b.id })
}

// warmLocked stores a cold row in its segment. It changes neither the table's row count nor its
// digest. It stores even a row of zeros, because that row hides the row of the cold part.
func (t *Table) warmLocked(id uint64, row []int64) {
	last := 0
	for c, v := range row {
		if v != 0 {
			last = c
		}
	}
	t.insertLocked(id, row, last/wordColumns+1)
}
