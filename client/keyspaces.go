package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/countd/countd/client/column"
)

// Keyspace describes one keyspace.
type Keyspace struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Columns []string `json:"columns"` // in the order of a row
	Shards  int      `json:"shards"`
	// IDs is "text" if ids are texts, and "" if they are numbers.
	IDs string `json:"ids,omitempty"`
	// Sharding is "hash", or "" for "modulo".
	Sharding string `json:"sharding,omitempty"`
	// Warning is the server's warning about the shape of a new keyspace.
	Warning string `json:"warning,omitempty"`
	// Everywhere is set if every node holds a replica of each shard, not only the voters.
	Everywhere bool   `json:"everywhere,omitempty"`
	Limits     Limits `json:"limits,omitzero"`
	// DroppedColumns are the numbers of the columns that were dropped, in the order in which the
	// columns were added. No other column ever gets these numbers.
	DroppedColumns []int `json:"dropped_columns,omitempty"`
	column.Settings[int64]
	// Growing is the progress of the keyspace's growth; nil if it does not grow.
	Growing *Growing `json:"growing,omitempty"`
	// CreatedShards is the number of shards at the creation; 0 unless the keyspace has grown.
	CreatedShards int `json:"created_shards,omitempty"`
}

// Growing is the progress of a growth, which multiplies the shards of a keyspace.
type Growing struct {
	To     int            `json:"to"`              // number of shards after the growth
	Split  int            `json:"split"`           // number of present shards that have been split and whose parts all serve
	Since  string         `json:"since,omitempty"` // when the growth began, RFC 3339; "" if unknown
	Shards []GrowingShard `json:"shards"`          // the present shards
}

// GrowingShard describes how far a shard is in a growth.
type GrowingShard struct {
	Shard int `json:"shard"`
	// State is waiting, committed (its parts have groups), split (some parts serve) or begun (all
	// parts serve).
	State string `json:"state"`
	Since string `json:"since,omitempty"` // when it was committed, RFC 3339; "" if unknown
}

// ErrNotNumber is returned for an id that is no number, in a keyspace whose ids are numbers.
var ErrNotNumber = errors.New(`not an unsigned 64-bit integer; a keyspace made with "ids":"text" takes any text`)

// ParseID returns the id with a text if the keyspace takes it.
func (k Keyspace) ParseID(text string) (ID, error) {
	id, err := ParseID(text)
	if _, number := id.Number(); k.IDs == "" && (err != nil || !number) {
		return ID{}, fmt.Errorf("%q is %w", text, ErrNotNumber)
	}
	return id, err
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

// Keyspaces lists the keyspaces.
func (c *Client) Keyspaces(ctx context.Context) ([]Keyspace, error) {
	return AskMember[[]Keyspace](ctx, c, ReadOptions{}.get("/v1/keyspaces", nil), "keyspaces")
}

// NewKeyspace describes a keyspace of counters to create. The server chooses a default for
// each zero field.
type NewKeyspace struct {
	Name     string          `json:"name"`
	Columns  []column.Column `json:"columns"`
	Shards   int             `json:"shards,omitempty"`
	Sharding string          `json:"sharding,omitempty"` // modulo or hash
	IDs      string          `json:"ids,omitempty"`      // text, or "" for numbers
	Limits   Limits          `json:"limits,omitzero"`    // an existing keyspace keeps its own
}

// Limits bound a keyspace; 0 means no limit. Each shard may have an equal share.
type Limits struct {
	Rows  uint64 `json:"rows,omitempty"`
	Bytes uint64 `json:"bytes,omitempty"` // memory
}

// CreateKeyspace creates a keyspace of counters, or returns the existing one if it has the
// same shape.
func (c *Client) CreateKeyspace(ctx context.Context, k NewKeyspace) (Keyspace, error) {
	return c.changeKeyspace(ctx, "/v1/keyspaces", k)
}

// ChangeColumns adds the columns that a keyspace lacks, and changes the settings given in
// columns.
func (c *Client) ChangeColumns(ctx context.Context, keyspace string, columns []column.Column) (Keyspace, error) {
	return c.changeKeyspace(ctx, namePath("keyspaces", keyspace)+"/columns", map[string][]column.Column{"columns": columns})
}

func (c *Client) changeKeyspace(ctx context.Context, path string, request any) (Keyspace, error) {
	return Ask[Keyspace](ctx, c, Call{Method: http.MethodPost, Path: path, Request: request})
}
