package engine

import (
	"runtime"
	"testing"
)

const (
	keysBenchIDs    = 7_000_000
	keysBenchShards = 7
)

// mixed is the hash by which package shard assigns ids to shards.
func mixed(id uint64) uint64 {
	id = (id ^ id>>33) * 0xff51afd7ed558ccd
	id = (id ^ id>>33) * 0xc4ceb9fe1a85ec53
	return id ^ id>>33
}

// BenchmarkKeysOfAShard reports the bytes per row in one of seven shards, for several ways to
// assign ids to shards and to derive a row's key from its id.
func BenchmarkKeysOfAShard(b *testing.B) {
	for _, keys := range []struct {
		name string
		key  func(id uint64) (shard, key uint64)
	}{
		{"modulo-divided-id", func(id uint64) (shard, key uint64) { return id % keysBenchShards, id / keysBenchShards }},
		{"hash-whole-id", func(id uint64) (shard, key uint64) { return mixed(id) % keysBenchShards, id }},
		{"hash-mixed-id", func(id uint64) (shard, key uint64) { return mixed(id) % keysBenchShards, mixed(id) }},
	} {
		b.Run(keys.name, func(b *testing.B) {
			var ids []uint64
			for _, id := range realIDs(keysBenchIDs) {
				if shard, key := keys.key(id); shard == 0 {
					ids = append(ids, key)
				}
			}
			for b.Loop() {
				tab := fill(ids)
				rows := float64(tab.Stats().Rows)
				b.ReportMetric(float64(tab.Stats().Bytes)/rows, "hot-B/row")
				sealAll(tab)
				sealAll(tab)
				st := tab.Stats()
				b.ReportMetric(float64(st.SealedBytes)/float64(st.SealedRows), "packed-B/row")
				runtime.KeepAlive(tab)
			}
		})
	}
}
