package admin

import (
	"context"
	"time"

	"github.com/countd/countd/client"
)

// ColdNode is a node's report about its rows on disk. Totals count from the node's start.
type ColdNode struct {
	Node         string         `json:"node"`
	Answers      bool           `json:"answers"`            // if false, the other fields are zero
	AfterSeconds float64        `json:"cold_after_seconds"` // rows older than this leave memory; 0: their age does not matter
	DiskBytes    uint64         `json:"disk_bytes"`         // bytes of all files
	CacheBytes   uint64         `json:"cache_bytes"`
	CacheHits    uint64         `json:"cache_hits"`
	Reads        uint64         `json:"reads"` // blocks read that were not in the cache
	ReadP50      float64        `json:"read_p50_seconds"`
	ReadP99      float64        `json:"read_p99_seconds"`
	Refused      uint64         `json:"reads_refused"`  // reads refused because too many were waiting
	Damaged      uint64         `json:"damaged_blocks"` // damaged blocks found; a block counts each time it is found
	Scrub        ColdScrub      `json:"scrub"`
	Keyspaces    []ColdKeyspace `json:"keyspaces"`
	Work         *ColdWork      `json:"work,omitempty"` // the newest job; nil if there was none since the start
}

// ColdScrub is the progress of a node in reading all its rows on disk to find damage.
type ColdScrub struct {
	EverySeconds float64   `json:"every_seconds"` // 0 if it never runs
	Blocks       uint64    `json:"blocks"`
	Bytes        uint64    `json:"bytes"`
	PassBytes    uint64    `json:"pass_bytes"` // bytes read in the current pass
	PassOf       uint64    `json:"pass_of"`    // estimated size of the current pass
	Passes       uint64    `json:"passes"`     // passes that have ended
	LastPass     time.Time `json:"last_pass,omitzero"`
	Damaged      uint64    `json:"damaged_generations"`
}

// ColdKeyspace counts the rows that a node's replicas of one keyspace have.
type ColdKeyspace struct {
	Keyspace      string `json:"keyspace"`
	Rows          uint64 `json:"rows"` // in memory and on disk
	MemoryBytes   uint64 `json:"memory_bytes"`
	ColdRows      uint64 `json:"cold_rows"` // on disk
	ColdBytes     uint64 `json:"cold_bytes"`
	Generations   int    `json:"generations"` // runs of rows on disk
	DueRows       uint64 `json:"due_rows"`    // rows that are to leave memory
	DamagedShards int    `json:"damaged_shards"`
}

// ColdWork is the current job of a node, or its last one if none is running.
type ColdWork struct {
	ID       string    `json:"id"`
	Verb     string    `json:"verb"`               // always migrate
	Keyspace string    `json:"keyspace,omitempty"` // "" for all keyspaces
	Began    time.Time `json:"began"`
	Running  bool      `json:"running"`
	Rows     uint64    `json:"rows"`             // rows moved so far
	Of       uint64    `json:"of"`               // estimated number of rows to move
	Failed   string    `json:"failed,omitempty"` // why some rows could not be moved
}

// ColdOrdered holds the nodes' answers to MigrateCold or StopCold. The jobs run in the background;
// Client.Cold reports their progress.
type ColdOrdered struct {
	ID    string            `json:"id"` // id of the job; "" for a dry run
	Nodes []ColdOrderedNode `json:"nodes"`
}

// ColdOrderedNode is one node's answer to MigrateCold or StopCold.
type ColdOrderedNode struct {
	Node    string `json:"node"`
	Answers bool   `json:"answers"`           // false: the node has not begun the job, or its answer came too late
	Rows    uint64 `json:"rows"`              // estimated rows to move
	Refused string `json:"refused,omitempty"` // why the node refused the job
	Never   bool   `json:"never,omitempty"`   // no row is ever old enough: neither the request nor the node's settings name an age
}

// ColdMigration selects the rows that leave memory. Before and OlderThan exclude each other.
// Without either, each node moves the rows that are old by its own settings.
type ColdMigration struct {
	Keyspace  string        // "" for all keyspaces
	Before    uint64        // selects rows with lower ids; 0 means not given
	OlderThan time.Duration // in whole seconds, 1s … 100 years; 0 means not given
	DryRun    bool
}

// Cold returns the nodes' reports about their rows on disk, from GET /v1/admin/cold.
func (c Client) Cold(ctx context.Context) ([]ColdNode, error) {
	return client.AskMember[[]ColdNode](ctx, c.c, get("/v1/admin/cold"), "nodes")
}

// MigrateCold moves rows from memory to disk, on all nodes. It skips rows while somebody
// writes to rows near them.
func (c Client) MigrateCold(ctx context.Context, m ColdMigration) (ColdOrdered, error) {
	return c.orderCold(ctx, "migrate", struct {
		Keyspace  string `json:"keyspace,omitempty"`
		Before    uint64 `json:"before,omitempty,string"`
		OlderThan int64  `json:"older_than_seconds,omitempty"`
		DryRun    bool   `json:"dry_run,omitempty"`
	}{Keyspace: m.Keyspace, Before: m.Before, OlderThan: int64(m.OlderThan / time.Second), DryRun: m.DryRun})
}

// StopCold stops the current jobs on all nodes.
func (c Client) StopCold(ctx context.Context) (ColdOrdered, error) {
	return c.orderCold(ctx, "stop", struct{}{})
}

func (c Client) orderCold(ctx context.Context, verb string, request any) (ColdOrdered, error) {
	return client.Ask[ColdOrdered](ctx, c.c, post("/v1/admin/cold/"+verb, request))
}
