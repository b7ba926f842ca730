package engine

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// BenchmarkParting parts a table of benchPartRows rows in three, ordinary and sealed, without writes
// and beside a writer of batches of 256. It reports the times of the steps, the longest pause of the
// writer, the time of Split, and the memory during the parting and after it, as a multiple of the
// memory before.
func BenchmarkParting(b *testing.B) {
	ids := realIDs(benchPartRows)
	slices.Sort(ids)
	for _, sealed := range []bool{false, true} {
		for _, writes := range []bool{false, true} {
			b.Run(map[bool]string{true: "sealed", false: "ordinary"}[sealed]+map[bool]string{true: "/written", false: "/idle"}[writes], func(b *testing.B) {
				for range b.N {
					start := heapBytes()
					tab := fill(ids)
					if sealed {
						sealAll(tab)
						sealAll(tab)
					}
					benchParting(b, tab, ids, writes, start)
				}
			})
		}
	}
}

const benchPartRows = 3_000_000

func benchParting(b *testing.B, tab *Table, ids []uint64, writes bool, start uint64) {
	before, stats := heapBytes()-start, tab.Stats().Bytes
	stop, pause, ended := make(chan struct{}), time.Duration(0), sync.WaitGroup{}
	if writes {
		ended.Go(func() {
			ops := make([]Op, 256)
			for n := 0; ; n++ {
				for i := range ops {
					ops[i] = Op{ID: ids[(n*7919+i*104729)%len(ids)], Kind: OpAdd, Cells: []Cell{{1, 1}}}
				}
				began := time.Now()
				tab.Apply(ops, 0, nil, nil)
				pause = max(pause, time.Since(began))
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
			}
		})
	}
	g, err := NewParting(tab, byResidue{allIDs, 3})
	if err != nil {
		b.Fatal(err)
	}
	began, longest, most := time.Now(), time.Duration(0), uint64(0)
	for n, more := 0, true; more; n++ { // the memory is measured between the steps
		step := time.Now()
		if more, err = g.Step(); err != nil {
			b.Fatal(err)
		}
		longest = max(longest, time.Since(step))
		if n%50 == 0 {
			most = max(most, heapBytes()-start) // without garbage
		}
	}
	total := time.Since(began)
	close(stop)
	ended.Wait()
	splitting := time.Now()
	parts, err := Split(tab, g.by)
	took := time.Since(splitting)
	if err != nil {
		b.Fatal(err)
	}
	after := heapBytes() - start
	bytes := uint64(0)
	for _, part := range parts {
		bytes += part.Stats().Bytes
	}
	b.ReportMetric(float64(total.Milliseconds()), "ms/parting")
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms/longest-step")
	b.ReportMetric(float64(pause.Microseconds())/1000, "ms/longest-write")
	b.ReportMetric(float64(took.Nanoseconds())/1000, "µs/split")
	b.ReportMetric(float64(most)/float64(before), "×memory-during")
	b.ReportMetric(float64(after)/float64(before), "×heap-after")
	b.ReportMetric(float64(bytes)/float64(stats), "×stats-after")
}
