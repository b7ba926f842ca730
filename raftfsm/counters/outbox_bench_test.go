package counters

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
)

const (
	benchAuthors = 200_000
	benchPosts   = 10 // per author
)

// fillOutboxes publishes benchPosts posts for each author, in the order of their ids.
func fillOutboxes() *Machine {
	c := New(raftfsm.Places{})
	r := rand.New(rand.NewPCG(1, 2))
	limits := OutboxLimits{Posts: 10_000, Keep: 30 * 24 * 3600, Shift: 22, UnitMicros: 1_000_000, Epoch: 515483463, First: 3_070_000_000_000_000}
	id := uint64(5_300_000_000_000_000)
	acts := make([]outboxAct, 0, 1000)
	for range benchAuthors * benchPosts / cap(acts) {
		acts = acts[:0]
		for range cap(acts) {
			id += r.Uint64N(1 << 23)
			acts = append(acts, outboxAct{key: r.Uint64N(benchAuthors), op: PostOp{Kind: Publish, ID: id, Limits: limits}})
		}
		c.Apply(rafttest.Next(c, outboxEntry(1_790_000_000_000, outboxSection(&dedup.RequestID{}, nil, acts...))))
	}
	return c
}

// cpuTime returns the CPU time that this process has used. On a busy machine, it varies less than
// elapsed time.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkNewest measures one shard's work for a page of a timeline.
func BenchmarkNewest(b *testing.B) {
	c := fillOutboxes()
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{90, 2_000, 5_000} {
		keys := make([]uint64, n)
		var newest newestPosts
		b.Run(fmt.Sprint(n, " authors"), func(b *testing.B) {
			cpu := cpuTime(b)
			for b.Loop() {
				for i := range keys {
					keys[i] = r.Uint64N(benchAuthors)
				}
				newest.Reset(21)
				c.newest(keys, nil, &selection{last: noLast}, &newest)
				if len(newest.Posts()) != 21 {
					b.Fatal("a short page")
				}
			}
			b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(c.outboxes.Bytes())/(benchAuthors*benchPosts), "B/post")
		})
	}
}

// BenchmarkPublish compares a publish with an increment. Entries have 100 ops.
func BenchmarkPublish(b *testing.B) {
	c := fillOutboxes()
	r := rand.New(rand.NewPCG(5, 6))
	id := uint64(6_000_000_000_000_000)
	limits := OutboxLimits{Posts: 10_000, Keep: 30 * 24 * 3600, Shift: 22, UnitMicros: 1_000_000, Epoch: 515483463, First: 3_070_000_000_000_000}
	for _, publish := range []bool{false, true} {
		b.Run(map[bool]string{false: "increment", true: "publish"}[publish], func(b *testing.B) {
			var cpu time.Duration
			for b.Loop() {
				b.StopTimer()
				acts := make([]outboxAct, 100)
				for i := range acts {
					id += 1 << 20
					acts[i] = outboxAct{key: r.Uint64N(benchAuthors), op: PostOp{Kind: Publish, ID: id, Limits: limits}}
					if !publish {
						acts[i].table = &engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}
					}
				}
				entry := rafttest.Next(c, outboxEntry(1_830_000_000_000, outboxSection(&dedup.RequestID{}, nil, acts...)))
				b.StartTimer()
				before := cpuTime(b)
				c.Apply(entry)
				cpu += cpuTime(b) - before
			}
			b.ReportMetric(float64(cpu)/float64(b.N), "cpu-ns/op")
		})
	}
}
