//go:build unix

package storage

import (
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/shard/raftstore"
)

// benchTrailing is the number of entries that a group keeps.
const benchTrailing = 10_000

// Groups of one node store entries of 200 bytes at the same time. Each group stores and syncs one
// batch after another, as a leader's loop does. An op is one entry.
func BenchmarkStores(b *testing.B) {
	for _, load := range []struct{ groups, batch int }{{1, 1}, {4, 1}, {16, 1}, {36, 1}, {4, 32}, {36, 32}} {
		for _, store := range []LogStore{LogStoreBoltDB, LogStoreShared} {
			b.Run(fmt.Sprintf("groups=%d/batch=%d/%s", load.groups, load.batch, store), func(b *testing.B) {
				logs := benchLogs(b, store, load.groups)
				before := rafttest.CPUTime(b)
				b.ResetTimer()
				var all sync.WaitGroup
				for _, log := range logs {
					all.Go(func() { storeEntries(b, log, b.N/load.groups+1, load.batch) })
				}
				all.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
				b.ReportMetric(float64((rafttest.CPUTime(b)-before).Microseconds())/float64(b.N), "cpu-µs")
			})
		}
	}
}

// benchLogs opens the logs of groups and stores a first entry in each, so that their files exist.
func benchLogs(b *testing.B, store LogStore, groups int) (logs []raft.LogStore) {
	dir := b.TempDir()
	var node *raftstore.Log
	if store == LogStoreShared {
		var err error
		if node, err = OpenNodeLog(dir); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { node.Close() })
	}
	for i := range groups {
		var log raft.LogStore
		var err error
		if node != nil {
			log, err = node.Replica(raftstore.ReplicaID{Group: uint32(i)})
		} else {
			var bolt *boltFile
			bolt, err = openBoltFile(filepath.Join(dir, strconv.Itoa(i)))
			b.Cleanup(func() { bolt.Close() })
			log = bolt
		}
		if err != nil {
			b.Fatal(err)
		}
		logs = append(logs, log)
	}
	return logs
}

// storeEntries stores n entries, batch at a time, and removes old ones.
func storeEntries(b *testing.B, log raft.LogStore, n, batch int) {
	data := make([]byte, 200)
	first, next := uint64(1), uint64(1)
	for stored := 0; stored < n; stored += batch {
		entries := make([]*raft.Log, batch)
		for i := range entries {
			entries[i] = &raft.Log{Index: next, Term: 1, Data: data, AppendedAt: time.Now()}
			next++
		}
		if err := log.StoreLogs(entries); err != nil {
			b.Error(err)
			return
		}
		if next-first > 2*benchTrailing {
			if err := log.DeleteRange(first, next-1-benchTrailing); err != nil {
				b.Error(err)
				return
			}
			first = next - benchTrailing
		}
	}
}
