package counters

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
)

// BenchmarkSplit splits a shard of 2 million rows, the most that may be copied while an entry is
// applied. The rows are packed or not. Keys are consecutive or random.
func BenchmarkSplit(b *testing.B) {
	const rows = 2_000_000
	for _, keys := range []string{"ascending", "random"} {
		for _, packed := range []bool{false, true} {
			c := New(raftfsm.Places{})
			rnd := rand.New(rand.NewPCG(1, 2))
			ops := make([]engine.Op, 1000)
			for first := 0; first < rows; first += len(ops) {
				for i := range ops {
					key := uint64(first + i)
					if keys == "random" {
						key = rnd.Uint64()
					}
					ops[i] = engine.Op{ID: key, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: 1 + rnd.Int64N(1000)}, {Column: 1 + uint8(i%3), Value: 1 + rnd.Int64N(50)}}}
				}
				if _, err := c.Table().Apply(ops, 0, nil, nil); err != nil {
					b.Fatal(err)
				}
			}
			for round := 0; packed && round < 2; round++ { // the first call marks the segments
				for next, more := uint64(0), true; more; {
					_, next, more, _ = c.Seal(next, func(_, _ uint64) bool { return true })
				}
			}
			for _, parts := range []int{2, 3, 7} {
				b.Run(fmt.Sprintf("keys=%s/packed=%v/parts=%d", keys, packed, parts), func(b *testing.B) {
					var before, after syscall.Rusage
					syscall.Getrusage(syscall.RUSAGE_SELF, &before)
					for b.Loop() {
						to := make([]raftfsm.Contents, parts)
						for i := range to {
							to[i] = newContents(raftfsm.Places{}, c.outboxes.New(), &c.parting)
						}
						s := raftfsm.Split{Parts: make([]dedup.Part, parts), PartOf: func(key uint64) int { return int(key % uint64(parts)) }}
						c.Between(func(held raftfsm.Contents) {
							if err := held.Split(&s, to); err != nil {
								b.Fatal(err)
							}
						})
					}
					syscall.Getrusage(syscall.RUSAGE_SELF, &after)
					b.ReportMetric(float64(after.Utime.Nano()-before.Utime.Nano())/float64(b.N)/1e9, "CPU-s/op")
				})
			}
		}
	}
}
