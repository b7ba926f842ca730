package shard

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// BenchmarkApply commits entries on one group of one voter, on this machine's
// disk, with a number of them in flight.
func BenchmarkApply(b *testing.B) {
	for _, test := range []struct {
		store           LogStore
		bytes, inFlight int
	}{
		{LogStoreBoltDB, 100, 1}, {LogStoreBoltDB, 100, 64}, {LogStoreBoltDB, 4096, 64}, {LogStoreBoltDB, 65536, 16},
		{LogStoreWAL, 100, 1}, {LogStoreWAL, 100, 64}, {LogStoreWAL, 4096, 64}, {LogStoreWAL, 65536, 16},
	} {
		b.Run(fmt.Sprintf("log=%s/bytes=%d/inflight=%d", test.store, test.bytes, test.inFlight), func(b *testing.B) {
			mux, err := ListenMux(MuxConfig{Addr: "127.0.0.1:0"})
			if err != nil {
				b.Fatal(err)
			}
			defer mux.Close()
			g, err := openGroup(groupConfig{
				Dir: b.TempDir(), NodeID: "n1", FSM: &sumFSM{}, Mux: mux, Initial: []member{{"n1", mux.Addr().String()}},
				LogStore: test.store,
				Fatal:    func(err error) { b.Error(err) },
			})
			if err != nil {
				b.Fatal(err)
			}
			defer g.close(b.Context(), false)
			for g.ready() != nil {
				time.Sleep(time.Millisecond)
			}
			entry := make([]byte, test.bytes)
			flight := make(chan raft.ApplyFuture, test.inFlight-1)
			failed := make(chan error, 1)
			go func() {
				var first error
				for f := range flight {
					if err := f.Error(); err != nil && first == nil {
						first = err
					}
				}
				failed <- first
			}()
			b.SetBytes(int64(test.bytes))
			b.ReportAllocs()
			for b.Loop() {
				flight <- g.apply(entry, time.Second)
			}
			close(flight)
			if err := <-failed; err != nil {
				b.Fatal(err)
			}
		})
	}
}
