package counters

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

// median returns the median. Unlike a mean, it ignores the few entries during which other processes
// ran.
func median(of []time.Duration) float64 {
	slices.Sort(of)
	return float64(of[len(of)/2])
}

// BenchmarkHot applies entries of 1,000 increments. It measures the time for the hot lists and that
// for the rows separately. The log's time advances as in a shard that applies 200,000 increments a
// second.
func BenchmarkHot(b *testing.B) {
	const opsOfEntry, entries = 1000, 500
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 8, 2_000_000)
	for _, stream := range []struct {
		name string
		id   func(i int) uint64
	}{
		{"storm", func(i int) uint64 { // nine of ten ops are on one post
			if i%10 != 0 {
				return 977
			}
			return zipf.Uint64()
		}},
		{"zipf", func(int) uint64 { return zipf.Uint64() }},
		{"distinct", func(i int) uint64 { return uint64(i) }},
	} {
		all := make([][]engine.Op, entries)
		for e := range all {
			cells := make([]engine.Cell, opsOfEntry)
			for i := range cells {
				cells[i] = engine.Cell{Column: uint8(i % 2), Value: 1}
				id := stream.id(e*opsOfEntry+i) * 0x9e3779b97f4a7c15
				all[e] = append(all[e], engine.Op{Kind: engine.OpAdd, ID: id, Cells: cells[i : i+1]})
			}
		}
		b.Run(stream.name, func(b *testing.B) {
			c := newContents(raftfsm.Places{}, New(raftfsm.Places{}).outboxes.New(), nil)
			c.Begin()
			var inRows, inHot []time.Duration
			for i := 0; b.Loop(); i++ {
				c.batch.Ops = all[i%entries]
				began := time.Now()
				if _, err := c.table.Apply(c.batch.Ops, 0, nil, nil); err != nil {
					b.Fatal(err)
				}
				applied := time.Now()
				c.feedHot(hotNow+int64(i)*opsOfEntry/200, &raftfsm.Result{})
				inRows, inHot = append(inRows, applied.Sub(began)), append(inHot, time.Since(applied))
			}
			b.ReportMetric(median(inRows)/opsOfEntry, "rows-ns/op")
			b.ReportMetric(median(inHot)/opsOfEntry, "hot-ns/op")
		})
	}
}
