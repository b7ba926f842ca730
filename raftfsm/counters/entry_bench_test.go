package counters

import (
	"fmt"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// BenchmarkIncrements encodes and applies entries with several numbers of requests and ops. Each op
// increments one column. It reports the bytes per op, without the frame of the entry.
func BenchmarkIncrements(b *testing.B) {
	for _, shape := range []struct{ requests, ops int }{{1, 1}, {16, 1}, {100, 1}, {1, 100}, {7, 20}} {
		for _, step := range []string{"write", "apply"} {
			b.Run(fmt.Sprintf("%s/requests=%d/ops=%d", step, shape.requests, shape.ops), func(b *testing.B) {
				c := New(raftfsm.Places{})
				route := codec.Route{Modulus: 7, Residue: 3}
				c.SetRoute(route)
				ops := make([]engine.Op, shape.requests*shape.ops)
				for i := range ops {
					ops[i] = engine.Op{Kind: engine.OpAdd, ID: uint64(i) * 977, Cells: []engine.Cell{{Column: uint8(i % 4), Value: 1}}}
				}
				var w raftfsm.RequestWriter
				var entry, section []byte
				write := func() {
					entry = codec.BeginEntry(entry[:0], codec.KindCounters, 4)
					for r := range shape.requests {
						w.Reset(section, route, &dedup.RequestID{})
						for i := r * shape.ops; i < (r+1)*shape.ops; i++ {
							Ops(ops).AppendTo(&w, ops[i].ID, i)
						}
						section = w.Section()
						entry = append(entry, section...)
					}
					entry = codec.AppendChecksum(entry)
				}
				write()
				log := rafttest.Command(1, entry)
				b.ReportAllocs()
				began := time.Now()
				for b.Loop() {
					if step == "write" {
						write()
					} else {
						c.Apply(log)
					}
				}
				n := float64(len(ops))
				b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(b.N)/n, "ns/increment")
				b.ReportMetric(float64(len(entry)-len(codec.AppendChecksum(codec.BeginEntry(nil, codec.KindCounters, 4))))/n, "B/increment")
			})
		}
	}
}
