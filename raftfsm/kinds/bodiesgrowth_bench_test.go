package kinds

import (
	"io/fs"
	"log/slog"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// BenchmarkSplitBodies parts a shard of a million outboxes or 200,000 feeds in three, splits it, and has a child adopt
// its part. The bodies are in memory or on disk. As after a start, Apply of Split parts all of them in the case
// replayed. It reports how long Apply takes for Split and Adopt, the time of all steps without rests, the longest step,
// and the heap and the disk during and after, as a multiple of those before.
func BenchmarkSplitBodies(b *testing.B) {
	for _, kind := range []codec.Kind{codec.KindCounters, codec.KindFeed} {
		for _, tc := range []struct {
			name          string
			onDisk, steps bool
		}{{"in memory", false, true}, {"on disk", true, true}, {"replayed", false, false}} {
			b.Run(kind.String()+" "+tc.name, func(b *testing.B) {
				for range b.N {
					benchSplitBodies(b, kind, tc.onDisk, tc.steps)
				}
			})
		}
	}
}

func benchSplitBodies(b *testing.B, kind codec.Kind, onDisk, steps bool) {
	start, dir := heapInUse(), b.TempDir()
	store, err := cold.Open(cold.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { b.Error(err) }})
	must.Do(b, err)
	defer func() { must.Do(b, store.Close()) }()
	g := &bodiesGrowing{TB: b, kind: kind, store: store, parking: new(raftfsm.Parking)}
	parent, bodies := g.machine(5, codec.Whole, false), uint64(1_000_000)
	if kind == codec.KindFeed {
		bodies = 200_000
	}
	for first := uint64(0); first < bodies; first += 10_000 {
		g.writeKeys(parent, 0, first, first+10_000)
	}
	if onDisk {
		g.spill(parent)
	}
	heap, disk := heapInUse()-start, diskInUse(b, dir)
	mostHeap, mostDisk, longest, resting := uint64(0), uint64(0), time.Duration(0), time.Duration(0)
	began, by := time.Now(), raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 3}
	for n, more := 0, steps; more; n++ {
		step := time.Now()
		more, err = parent.Part(by)
		must.Do(b, err)
		longest = max(longest, time.Since(step))
		if n%200 == 0 {
			rest := time.Now()
			mostHeap, mostDisk = max(mostHeap, heapInUse()-start), max(mostDisk, diskInUse(b, dir))
			resting += time.Since(rest)
		}
	}
	total := time.Since(began) - resting
	e := raftfsm.SplitEntry{From: codec.Whole, Attempt: 3, Group: 5, Divisor: 1, Children: []uint32{6, 7}}
	entry := e.Entry(kind)
	began = time.Now()
	g.apply(parent, entry)
	split := time.Since(began)
	child := g.machine(6, codec.Route{Modulus: 3, Residue: 1}, true)
	entry = g.parking.Of(6).Entry(kind)
	began = time.Now()
	g.apply(child, entry)
	adopt := time.Since(began)
	if n := parent.Bodies().Stats().Keys + child.Bodies().Stats().Keys + g.parking.Of(7).Machine.Bodies().Stats().Keys; n != bodies {
		b.Fatalf("%d bodies", n)
	}
	b.ReportMetric(float64(split.Microseconds())/1000, "ms/split")
	b.ReportMetric(float64(adopt.Microseconds())/1000, "ms/adopt")
	b.ReportMetric(total.Seconds(), "s/parting")
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms/longest-step")
	b.ReportMetric(float64(mostHeap)/float64(heap), "×heap-during")
	b.ReportMetric(float64(heapInUse()-start)/float64(heap), "×heap-after")
	b.ReportMetric(float64(heap)/float64(bodies), "B/body")
	if onDisk {
		b.ReportMetric(float64(mostDisk)/float64(disk), "×disk-during")
		b.ReportMetric(float64(diskInUse(b, dir))/float64(disk), "×disk-after")
		b.ReportMetric(float64(disk)/float64(bodies), "disk-B/body")
	}
	runtime.KeepAlive(parent)
	runtime.KeepAlive(child)
}

// heapInUse returns the memory of the heap without garbage.
func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// diskInUse returns the size of the files in a directory.
func diskInUse(b *testing.B, dir string) (bytes uint64) {
	must.Do(b, filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if info, gone := e.Info(); gone == nil {
			bytes += uint64(info.Size())
		}
		return nil
	}))
	return bytes
}
