package client

import (
	"context"
	"encoding/json"
	"errors"
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

// Cluster is the state of a node and of its groups.
type Cluster struct {
	ClusterID   string  `json:"cluster_id"`
	ClusterName string  `json:"cluster_name"` // "" if the answering node was given no name
	Nodes       []Node  `json:"nodes"`
	Groups      []Group `json:"groups"`
}

// Node describes one node.
type Node struct {
	ID          string `json:"id"`
	State       string `json:"state"`
	Version     string `json:"version"`
	HTTPAddr    string `json:"http_addr"`
	ClusterAddr string `json:"cluster_addr"`
	GossipAddr  string `json:"gossip_addr"`
}

// Group describes one replica of one Raft group. Two replicas with the same AppliedIndex have
// equal digests.
type Group struct {
	ID            uint32 `json:"id"`
	Replica       string `json:"replica"` // its Raft id, which no other replica of the group has ever had
	Keyspace      string `json:"keyspace"`
	Shard         int    `json:"shard"`
	Role          string `json:"role"`
	Leader        string `json:"leader"` // node id; "" when not known
	Term          uint64 `json:"term"`
	AppliedIndex  uint64 `json:"applied_index"`
	CommitIndex   uint64 `json:"commit_index"`
	SnapshotIndex uint64 `json:"snapshot_index"`
	Digest        string `json:"digest"` // 16 hex digits, at AppliedIndex
	Rows          uint64 `json:"rows"`
	Bytes         uint64 `json:"bytes"`        // bytes of memory
	ColdRows      uint64 `json:"cold_rows"`    // those of Rows that are on disk instead of in memory
	ColdBytes     uint64 `json:"cold_bytes"`   // bytes of disk
	ColdDamaged   bool   `json:"cold_damaged"` // some of the cold rows cannot be read
	SealedRows    uint64 `json:"sealed_rows"`  // those of Rows that are packed in memory
	SealedBytes   uint64 `json:"sealed_bytes"` // bytes of packed rows, included in Bytes
	// Members is the group's configuration as the replica knows it.
	Members []GroupMember `json:"members"`
}

// GroupMember is one member of a group's configuration.
type GroupMember struct {
	Node    string `json:"node"`
	Key     string `json:"key"`
	Replica string `json:"replica"`
	Voter   bool   `json:"voter"`
}

// Keyspaces lists the keyspaces.
func (c *Client) Keyspaces(ctx context.Context) ([]Keyspace, error) {
	return askMember[[]Keyspace](ctx, c, get("/v1/keyspaces"), "keyspaces")
}

// CreateKeyspace creates a keyspace of counters, or returns the existing one if it has the
// same shape. With shards 0 the server chooses the number.
func (c *Client) CreateKeyspace(ctx context.Context, name string, columns []string, shards int) (Keyspace, error) {
	return c.CreateKeyspaceWith(ctx, NewKeyspace{Name: name, Columns: columnsOf(columns), Shards: shards})
}

// NewKeyspace describes a keyspace of counters to create. The server chooses a default for
// each zero field.
type NewKeyspace struct {
	Name     string   `json:"name"`
	Columns  []Column `json:"columns"`
	Shards   int      `json:"shards,omitempty"`
	Sharding string   `json:"sharding,omitempty"` // modulo or hash
}

// CreateKeyspaceWith is CreateKeyspace with all settings of a new keyspace.
func (c *Client) CreateKeyspaceWith(ctx context.Context, k NewKeyspace) (Keyspace, error) {
	return c.changeKeyspace(ctx, "/v1/keyspaces", k)
}

func columnsOf(names []string) []Column {
	columns := make([]Column, len(names))
	for i, name := range names {
		columns[i].Name = name
	}
	return columns
}

// AddColumns adds columns to a keyspace and leaves existing ones unchanged.
func (c *Client) AddColumns(ctx context.Context, keyspace string, columns []string) (Keyspace, error) {
	return c.ChangeColumns(ctx, keyspace, columnsOf(columns))
}

// ChangeColumns adds the columns that a keyspace lacks, and sets the floors given in
// columns.
func (c *Client) ChangeColumns(ctx context.Context, keyspace string, columns []Column) (Keyspace, error) {
	return c.changeKeyspace(ctx, "/v1/keyspaces/"+url.PathEscape(keyspace)+"/columns", struct {
		Columns []Column `json:"columns"`
	}{columns})
}

// SetEverywhere sets whether every node holds a replica of each shard of a keyspace and
// reads it locally, or only the voters do. It returns before the replicas are there.
func (c *Client) SetEverywhere(ctx context.Context, keyspace string, everywhere bool) (Keyspace, error) {
	return c.changeKeyspace(ctx, "/v1/keyspaces/"+url.PathEscape(keyspace)+"/everywhere", struct {
		Everywhere bool `json:"everywhere"`
	}{everywhere})
}

// DropKeyspace drops a keyspace with all its rows, and returns its last state. It is sent once:
// a repeat could drop a new keyspace of that name. If the error is ErrUnknown, call Keyspaces to
// find out whether it was dropped.
func (c *Client) DropKeyspace(ctx context.Context, name string) (Keyspace, error) {
	return ask[Keyspace](ctx, c, deleteOnce("/v1/keyspaces/"+url.PathEscape(name)))
}

// DropColumn drops a column of a keyspace with all its counts, and returns the changed
// keyspace. Like DropKeyspace, the client never retries it.
func (c *Client) DropColumn(ctx context.Context, keyspace, column string) (Keyspace, error) {
	return ask[Keyspace](ctx, c, deleteOnce("/v1/keyspaces/"+url.PathEscape(keyspace)+"/columns/"+url.PathEscape(column)))
}

func (c *Client) changeKeyspace(ctx context.Context, path string, request any) (Keyspace, error) {
	return ask[Keyspace](ctx, c, call{method: http.MethodPost, path: path, request: request})
}

// Cluster reads the state of nodes and groups.
func (c *Client) Cluster(ctx context.Context) (Cluster, error) {
	return ask[Cluster](ctx, c, get("/v1/cluster"))
}

// Version reads the server's version.
func (c *Client) Version(ctx context.Context) (string, error) {
	return askMember[string](ctx, c, get("/v1/version"), "version")
}

// Ready reports whether the node can serve. If the node cannot serve, why holds its reason and
// the error is nil. A draining or stopping node is ready, but should get no new requests; why
// then holds that reason. Ready sends one request to one node. If that node is not ready, the
// next call uses the next address.
func (c *Client) Ready(ctx context.Context) (ready bool, why string, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: "/readyz", once: true}, nil)
	var refused *Error
	if errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable {
		return refused.Code == "draining", refused.Message, nil
	}
	return err == nil, "", err
}
