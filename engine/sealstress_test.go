package engine

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

// A writer applies ops of all kinds. Concurrently a second goroutine seals segments and moves
// segments to disk, and a third takes snapshots. Each snapshot has the digest and the number of
// rows that it reports. In the end, the table has all writes.
func TestTiersBesideTheWriter(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(4, 44))
	tab, plain, want, cold := newTableOf(testSecret, allIDs), newTable(t), model{}, &memCold{}
	known := make([]uint64, 25_000)
	ops := make([]Op, len(known))
	for i := range known {
		known[i] = idShapes["weibo nearly ordered"](r, i)
		ops[i] = Op{ID: known[i], Kind: OpAdd, Cells: []Cell{{uint8(i % 5), 1 + r.Int64N(300)}}}
	}
	checkApply(t, tab, plain, want, ops)
	var stop atomic.Bool
	var others sync.WaitGroup
	defer others.Wait()
	defer stop.Store(true)
	var sealed atomic.Int64
	others.Go(func() {
		for i := 0; !stop.Load(); i++ {
			sealed.Add(int64(sealAll(tab) + sealAll(tab) + sealAll(tab)))
			if i%4 != 3 {
				continue
			}
			tab.Watch(anyAge, true)
			firsts, _ := tab.Watch(anyAge, true)
			firsts = firsts[:min(max(len(firsts)-2, 0), 1+i%3)] // leave the other segments in memory, so that they can be sealed
			if _, err := tab.Freeze(cold, firsts); err != nil {
				t.Error(err)
			}
		}
	})
	others.Go(func() {
		for !stop.Load() {
			snap := tab.Snapshot()
			digest, rows := uint64(0), int64(0)
			err := snap.Pages(func(p *Page) error {
				for i, id := range p.IDs {
					digest += RowDigest(id, p.Row(i))
				}
				rows += int64(len(p.IDs))
				return nil
			})
			if err != nil || digest != snap.Digest() || rows != snap.Rows() {
				t.Errorf("snapshot of %d rows, digest %016x, says %d, %016x: %v", rows, digest, snap.Rows(), snap.Digest(), err)
			}
			snap.Close()
		}
	})
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	deadline := time.Now().Add(must.BecomeMax)
	for round := 0; round < rounds || sealed.Load() < 2*rowsMax && time.Now().Before(deadline); round++ {
		ops := make([]Op, []int{1, 1, 20, 500, 4000}[r.IntN(5)])
		from := r.IntN(len(known))
		for i := range ops {
			id := known[(from+r.IntN(8000))%len(known)]
			if r.IntN(10) == 0 {
				id += r.Uint64N(1 << 21)
				known = append(known, id)
			}
			ops[i] = randomOp(r, id)
			if r.IntN(3) == 0 {
				ops[i] = Op{ID: id, Kind: OpDelete}
			}
		}
		checkApply(t, tab, plain, want, ops)
		if tab.Digest() != plain.Digest() || tab.Stats().Rows != plain.Stats().Rows {
			t.Fatalf("digest %016x of %d rows, want %016x of %d", tab.Digest(), tab.Stats().Rows, plain.Digest(), plain.Stats().Rows)
		}
	}
	stop.Store(true)
	others.Wait()
	if err := tab.Check(); err != nil {
		t.Error(err)
	}
	want.equalCold(t, tab)
	if n := sealed.Load(); n < 2*rowsMax {
		t.Errorf("%d rows were sealed", n)
	}
}
