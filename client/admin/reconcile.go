package admin

import (
	"context"
	"fmt"
	"net/http"

	"github.com/countd/countd/client"
)

// PastEvent is one op of a message of a source.
type PastEvent struct {
	Position SourcePosition `json:"position"`
	ID       client.ID      `json:"id"`
	Add      client.Counts  `json:"add,omitempty"` // either Add or Set is present
	Set      client.Counts  `json:"set,omitempty"`
	Floor    *int64         `json:"floor,omitempty"`
}

// Past holds the events of a part of a source's queue.
type Past struct {
	Events []PastEvent    `json:"events"` // in order
	Next   SourcePosition `json:"next"`   // where the next events begin
}

// Past reads the ops that messages of a source apply to rows of a keyspace, beginning at a
// position. If there are no messages at or above the position yet, Next is that position.
func (c Client) Past(ctx context.Context, source, keyspace string, partition uint32, from SourcePosition) (Past, error) {
	return orderSource[Past](ctx, c, source, "past", map[string]any{"keyspace": keyspace, "partition": partition, "from": from})
}

// ShardRow is a row and its shard.
type ShardRow struct {
	client.Row
	Shard int `json:"shard"`
}

// SourceWindow bounds a shard's position in a partition of a source. The position was between From
// and To while the server read rows of the shard.
type SourceWindow struct {
	Partition uint32         `json:"partition"`
	From      SourcePosition `json:"from"` // the rows contain all messages below it
	To        SourcePosition `json:"to"`   // the rows contain no message at or above it
}

// SourceRows are rows, and the positions of a source in their shards.
type SourceRows struct {
	Rows   []ShardRow             `json:"rows"`
	Shards map[int][]SourceWindow `json:"shards"`
}

// SourceIDsMax bounds the rows that one call of SourceRows reads.
const SourceIDsMax = 10_000

// SourceRows reads up to SourceIDsMax rows in the order of ids, and the positions of a source in
// their shards. Without ids it reads the positions in all shards.
func (c Client) SourceRows(ctx context.Context, source, keyspace string, ids []client.ID) (SourceRows, error) {
	answer, err := orderSource[SourceRows](ctx, c, source, "rows", map[string]any{"keyspace": keyspace, "ids": append([]client.ID{}, ids...)})
	if err == nil && len(answer.Rows) != len(ids) {
		err = fmt.Errorf("the server answered with %d rows for %d ids", len(answer.Rows), len(ids))
	}
	return answer, err
}

// CorrectMany works like IncrMany of client.Client. The server counts the ops as corrections in a
// separate metric.
func (c Client) CorrectMany(ctx context.Context, keyspace string, ops []client.Op, o client.WriteOptions) (client.WriteResult, error) {
	body := client.AppendOps(nil, "add", ops, !o.Quiet)
	return client.Ask[client.WriteResult](ctx, c.c, client.Call{Method: http.MethodPost, Path: namePath("counters", keyspace) + "/correct", Body: body, Options: &o})
}
