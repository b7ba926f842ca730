package replica

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
)

// BenchmarkApply commits entries to a group with a single voter, on this machine's disk, with
// different numbers of entries in flight.
func BenchmarkApply(b *testing.B) {
	for _, test := range []struct {
		store           storage.LogStore
		bytes, inFlight int
	}{
		{storage.LogStoreBoltDB, 100, 1}, {storage.LogStoreBoltDB, 100, 64}, {storage.LogStoreBoltDB, 4096, 64}, {storage.LogStoreBoltDB, 65536, 16},
		{storage.LogStoreShared, 100, 1}, {storage.LogStoreShared, 100, 64}, {storage.LogStoreShared, 4096, 64}, {storage.LogStoreShared, 65536, 16},
	} {
		b.Run(fmt.Sprintf("log=%s/bytes=%d/inflight=%d", test.store, test.bytes, test.inFlight), func(b *testing.B) {
			mux, err := rpc.ListenMux(rpc.MuxConfig{Addr: "127.0.0.1:0"})
			if err != nil {
				b.Fatal(err)
			}
			defer mux.Close()
			g, err := Open(Config{
				Dir: b.TempDir(), NodeID: "n1", FSM: &sumFSM{}, Mux: mux, Initial: []Member{{"n1", mux.Addr().String()}},
				LogStore: test.store,
				Fatal:    func(err error) { b.Error(err) },
			})
			if err != nil {
				b.Fatal(err)
			}
			defer g.Close(b.Context(), false)
			for g.Ready() != nil {
				time.Sleep(time.Millisecond)
			}
			b.SetBytes(int64(test.bytes))
			benchApply(b, g, test.bytes, test.inFlight)
		})
	}
}

// BenchmarkReplicas commits entries to a group of three voters in this process, over loopback, with
// different numbers of entries in flight.
func BenchmarkReplicas(b *testing.B) {
	for _, inFlight := range []int{1, 64} {
		b.Run(fmt.Sprintf("inflight=%d", inFlight), func(b *testing.B) {
			groups := benchReplicas(b)
			leader := groups[0]
			for leader.Ready() != nil || len(leader.Voters()) < len(groups) {
				time.Sleep(time.Millisecond)
			}
			cpu := rafttest.CPUTime(b)
			benchApply(b, leader, 100, inFlight)
			b.ReportMetric(float64(rafttest.CPUTime(b)-cpu)/float64(b.N), "cpu-ns/op")
		})
	}
}

// benchApply commits entries of a size through the leader, inFlight at a time.
func benchApply(b *testing.B, leader *Replica, bytes, inFlight int) {
	entry := make([]byte, bytes)
	flight := make(chan raft.ApplyFuture, inFlight-1)
	failed := make(chan error, 1)
	go func() { // ends when flight is closed
		var first error
		for f := range flight {
			if err := f.Error(); err != nil && first == nil {
				first = err
			}
		}
		failed <- first
	}()
	b.ReportAllocs()
	for b.Loop() {
		flight <- leader.Apply(entry)
	}
	close(flight)
	if err := <-failed; err != nil {
		b.Fatal(err)
	}
}

// benchReplicas opens a group on three nodes. The first node leads it.
func benchReplicas(b *testing.B) []*Replica {
	groups := make([]*Replica, 3)
	var initial []Member
	var muxes []*rpc.Mux
	for i := range 3 {
		mux, err := rpc.ListenMux(rpc.MuxConfig{Addr: "127.0.0.1:0"})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { mux.Close() })
		muxes = append(muxes, mux)
		initial = append(initial, Member{raft.ServerID(fmt.Sprintf("n%d", i+1)), mux.Addr().String()})
	}
	for i, mux := range slices.Backward(muxes) { // open the first voter last, because it campaigns at once
		timing := TimingDefault
		timing.Heartbeat, timing.Election, timing.Lease = time.Minute, time.Minute, 30*time.Second // no elections on a busy machine
		g, err := Open(Config{
			Dir: b.TempDir(), NodeID: string(initial[i].ID), FSM: &sumFSM{}, Mux: mux, Initial: initial, LogStore: storage.LogStoreShared, Timing: timing,
			Fatal: func(err error) { b.Error(err) },
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { g.Close(context.Background(), false) })
		groups[i] = g
	}
	return groups
}
