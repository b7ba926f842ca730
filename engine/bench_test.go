package engine

import (
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

const benchRows = 10_000_000

// realCounts returns the ids of those real posts whose ids contain a time, and the counts of
// reposts, comments and likes of those posts that have any. Without the data set it reads the
// sample that the project ships.
var realCounts = sync.OnceValues(func() (ids []uint64, rows [][3]int64) {
	f, err := os.Open("../../shared/data/weibo_counts.csv.gz")
	if err != nil {
		if f, err = os.Open("../demo/posts.csv.gz"); err != nil {
			panic(err)
		}
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		panic(err)
	}
	records, err := csv.NewReader(z).ReadAll()
	if err != nil {
		panic(err)
	}
	for _, rec := range records[1:] {
		id, _ := strconv.ParseUint(rec[0], 10, 64)
		var row [3]int64
		for i, s := range rec[len(rec)-3:] {
			row[i], _ = strconv.ParseInt(s, 10, 64)
		}
		if row != [3]int64{} {
			rows = append(rows, row)
		}
		if id > 3.33e15 && id < 1e16 {
			ids = append(ids, id)
		}
	}
	return ids, rows
})

// realIDs returns n distinct ids that are distributed over time as the real ids are.
func realIDs(n int) []uint64 {
	seed, _ := realCounts()
	r := rand.New(rand.NewPCG(1, 1))
	seen := make(map[uint64]struct{}, n)
	out := make([]uint64, 0, n)
	for len(out) < n {
		i := r.IntN(len(seed) - 1)
		id := seed[i] + r.Uint64N(max(1, seed[i+1]-seed[i]))
		if _, ok := seen[id]; !ok {
			seen[id] = struct{}{}
			out = append(out, id)
		}
	}
	return out
}

// orders are the orders in which the benchmarks of size and speed insert ids.
var orders = []struct {
	name string
	ids  func() []uint64
}{
	{"in-order", func() []uint64 { ids := realIDs(benchRows); slices.Sort(ids); return ids }},
	{"nearly-in-order", func() []uint64 {
		ids := realIDs(benchRows)
		slices.Sort(ids)
		r := rand.New(rand.NewPCG(2, 2))
		for i := range ids {
			j := min(i+r.IntN(100), len(ids)-1)
			ids[i], ids[j] = ids[j], ids[i]
		}
		return ids
	}},
	{"random-order", func() []uint64 { return realIDs(benchRows) }},
	{"random-64-bit", func() []uint64 {
		r := rand.New(rand.NewPCG(3, 3))
		ids := make([]uint64, benchRows)
		for i := range ids {
			ids[i] = r.Uint64()
		}
		return ids
	}},
}

func fill(ids []uint64) *Table {
	_, counts := realCounts()
	r := rand.New(rand.NewPCG(4, 4))
	tab := newTableOf(testSecret, allIDs)
	var cells [3]Cell
	op := []Op{{Kind: OpSet, Cells: cells[:]}}
	for _, id := range ids {
		row := counts[r.IntN(len(counts))]
		op[0].ID = id
		for c, v := range row {
			cells[c] = Cell{uint8(c), v}
		}
		tab.Apply(op, 0, nil, nil)
	}
	return tab
}

func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// BenchmarkSize reports the bytes per row of a table of 10 million rows: what Table.Stats reports,
// and the growth of the heap.
func BenchmarkSize(b *testing.B) {
	for _, o := range orders {
		b.Run(o.name, func(b *testing.B) {
			ids := o.ids()
			for range b.N {
				before, start := heapBytes(), time.Now()
				tab := fill(ids)
				b.ReportMetric(float64(time.Since(start).Nanoseconds())/benchRows, "ns/insert")
				st := tab.Stats()
				b.ReportMetric(float64(st.Bytes)/float64(st.Rows), "B/row")
				b.ReportMetric(float64(heapBytes()-before)/float64(st.Rows), "heapB/row")
				b.ReportMetric(float64(st.Segments), "segments")
				runtime.KeepAlive(tab)
			}
		})
	}
}

type goRow struct{ counts [4]int64 }

// BenchmarkOps compares one table with a Go map of the same rows, in one run.
func BenchmarkOps(b *testing.B) {
	ids := realIDs(benchRows)
	slices.Sort(ids)
	tab := fill(ids)
	peer := make(map[uint64]goRow, benchRows)
	for _, id := range ids {
		peer[id] = goRow{}
	}
	rand.New(rand.NewPCG(5, 5)).Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	var row [4]int64
	one := []Op{{Kind: OpAdd, Cells: []Cell{{1, 1}}}}
	answer := make([]int64, 4)
	for _, f := range []struct {
		name string
		op   func(id uint64) int64
	}{
		{"GoMapGet", func(id uint64) int64 { return peer[id].counts[1] }},
		{"Get", func(id uint64) int64 { tab.Get(id, row[:]); return row[1] }},
		{"Add", func(id uint64) int64 { one[0].ID = id; tab.Apply(one, 4, answer, nil); return answer[1] }},
	} {
		sink := int64(0)
		b.Run(f.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				sink += f.op(ids[i%len(ids)])
			}
		})
		b.Run(f.name+"Alone", func(b *testing.B) {
			b.ReportAllocs()
			at := 0
			for range b.N {
				at++
				at += int(f.op(ids[at%len(ids)]) >> 62) // adds 0, but makes the next call wait for this result
			}
		})
		runtime.KeepAlive(sink)
	}
	const page = 100
	rows := make([]int64, page*4)
	b.Run("GetMany100", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; i < b.N; i += page {
			at := i % (len(ids) - page)
			tab.GetMany(ids[at:at+page], 4, rows, nil)
		}
	})
	ops := make([]Op, 1000)
	for i := range ops {
		ops[i] = Op{Kind: OpAdd, Cells: []Cell{{1, 1}}}
	}
	wide := make([]int64, len(ops)*4)
	b.Run("Apply1000", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; i < b.N; i += len(ops) {
			at := i % (len(ids) - len(ops))
			for j := range ops {
				ops[j].ID = ids[at+j]
			}
			tab.Apply(ops, 4, wide, nil)
		}
	})
}

// BenchmarkWritesDuringSnapshot measures how long batches of 256 uniform writes wait while
// snapshots of 10 million rows are taken and streamed, and without snapshots.
func BenchmarkWritesDuringSnapshot(b *testing.B) {
	ids := realIDs(benchRows)
	tab := fill(ids)
	for _, during := range []bool{false, true} {
		b.Run(fmt.Sprintf("snapshot=%v", during), func(b *testing.B) {
			for range b.N {
				delays := writesUntilSnapshotEnds(tab, ids, during)
				slices.Sort(delays)
				b.ReportMetric(float64(delays[len(delays)/2].Microseconds())/1e3, "p50-ms")
				b.ReportMetric(float64(delays[len(delays)*999/1000].Microseconds())/1e3, "p99.9-ms")
				b.ReportMetric(float64(delays[len(delays)-1].Microseconds())/1e3, "max-ms")
				b.ReportMetric(float64(len(delays)), "batches")
			}
		})
	}
}

func writesUntilSnapshotEnds(tab *Table, ids []uint64, snapshot bool) []time.Duration {
	done := make(chan int, 1)
	go func() {
		rows := 0
		if snapshot {
			snap := tab.Snapshot()
			defer snap.Close()
			_ = snap.Pages(func(p *Page) error { rows += len(p.IDs); return nil })
		} else {
			time.Sleep(2 * time.Second)
		}
		done <- rows
	}()
	r := rand.New(rand.NewPCG(6, 6))
	ops := make([]Op, 256)
	var delays []time.Duration
	for len(done) == 0 {
		for i := range ops {
			ops[i] = Op{ID: ids[r.IntN(len(ids))], Kind: OpAdd, Cells: []Cell{{1, 1}}}
		}
		start := time.Now()
		tab.Apply(ops, 0, nil, nil)
		delays = append(delays, time.Since(start))
	}
	return delays
}
