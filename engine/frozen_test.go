package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
)

// Rows are deleted on their way to disk. From then on a reader always sees zeros, even while the
// part on disk replaces the segment.
func TestDeletedRowsStayDeletedWhileTheyFreeze(t *testing.T) {
	for range 5 {
		tab, ids := filled(t, 30_000)
		cold := &memCold{}
		last := tab.dir.Load().last(0)
		var stop atomic.Bool
		var readers sync.WaitGroup
		cold.writing = func() {
			var deleted []uint64
			for _, id := range ids {
				if id <= last && id%97 != 0 {
					mustApply(t, tab, Op{ID: id, Kind: OpDelete})
					deleted = append(deleted, id)
				}
			}
			// Read the row that was deleted last, and one from the middle.
			for _, id := range []uint64{deleted[len(deleted)-1], deleted[len(deleted)/2]} {
				reads := make(chan struct{})
				readers.Go(func() { readZeros(t, &stop, tab, id, reads) })
				<-reads
			}
		}
		rows, err := tab.Freeze(cold, []uint64{0})
		stop.Store(true)
		readers.Wait()
		if rows == 0 || err != nil || tab.coldParts.Load() != 1 {
			t.Errorf("%d rows frozen: %v", rows, err)
		}
		if err := tab.Check(); err != nil {
			t.Error(err)
		}
	}
}

// readZeros reads a deleted row until stop, and closes reads once it has begun.
func readZeros(t *testing.T, stop *atomic.Bool, tab *Table, id uint64, reads chan struct{}) {
	var row [ColumnsMax]int64
	for begun := false; !stop.Load(); {
		if err := tab.ReadCold(context.Background(), id, row[:]); err != nil || row != [ColumnsMax]int64{} {
			t.Errorf("a deleted row reads %v: %v", row[:4], err)
			stop.Store(true)
		}
		if !begun {
			begun = true
			close(reads)
		}
	}
}
