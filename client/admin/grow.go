package admin

import (
	"context"
	"net/url"

	"github.com/countd/countd/client"
)

// GrowMax is the largest factor of one growth. Until a shard of many rows has split, scans of it take longer with each part.
const GrowMax = 9

// The states of Growth.
const (
	Growing    = "growing"
	NotGrowing = "not_growing"
)

// GrowOrder orders a growth of a keyspace: its shards are multiplied.
type GrowOrder struct {
	By int `json:"by,omitempty"` // the factor; 0 for the server's choice
	// From is the number of shards for which the order is meant, so that a repeated order does not act twice;
	// 0 for any.
	From     int  `json:"from,omitempty"`
	DryRun   bool `json:"dry_run,omitempty"`  // change nothing, and return what the growth would do
	Withdraw bool `json:"withdraw,omitempty"` // end the growth, unless a shard is being split or has been split
}

// Growth describes the growth of a keyspace.
type Growth struct {
	Keyspace string          `json:"keyspace"`
	Shards   int             `json:"shards"`            // before the growth
	To       int             `json:"to"`                // shards after it
	State    string          `json:"state"`             // Growing or NotGrowing
	Growing  *client.Growing `json:"growing,omitempty"` // the progress; nil for NotGrowing

	// The other fields are of a dry run.

	Rows      []uint64       `json:"rows,omitempty"`      // that each new shard would hold
	Factors   []GrowthFactor `json:"factors,omitempty"`   // the same for several factors
	Estimated bool           `json:"estimated,omitempty"` // the rows are an estimate from the rows of the lowest ids
	Refused   []string       `json:"refused,omitempty"`   // why the cluster would refuse the growth
	Warnings  []string       `json:"warnings,omitempty"`
}

// GrowthFactor describes the shards after a growth by a factor.
type GrowthFactor struct {
	By      int      `json:"by"`
	To      int      `json:"to"`
	Rows    []uint64 `json:"rows"`    // by shard
	Largest float64  `json:"largest"` // rows of the largest shard, in multiples of its even share; 0 without rows
}

// Grow makes a keyspace grow. It returns once the growth has begun. Client.Keyspaces shows the progress. The
// client sends an order without From once, because a repeat could begin a second growth.
func (c Client) Grow(ctx context.Context, keyspace string, o GrowOrder) (Growth, error) {
	call := post("/v1/admin/keyspaces/"+url.PathEscape(keyspace)+"/grow", o)
	call.Write = !o.DryRun
	call.Once = o.From == 0 && call.Write
	return client.Ask[Growth](ctx, c.c, call)
}
