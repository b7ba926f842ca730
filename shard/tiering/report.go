package tiering

import (
	"context"
	"maps"
	"slices"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/shard/rpc"
)

// The methods of calls between nodes.
const (
	methodColdReport = "coldreport" // nothing → ColdReport
	methodColdOrder  = "coldorder"  // TieringJob → ColdAnswer
)

// ColdReport is a node's report of its rows on disk. Counts begin at the node's start.
type ColdReport struct {
	AfterSeconds float64        `json:"cold_after_seconds"` // age at which rows leave memory; 0 for never
	DiskBytes    uint64         `json:"disk_bytes"`         // size of all files of cold rows
	CacheBytes   uint64         `json:"cache_bytes"`
	CacheHits    uint64         `json:"cache_hits"`
	Reads        uint64         `json:"reads"` // block reads that missed the cache; a read counts once for each caller that waits for it
	ReadP50      float64        `json:"read_p50_seconds"`
	ReadP99      float64        `json:"read_p99_seconds"`
	Refused      uint64         `json:"reads_refused"`
	Damaged      uint64         `json:"damaged_blocks"` // times that a block was found damaged
	Scrub        ColdScrub      `json:"scrub"`
	Keyspaces    []ColdKeyspace `json:"keyspaces"`      // sorted by name
	Work         *ColdWork      `json:"work,omitempty"` // newest job
}

// ColdKeyspace sums the rows of a node's replicas of one keyspace.
type ColdKeyspace struct {
	Keyspace      string `json:"keyspace"`
	Rows          uint64 `json:"rows"`         // rows in memory and on disk
	MemoryBytes   uint64 `json:"memory_bytes"` // memory of the rows, and of the index of the rows on disk
	ColdRows      uint64 `json:"cold_rows"`
	ColdBytes     uint64 `json:"cold_bytes"`  // size of packed blocks
	Generations   int    `json:"generations"` // including generations that only stored snapshots use
	DueRows       uint64 `json:"due_rows"`    // rows due to leave memory, as of the last check
	DamagedShards int    `json:"damaged_shards"`
}

// Reports returns the ColdReports of all nodes that answer within rpc.AskTimeout, by node key.
func (t *Tiering) Reports(ctx context.Context) map[string]ColdReport {
	return rpc.AskAllJSON(ctx, t.calls, t.cfg.Key, maps.Keys(t.cfg.Catalog.View().Nodes), methodColdReport, rpc.None{}, t.report)
}

func (t *Tiering) report(context.Context, rpc.None) (ColdReport, error) {
	s := t.Stats()
	return ColdReport{
		AfterSeconds: t.cfg.Cold.After.Seconds(), DiskBytes: t.diskBytes(), CacheBytes: s.CacheBytes, CacheHits: s.Hits,
		Reads: s.Reads.Count(), ReadP50: s.Reads.Quantile(0.5).Seconds(), ReadP99: s.Reads.Quantile(0.99).Seconds(),
		Refused: s.Refused, Damaged: s.Damaged, Scrub: t.Scrub.Report(), Keyspaces: t.coldKeyspaces(), Work: t.Queue.Report(),
	}, nil
}

func (t *Tiering) coldKeyspaces() []ColdKeyspace {
	byName := map[string]*ColdKeyspace{}
	for _, l := range t.Leaving(AnyShard) {
		k := byName[l.Keyspace]
		if k == nil {
			k = &ColdKeyspace{Keyspace: l.Keyspace}
			byName[l.Keyspace] = k
		}
		state := l.FSM.State()
		k.Rows, k.MemoryBytes = k.Rows+state.Rows, k.MemoryBytes+state.Bytes
		k.ColdRows, k.ColdBytes = k.ColdRows+state.ColdRows, k.ColdBytes+state.ColdBytes
		k.Generations += l.FSM.Generations()
		k.DueRows += uint64(l.due.Load())
		if l.Damage.Found() {
			k.DamagedShards++
		}
	}
	all := []ColdKeyspace{}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, *byName[name])
	}
	return all
}

// diskBytes returns the size of the store of cold rows on disk, or 0 before the store is opened.
func (t *Tiering) diskBytes() uint64 {
	if store := t.store.Load(); store != nil {
		return store.DiskBytes()
	}
	return 0
}

// Stats returns the store's statistics of reads, or zeros before the store is opened.
func (t *Tiering) Stats() (s cold.Stats) {
	if store := t.store.Load(); store != nil {
		s = store.Stats()
	}
	return s
}
