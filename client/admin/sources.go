package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/countd/countd/client"
)

// Source is a queue that the cluster reads and counts.
type Source struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	State    string `json:"state"`  // running, paused or stalled
	Reason   string `json:"reason"` // why the source is stalled or makes no progress
	Node     string `json:"node,omitempty"`
	Applied  uint64 `json:"applied"` // messages applied; each node counts from its own start
	Rejected uint64 `json:"rejected"`
	// DeadLetters is the queue that rejected messages go to; "" if there is none.
	DeadLetters string `json:"dead_letters,omitempty"`
	// LastRejected is nil while nothing is rejected.
	LastRejected *SourceRejection  `json:"last_rejected,omitempty"`
	Lag          *uint64           `json:"lag,omitempty"` // messages that wait; nil if unknown for some partition
	Partitions   []SourcePartition `json:"partitions"`
	Config       json.RawMessage   `json:"config,omitempty"`
}

// SourceRejection describes the last message, or op of a message, that a source could not apply.
type SourceRejection struct {
	Partition uint32         `json:"partition"`
	Position  SourcePosition `json:"position"`
	Reason    string         `json:"reason"`
}

// SourcePartition is one partition of a source.
type SourcePartition struct {
	Partition  uint32         `json:"partition"`
	State      string         `json:"state"`
	Reason     string         `json:"reason"`
	Node       string         `json:"node,omitempty"`     // the node that reads the partition
	Position   SourcePosition `json:"position,omitempty"` // all messages below it are counted; "" if unknown
	End        SourcePosition `json:"end,omitempty"`      // position of the next message to be written
	EndAgeMS   *int64         `json:"end_age_ms,omitempty"`
	Lag        *uint64        `json:"lag,omitempty"`
	LagSeconds *float64       `json:"lag_seconds"` // age of the last counted message while others wait; nil if the times of the messages are unknown
	Rate       float64        `json:"rate"`        // messages a second
	Applied    uint64         `json:"applied"`
	Rejected   uint64         `json:"rejected"`
}

// SourcePosition is a place in a partition: a number, or two with a hyphen between them.
type SourcePosition string

// UnmarshalJSON reads a number or a string.
func (p *SourcePosition) UnmarshalJSON(text []byte) error {
	*p = SourcePosition(strings.Trim(string(text), `"`))
	return nil
}

func orderSource[T any](ctx context.Context, c Client, name, verb string, request any) (T, error) {
	return client.Ask[T](ctx, c.c, post(namePath("sources", name)+"/"+verb, request))
}

// Sources lists the sources by name.
func (c Client) Sources(ctx context.Context) ([]Source, error) {
	return client.AskMember[[]Source](ctx, c.c, get("/v1/sources"), "sources")
}

// Source reads a source.
func (c Client) Source(ctx context.Context, name string) (Source, error) {
	return client.Ask[Source](ctx, c.c, get(namePath("sources", name)))
}

// PutSource creates a source or changes its configuration, which is JSON or YAML.
func (c Client) PutSource(ctx context.Context, name string, config []byte) (Source, error) {
	return client.Ask[Source](ctx, c.c, client.Call{Method: http.MethodPut, Path: namePath("sources", name), Body: config})
}

// PauseSource stops the reading of a source until ResumeSource.
func (c Client) PauseSource(ctx context.Context, name string) (Source, error) {
	return orderSource[Source](ctx, c, name, "pause", struct{}{})
}

// ResumeSource ends the pause of a source.
func (c Client) ResumeSource(ctx context.Context, name string) (Source, error) {
	return orderSource[Source](ctx, c, name, "resume", struct{}{})
}

// SeekSource sets the positions at which partitions of a paused source continue.
func (c Client) SeekSource(ctx context.Context, name string, to map[uint32]SourcePosition) (Source, error) {
	return orderSource[Source](ctx, c, name, "seek", map[string]any{"positions": to})
}

// DeleteSource deletes a source with its positions. The counts stay.
func (c Client) DeleteSource(ctx context.Context, name string) error {
	_, err := client.Ask[[]byte](ctx, c.c, client.Call{Method: http.MethodDelete, Path: namePath("sources", name), Once: true})
	return err
}
