package counters

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
)

// While reads of the disk hang, and more callers wait for cold rows than reads may run:
//
//  1. reads of rows in memory and writes to them do not wait;
//  2. a read of cold rows returns when its context ends;
//  3. once the disk answers, all callers that still wait get their rows.
func TestHotRowsBesideAHungDisk(t *testing.T) {
	const readers = 64
	a := frozenReplica(t, "a")
	a.crash(rand.New(rand.NewPCG(1, 1))) // so that no block is cached
	table := a.fsm.Table()
	hung := &hungDisk{released: make(chan struct{})}
	a.hung.Store(hung)
	var waiting sync.WaitGroup
	for i := range readers {
		waiting.Go(func() {
			var row [4]int64
			id := uint64(i*100) << 20
			if err := table.ReadCold(t.Context(), id, row[:]); err != nil || row[0] != int64(i*100%500)+1 {
				t.Errorf("row %d reads %v, %v", id, row, err)
			}
		})
	}
	must.Become(t, "a read comes to the disk", func() bool { return hung.reads.Load() > 0 })
	page := []uint64{24_996 << 20, 24_997 << 20, 24_998 << 20, 24_999 << 20}
	hot := make(chan []int64)
	go func() { // ends after the write
		rows := make([]int64, len(page))
		if missing := table.GetMany(page, 1, rows, nil); len(missing) > 0 {
			t.Errorf("%v are not in memory", missing)
		}
		a.fsm.Apply(rafttest.Command(a.fsm.Applied()+1, entryOf(0, []engine.Op{add(page[0], 0, 1)})))
		hot <- rows
	}()
	select {
	case rows := <-hot:
		if want := []int64{497, 498, 499, 500}; !slices.Equal(rows, want) {
			t.Errorf("the page reads %v, want %v", rows, want)
		}
	case <-time.After(must.BecomeMax):
		t.Error("rows in memory wait for the disk")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := table.ReadCold(ctx, 7_777<<20, make([]int64, 4)); err == nil {
		t.Error("a disk that hangs has answered")
	}
	a.hung.Store(nil)
	close(hung.released)
	waiting.Wait()
}
