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
)

// BenchmarkNodeWrite measures acknowledged, synced increments through the
// router, proposer and log of one node, without HTTP. ns/op is of one request.
func BenchmarkNodeWrite(b *testing.B) {
	for _, c := range []struct{ callers, ops, shards int }{
		{1, 1, 4}, {64, 1, 4}, {1024, 1, 4}, {64, 1, 1}, {1024, 1, 1}, {16, 100, 4},
	} {
		for _, store := range []LogStore{LogStoreBoltDB, LogStoreWAL} {
			b.Run(fmt.Sprintf("callers=%d/ops=%d/shards=%d/log=%s", c.callers, c.ops, c.shards, store), func(b *testing.B) {
				benchWrites(b, benchNode(b, c.shards, store), c.callers, c.ops)
			})
		}
	}
}

func benchWrites(b *testing.B, n *Node, callers, ops int) {
	ks := n.Keyspace("posts")
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	b.ReportAllocs()
	done := make(chan error, callers)
	for i := range callers {
		go func() { done <- writeUntil(n, ks, &left, ops, uint64(i)) }()
	}
	for range callers {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*ops)/b.Elapsed().Seconds(), "ops/s")
}

func benchNode(b *testing.B, shards int, store LogStore) *Node {
	n, err := Open(Config{
		Dir: b.TempDir(), NodeKey: "bench", NodeName: "bench", Bootstrap: true, ClusterID: strings.Repeat("0", 32), Version: "bench",
		ClusterAddr: "127.0.0.1:0", Shards: map[string]int{"posts": shards}, LogStore: store,
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

func writeUntil(n *Node, ks *Keyspace, left *atomic.Int64, ops int, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 1))
	w := &Write{Ops: make([]engine.Op, ops), Width: 4, Rows: make([]int64, ops*4)}
	for i := range w.Ops {
		w.Ops[i] = engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 2, Value: 1}}}
	}
	for left.Add(-1) >= 0 {
		for i := range w.Ops {
			w.Ops[i].ID = r.Uint64N(1_000_000)
		}
		w.Token, w.Overflows, w.Deadline = w.Token[:0], nil, time.Now().Add(10*time.Second)
		if err := n.Write(ks, w); err != nil {
			return err
		}
	}
	return nil
}
