package client

import (
	"context"
	"net/http"
	"time"
)

// ColdNode is a node's report about its rows on disk. Totals count from its start.
type ColdNode struct {
	Node         string         `json:"node"`
	Answers      bool           `json:"answers"`            // if false, the other fields are zero
	AfterSeconds float64        `json:"cold_after_seconds"` // 0: rows do not leave memory because of their age
	DiskBytes    uint64         `json:"disk_bytes"`         // of all files
	CacheBytes   uint64         `json:"cache_bytes"`
	CacheHits    uint64         `json:"cache_hits"`
	Reads        uint64         `json:"reads"` // of blocks that were not in the cache
	ReadP50      float64        `json:"read_p50_seconds"`
	ReadP99      float64        `json:"read_p99_seconds"`
	Refused      uint64         `json:"reads_refused"`  // because too many waited
	Damaged      uint64         `json:"damaged_blocks"` // that were found, each time
	Scrub        ColdScrub      `json:"scrub"`
	Keyspaces    []ColdKeyspace `json:"keyspaces"`
	Work         *ColdWork      `json:"work,omitempty"` // the newest job; nil for none since the start
}

// ColdScrub is the progress of a node in reading all its rows on disk to find damage.
type ColdScrub struct {
	EverySeconds float64   `json:"every_seconds"` // 0 for never
	Blocks       uint64    `json:"blocks"`
	Bytes        uint64    `json:"bytes"`
	PassBytes    uint64    `json:"pass_bytes"` // of the current pass
	PassOf       uint64    `json:"pass_of"`    // estimated size of the pass
	Passes       uint64    `json:"passes"`     // that have ended
	LastPass     time.Time `json:"last_pass,omitzero"`
	Damaged      uint64    `json:"damaged_generations"`
}

// ColdKeyspace is the rows of a node's replicas of one keyspace.
type ColdKeyspace struct {
	Keyspace      string `json:"keyspace"`
	Rows          uint64 `json:"rows"` // in memory and on disk
	MemoryBytes   uint64 `json:"memory_bytes"`
	ColdRows      uint64 `json:"cold_rows"` // on disk
	ColdBytes     uint64 `json:"cold_bytes"`
	Generations   int    `json:"generations"` // runs of rows on disk
	DueRows       uint64 `json:"due_rows"`    // that are to leave memory
	DamagedShards int    `json:"damaged_shards"`
}

// ColdWork is the current or the last job of a node.
type ColdWork struct {
	ID       string    `json:"id"`
	Verb     string    `json:"verb"`               // migrate
	Keyspace string    `json:"keyspace,omitempty"` // "" for all
	Began    time.Time `json:"began"`
	Running  bool      `json:"running"`
	Rows     uint64    `json:"rows"`             // that have moved
	Of       uint64    `json:"of"`               // an estimate
	Failed   string    `json:"failed,omitempty"` // why not all could
}

// ColdOrdered holds the answers of the nodes to an order. The jobs run in the background;
// Client.Cold reports their progress.
type ColdOrdered struct {
	ID    string            `json:"id"` // that of the work; "" of a dry run
	Nodes []ColdOrderedNode `json:"nodes"`
}

// ColdOrderedNode is the answer of one node to an order.
type ColdOrderedNode struct {
	Node    string `json:"node"`
	Answers bool   `json:"answers"`           // without an answer the node begins nothing, unless it answered too late
	Rows    uint64 `json:"rows"`              // estimated rows to move
	Refused string `json:"refused,omitempty"` // why the node begins nothing
	Never   bool   `json:"never,omitempty"`   // no row is ever old enough: neither the order nor the node's settings name an age
}

// ColdMigration selects the rows that leave memory. Before and OlderThan exclude each other.
// Without either, each node moves the rows that are old by its own settings.
type ColdMigration struct {
	Keyspace  string        // "" for all
	Before    uint64        // rows of lesser ids; 0 for not given
	OlderThan time.Duration // in whole seconds, 1s … 100 years; 0 for not given
	DryRun    bool
}

// Cold returns the nodes' reports about their rows on disk, from GET /v1/admin/cold.
func (a Admin) Cold(ctx context.Context) ([]ColdNode, error) {
	return member[[]ColdNode](ctx, a.c, get("/v1/admin/cold"), "nodes")
}

// MigrateCold moves rows that nobody writes near from memory to disk, on all nodes.
func (a Admin) MigrateCold(ctx context.Context, m ColdMigration) (ColdOrdered, error) {
	return a.orderCold(ctx, "migrate", struct {
		Keyspace  string `json:"keyspace,omitempty"`
		Before    uint64 `json:"before,omitempty,string"`
		OlderThan int64  `json:"older_than_seconds,omitempty"`
		DryRun    bool   `json:"dry_run,omitempty"`
	}{m.Keyspace, m.Before, int64(m.OlderThan / time.Second), m.DryRun})
}

// StopCold stops the current jobs on all nodes.
func (a Admin) StopCold(ctx context.Context) (ColdOrdered, error) {
	return a.orderCold(ctx, "stop", struct{}{})
}

func (a Admin) orderCold(ctx context.Context, verb string, request any) (ColdOrdered, error) {
	return ask[ColdOrdered](ctx, a.c, call{method: http.MethodPost, path: "/v1/admin/cold/" + verb, request: request})
}
