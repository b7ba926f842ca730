package shard

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/shard/rpc"
)

// ColdReport is what a node says of its rows on disk. Sums are since its start.
type ColdReport struct {
	AfterSeconds float64        `json:"cold_after_seconds"` // 0 for never
	DiskBytes    uint64         `json:"disk_bytes"`         // of all files
	CacheBytes   uint64         `json:"cache_bytes"`
	CacheHits    uint64         `json:"cache_hits"`
	Reads        uint64         `json:"reads"` // of blocks that were not in the cache, by who waited for them
	ReadP50      float64        `json:"read_p50_seconds"`
	ReadP99      float64        `json:"read_p99_seconds"`
	Refused      uint64         `json:"reads_refused"`
	Damaged      uint64         `json:"damaged_blocks"` // that were found, each time
	Scrub        ColdScrub      `json:"scrub"`
	Keyspaces    []ColdKeyspace `json:"keyspaces"`      // by name
	Kept         []ColdKept     `json:"kept"`           // in memory, however old
	Work         *ColdWork      `json:"work,omitempty"` // the newest that was ordered
}

// ColdKeyspace is the rows of a node's replicas of one keyspace.
type ColdKeyspace struct {
	Keyspace      string `json:"keyspace"`
	Rows          uint64 `json:"rows"`         // in memory and on disk
	MemoryBytes   uint64 `json:"memory_bytes"` // with what is known of those on disk
	ColdRows      uint64 `json:"cold_rows"`
	ColdBytes     uint64 `json:"cold_bytes"`  // of packed blocks
	Generations   int    `json:"generations"` // with those that only stored snapshots name
	DueRows       uint64 `json:"due_rows"`    // that are to leave memory, as the last look found
	DamagedShards int    `json:"damaged_shards"`
}

// ColdReports asks every node of its rows on disk, and returns what those say, by key,
// that answer within rpc.AskTimeout.
func (n *Node) ColdReports(ctx context.Context) map[string]ColdReport {
	return rpc.AskAll(ctx, maps.Keys(n.catalog.View().Nodes), func(ctx context.Context, node string) (r ColdReport, err error) {
		if node == n.cfg.NodeKey {
			return n.coldReport(), nil
		}
		raw, err := n.calls.Call(ctx, node, methodColdReport, nil)
		if err == nil {
			err = json.Unmarshal(raw, &r)
		}
		return r, err
	})
}

func (n *Node) serveColdReport(context.Context, []byte) ([]byte, error) {
	return json.Marshal(n.coldReport())
}

func (n *Node) coldReport() ColdReport {
	s := n.coldStats()
	r := ColdReport{
		AfterSeconds: n.cfg.Cold.After.Seconds(), DiskBytes: n.coldDiskBytes(), CacheBytes: s.CacheBytes, CacheHits: s.Hits,
		Reads: s.Reads.Count(), ReadP50: s.Reads.Quantile(0.5).Seconds(), ReadP99: s.Reads.Quantile(0.99).Seconds(),
		Refused: s.Refused, Damaged: s.Damaged, Scrub: n.scrub.report(), Keyspaces: n.tiering.coldKeyspaces(),
	}
	work, kept := n.tiering.queue.report()
	r.Work, r.Kept = work, append([]ColdKept{}, kept...)
	return r
}

func (t *tiering) coldKeyspaces() []ColdKeyspace {
	byName := map[string]*ColdKeyspace{}
	for _, l := range t.registry.leaving(anyShard) {
		k := byName[l.g.keyspace]
		if k == nil {
			k = &ColdKeyspace{Keyspace: l.g.keyspace}
			byName[l.g.keyspace] = k
		}
		state := l.fsm.State()
		k.Rows, k.MemoryBytes = k.Rows+state.Rows, k.MemoryBytes+state.Bytes
		k.ColdRows, k.ColdBytes = k.ColdRows+state.ColdRows, k.ColdBytes+state.ColdBytes
		k.Generations += l.fsm.Generations()
		k.DueRows += uint64(l.r.due.Load())
		if l.r.damaged.Load() {
			k.DamagedShards++
		}
	}
	all := []ColdKeyspace{}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, *byName[name])
	}
	return all
}

// coldDiskBytes is what the store of cold rows takes on disk, 0 before there is one.
func (n *Node) coldDiskBytes() uint64 {
	if store := n.coldStore.Load(); store != nil {
		return store.DiskBytes()
	}
	return 0
}

// coldStats is what that store tells of reads, zero before there is one.
func (n *Node) coldStats() (s cold.Stats) {
	if store := n.coldStore.Load(); store != nil {
		s = store.Stats()
	}
	return s
}
