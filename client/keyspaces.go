package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
)

// Keyspace describes one keyspace.
type Keyspace struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Columns []string `json:"columns"` // in the order of a row
	Shards  int      `json:"shards"`
	// Sharding is "hash", or "" for "modulo".
	Sharding string `json:"sharding,omitempty"`
	// Warning is the server's warning about the shape of a new keyspace.
	Warning string `json:"warning,omitempty"`
	// Everywhere is set if every node holds a replica of each shard, not only the voters.
	Everywhere bool `json:"everywhere,omitempty"`
	// DroppedColumns are the numbers of the columns that were dropped, counted in the order in
	// which columns were added. No other column ever gets these numbers.
	DroppedColumns []int `json:"dropped_columns,omitempty"`
	// Floors holds the floors of columns. No increment lowers a count below its floor.
	Floors map[string]int64 `json:"floors,omitempty"`
}

// Numbered returns the columns by number, with "" for dropped ones.
func (k Keyspace) Numbered() []string {
	numbered, names := make([]string, 0, len(k.Columns)+len(k.DroppedColumns)), k.Columns
	for number := range cap(numbered) {
		if slices.Contains(k.DroppedColumns, number) || len(names) == 0 {
			numbered = append(numbered, "")
			continue
		}
		numbered, names = append(numbered, names[0]), names[1:]
	}
	return numbered
}

// Column is a column to add to a keyspace or to change.
type Column struct {
	Name    string
	Floor   *int64 // nil leaves the floor as it is
	NoFloor bool   // removes the floor; Floor is ignored
}

// MarshalJSON writes the name alone if the floor does not change.
func (c Column) MarshalJSON() ([]byte, error) {
	if c.Floor == nil && !c.NoFloor {
		return json.Marshal(c.Name)
	}
	return json.Marshal(struct {
		Name  string `json:"name"`
		Floor *int64 `json:"floor"`
	}{c.Name, c.Floor})
}

// Keyspaces lists the keyspaces.
func (c *Client) Keyspaces(ctx context.Context) ([]Keyspace, error) {
	return AskMember[[]Keyspace](ctx, c, get("/v1/keyspaces"), "keyspaces")
}

// NewKeyspace describes a keyspace of counters to create. The server chooses a default for
// each zero field.
type NewKeyspace struct {
	Name     string   `json:"name"`
	Columns  []Column `json:"columns"`
	Shards   int      `json:"shards,omitempty"`
	Sharding string   `json:"sharding,omitempty"` // modulo or hash
}

// CreateKeyspace creates a keyspace of counters, or returns the existing one if it has the
// same shape.
func (c *Client) CreateKeyspace(ctx context.Context, k NewKeyspace) (Keyspace, error) {
	return c.changeKeyspace(ctx, "/v1/keyspaces", k)
}

// ChangeColumns adds the columns that a keyspace lacks, and sets the floors given in
// columns.
func (c *Client) ChangeColumns(ctx context.Context, keyspace string, columns []Column) (Keyspace, error) {
	return c.changeKeyspace(ctx, "/v1/keyspaces/"+url.PathEscape(keyspace)+"/columns", map[string][]Column{"columns": columns})
}

func (c *Client) changeKeyspace(ctx context.Context, path string, request any) (Keyspace, error) {
	return Ask[Keyspace](ctx, c, Call{Method: http.MethodPost, Path: path, Request: request})
}
