package shard

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard/storage"
)

// BenchmarkNodeWrite measures acknowledged, synced increments through the router, proposer and log
// of one node, without HTTP. ns/op is the time of one request.
func BenchmarkNodeWrite(b *testing.B) {
	for _, c := range []struct{ callers, ops, shards int }{
		{1, 1, 4}, {64, 1, 4}, {1024, 1, 4}, {64, 1, 1}, {1024, 1, 1}, {16, 100, 4},
	} {
		for _, store := range []storage.LogStore{storage.LogStoreBoltDB, storage.LogStoreShared} {
			b.Run(fmt.Sprintf("callers=%d/ops=%d/shards=%d/log=%s", c.callers, c.ops, c.shards, store), func(b *testing.B) {
				benchWrites(b, benchNode(b, c.shards, store), c.callers, c.ops, "none")
			})
		}
	}
}

// BenchmarkNodeWriteOnce measures the cost of applying a request once: the same requests without an
// identity, by a producer's numbers, and under a key.
func BenchmarkNodeWriteOnce(b *testing.B) {
	for _, c := range []struct{ callers, ops int }{{64, 1}, {64, 100}} {
		for _, id := range []string{"none", "producer", "key"} {
			b.Run(fmt.Sprintf("callers=%d/ops=%d/id=%s", c.callers, c.ops, id), func(b *testing.B) {
				benchWrites(b, benchNode(b, 4, storage.LogStoreBoltDB), c.callers, c.ops, id)
			})
		}
	}
}

// benchIDs is the number of rows to which the benchmarks write.
const benchIDs = 25_000

// benchWrites writes b.N requests from the given number of callers.
func benchWrites(b *testing.B, n *Node, callers, ops int, id string) {
	ks := n.Keyspace("posts")
	var left atomic.Int64
	left.Store(1)
	if err := writeUntil(n, ks, &left, 4*benchIDs, 0, "none"); err != nil { // creates nearly every row
		b.Fatal(err)
	}
	left.Store(int64(b.N))
	cpu := rafttest.CPUTime(b)
	b.ResetTimer()
	b.ReportAllocs()
	done := make(chan error, callers)
	for i := range callers {
		go func() { done <- writeUntil(n, ks, &left, ops, uint64(i), id) }()
	}
	for range callers {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*ops)/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64(rafttest.CPUTime(b)-cpu)/float64(b.N), "cpu-ns/op")
}

func benchNode(b *testing.B, shards int, store storage.LogStore) *Node {
	limits := LimitsDefault
	limits.KeysMax, limits.KeyHorizon = dedup.KeysMaxMax, time.Second // at full speed, the keys of ten minutes would exceed the maximum
	n, err := Open(Config{Limits: limits,
		Dir: b.TempDir(), NodeKey: "bench", NodeName: "bench", Bootstrap: true, ClusterID: strings.Repeat("0", 32), Version: "bench",
		ClusterAddr: "127.0.0.1:0", Shards: fewShards(map[string]int{"posts": shards}), LogStore: store,
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Fatal: func(err error) { panic(err) },
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	if err := n.WaitReady(b.Context()); err != nil {
		b.Fatal(err)
	}
	return n
}

// writeUntil writes requests until left, the number of requests, is used up. id is none, producer
// or key.
func writeUntil(n *Node, ks *Keyspace, left *atomic.Int64, ops int, seed uint64, id string) error {
	r := rand.New(rand.NewPCG(seed, 1))
	name, body, key := fmt.Appendf(nil, "producer-%d", seed), make([]byte, 40*ops), make([]byte, 0, 64)
	w := &Write{Ops: make(counters.Ops, ops), Width: 4, Rows: make([]int64, ops*4)}
	for i := range rowOps(w) {
		rowOps(w)[i] = engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 2, Value: 1}}}
	}
	for number := uint64(1); left.Add(-1) >= 0; number++ {
		for i := range rowOps(w) {
			rowOps(w)[i].ID = r.Uint64N(benchIDs)
		}
		switch id {
		case "producer":
			w.ID = dedup.ByProducer(name, number)
		case "key":
			key = fmt.Appendf(key[:0], "%s-%d", name, number)
			w.ID = dedup.ByKey(key, body) // api hashes a body of such length
		}
		w.Overflows, w.Deadline = nil, time.Now().Add(10*time.Second)
		if err := n.Write(ks, w); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkNodeGet measures a page of rows that memory holds, and a scan, without HTTP.
func BenchmarkNodeGet(b *testing.B) {
	n := benchNode(b, 4, storage.LogStoreShared)
	ks := n.Keyspace("posts")
	benchWrites(b, n, 16, 100, "none")
	b.ResetTimer()
	opt := &ReadOptions{Consistency: Stale}
	for _, page := range []int{1, 20, 100} {
		ids, q := make([]uint64, page), rows.Query{Width: 4, Rows: make([]int64, 4*page)}
		b.Run(fmt.Sprintf("ids=%d", page), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				for at := range ids {
					ids[at] = uint64(i*page+at) % benchIDs
				}
				opt.Deadline = soon()
				if err := n.Read(ks, &q, ids, opt); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("scan=1000", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			opt.Deadline = soon()
			if _, err := n.Scan(ks, 0, false, 1000, 4, opt); err != nil {
				b.Fatal(err)
			}
		}
	})
}
