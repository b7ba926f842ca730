package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
)

// This file reads cold rows: for those who ask, beside the writer, and for the
// writer, which takes them into memory before it changes them. From then on the
// segment's row counts and the cold one does not: it stays as it was, so all that
// Apply says of overflow, digest and rows is as if it had never been cold.

// ReadCold is Get for a row that may be cold. It waits for the disk until ctx
// ends.
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
		// A generation goes when others took its place: then the row is looked for
		// anew.
		if now := t.coldOf(id, dst); now == part || ctx.Err() != nil {
			return fmt.Errorf("cannot read row %d: %w", id, err)
		}
	}
}

// coldOf fills dst and returns nil, or returns the part that may have the row.
func (t *Table) coldOf(id uint64, dst []int64) *coldPart {
	d := t.dir.Load()
	s := d.segs[d.find(id)].Load()
	if s.covers(id) && s.readAt(s.place(id), dst) {
		return nil
	}
	if s.cold.read(id, dst) {
		return nil
	}
	return s.cold
}

// warmReadersMax is how many rows Apply reads at once.
const warmReadersMax = 16

// coldRow is a cold row that an op needs in memory.
type coldRow struct {
	id   uint64
	part *coldPart
	row  [ColumnsMax]int64
	err  error
}

// warmOps brings the rows of ops into memory that are not. writing is held: who
// moves rows out waits until the ops are applied.
func (t *Table) warmOps(ops []Op) error {
	missing := t.missing(ops)
	if len(missing) == 0 {
		return nil
	}
	next := make(chan *coldRow, len(missing))
	for i := range missing {
		next <- &missing[i]
	}
	close(next)
	var readers sync.WaitGroup
	for range min(len(missing), warmReadersMax) - 1 {
		readers.Go(func() { readRows(next) })
	}
	readRows(next)
	readers.Wait()
	for i := range missing {
		if err := missing[i].err; err != nil {
			return fmt.Errorf("cannot bring row %d into memory: %w", missing[i].id, err)
		}
	}
	t.mu.Lock()
	defer t.unlock()
	for i := range missing {
		if row := missing[i].row[:]; !isZeroRow(row) { // else there is none, as an op finds it
			t.warmLocked(missing[i].id, row)
		}
	}
	return nil
}

func readRows(next <-chan *coldRow) {
	for r := range next {
		r.err = r.part.generation.GetNow(r.id, r.row[:])
	}
}

// missing returns the rows of ops that may be cold, each once.
func (t *Table) missing(ops []Op) []coldRow {
	var missing []coldRow
	for i := range ops {
		if ops[i].ID > t.coldMax.Load() {
			continue
		}
		at := t.locate(ops[i].ID)
		if at.s.cold.onDisk() && at.s.cold.mayHave(ops[i].ID) && (!at.s.covers(ops[i].ID) || at.s.find(at.p) < 0) {
			missing = append(missing, coldRow{id: ops[i].ID, part: at.s.cold})
		}
	}
	if len(missing) < 2 {
		return missing
	}
	slices.SortFunc(missing, func(a, b coldRow) int { return cmp.Compare(a.id, b.id) })
	return slices.CompactFunc(missing, func(a, b coldRow) bool { return a.id == b.id })
}

// warmLocked stores a cold row in its segment, which changes neither the table's
// rows nor its digest. One of zeros is stored too: it hides a row of the cold part.
func (t *Table) warmLocked(id uint64, row []int64) {
	last := 0
	for c, v := range row {
		if v != 0 {
			last = c
		}
	}
	t.insertLocked(id, row, last/wordColumns+1)
}
