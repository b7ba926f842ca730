package counters

import (
	"log/slog"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// BenchmarkSplitParted parts a shard of 30 million rows in three, splits it, and has a child adopt its part. The rows
// are packed or not, or on disk. As after a start, Apply of Split parts all rows in the case replayed. It reports how
// long Apply takes for Split and Adopt, the time of all steps without rests, the longest step, and the memory of the
// heap during and after, as a multiple of the memory before.
func BenchmarkSplitParted(b *testing.B) {
	for _, tc := range []struct {
		name   string
		sealed bool
		steps  bool
		cold   bool
	}{{"ordinary", false, true, false}, {"replayed", false, false, false}, {"sealed", true, true, false}, {"cold", false, true, true}} {
		b.Run(tc.name, func(b *testing.B) {
			for range b.N {
				benchSplitParted(b, tc.sealed, tc.steps, tc.cold)
			}
		})
	}
}

func benchSplitParted(b *testing.B, sealed, steps, onDisk bool) {
	const rows = 30_000_000
	start := heapInUse()
	parking := new(raftfsm.Parking)
	growth := raftfsm.Growth{Parking: parking, NewPart: func() raftfsm.Machine { return New(raftfsm.Places{}) }}
	store, err := cold.Open(cold.Config{Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { b.Error(err) }})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	group, err := store.Group(5)
	if err != nil {
		b.Fatal(err)
	}
	parent := New(raftfsm.Places{Cold: group})
	parent.SetGrowth(growth)
	loadRandom(b, parent.Table(), rows, sealed)
	for range 2 {
		if _, err := freezeAll(parent, func(uint64, uint64) bool { return onDisk }); err != nil {
			b.Fatal(err)
		}
	}
	disk := store.DiskBytes()
	before, longest, most := heapInUse()-start, time.Duration(0), uint64(0)
	began, by := time.Now(), raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 3}
	var resting time.Duration
	for n, more := 0, steps; more; n++ {
		step := time.Now()
		var err error
		if more, err = parent.Part(by); err != nil {
			b.Fatal(err)
		}
		longest = max(longest, time.Since(step))
		if n%400 == 0 {
			rest := time.Now()
			most = max(most, heapInUse()-start) // without garbage
			resting += time.Since(rest)
		}
	}
	total := time.Since(began) - resting
	e := raftfsm.SplitEntry{From: codec.Whole, Attempt: 3, Group: 5, Divisor: 1, Children: []uint32{6, 7}}
	began = time.Now()
	if err, failed := parent.Apply(&raft.Log{Index: 1, Type: raft.LogCommand, Data: e.Entry(codec.KindCounters)}).(error); failed {
		b.Fatal(err)
	}
	split := time.Since(began)
	child := New(raftfsm.Places{})
	child.SetRoute(codec.Route{Modulus: 3, Residue: 1})
	growth.Unborn = true
	child.SetGrowth(growth)
	began = time.Now()
	if err, failed := child.Apply(rafttest.Next(child, parking.Of(6).Entry(codec.KindCounters))).(error); failed {
		b.Fatal(err)
	}
	adopt := time.Since(began)
	after := heapInUse() - start
	if n := parent.State().Rows + child.State().Rows + parking.Of(7).Rows; n != rows {
		b.Fatalf("%d rows", n)
	}
	b.ReportMetric(float64(split.Microseconds())/1000, "ms/split")
	b.ReportMetric(float64(adopt.Microseconds())/1000, "ms/adopt")
	b.ReportMetric(total.Seconds(), "s/parting")
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms/longest-step")
	b.ReportMetric(float64(most)/float64(before), "×memory-during")
	b.ReportMetric(float64(after)/float64(before), "×memory-after")
	b.ReportMetric(float64(before)/rows, "B/row")
	if onDisk {
		b.ReportMetric(float64(store.DiskBytes())/float64(disk), "×disk-after")
	}
	runtime.KeepAlive(parent)
	runtime.KeepAlive(child)
}

// loadRandom adds rows with ascending keys and three columns.
func loadRandom(b *testing.B, table *engine.Table, rows int, sealed bool) {
	r, key := rand.New(rand.NewPCG(1, 2)), uint64(1)<<40
	page, sealer := engine.Page{Width: 3}, engine.Sealer{}
	for n := 0; n < rows; n += len(page.IDs) {
		page.IDs, page.Counts = page.IDs[:0], page.Counts[:0]
		for range min(10_000, rows-n) {
			key += 1 + r.Uint64N(1<<20)
			page.IDs = append(page.IDs, key)
			page.Counts = append(page.Counts, 1+r.Int64N(50), r.Int64N(300), r.Int64N(3))
		}
		load := table.Load
		if sealed {
			load = func(p *engine.Page) error { return table.LoadSealed(p, &sealer) }
		}
		if err := load(&page); err != nil {
			b.Fatal(err)
		}
	}
}

// heapInUse returns the memory of the heap without garbage.
func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}
