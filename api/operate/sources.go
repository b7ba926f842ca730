package operate

import (
	"context"
	"fmt"
	"strings"

	"github.com/countd/countd/client"
	"github.com/countd/countd/sources"
)

func ListSources(until context.Context, c *Call, _ *Nothing) (any, error) {
	all, err := c.Sources.List(until)
	return map[string]any{"sources": append([]sources.Source{}, all...)}, err
}

// OfSource returns a call on the source in the path.
func OfSource(do func(all Sources, until context.Context, name string) (*sources.Source, error)) func(context.Context, *Call, *Nothing) (*sources.Source, error) {
	return func(until context.Context, c *Call, _ *Nothing) (*sources.Source, error) {
		return do(c.Sources, until, c.Name)
	}
}

// PutSource creates a source, or replaces its configuration. Package sources reads the body, which may
// be YAML.
func PutSource(until context.Context, c *Call, body []byte) (*sources.Source, error) {
	return c.Sources.Put(until, c.Name, body)
}

// RestoreSource creates a source from a backup.
func RestoreSource(until context.Context, c *Call, body []byte) (*sources.Source, error) {
	return c.Sources.RestoreSaved(until, body)
}

func SeekSource(until context.Context, c *Call, body *struct {
	Positions map[uint32]position `json:"positions"`
}) (*sources.Source, error) {
	to := map[uint32]string{}
	for partition, at := range body.Positions {
		to[partition] = string(at)
	}
	if len(to) == 0 {
		return nil, invalid("positions", "empty")
	}
	return c.Sources.Seek(until, c.Name, to)
}

func DeleteSource(until context.Context, c *Call, _ *Nothing) (any, error) {
	err := c.Sources.Delete(until, c.Name)
	return struct {
		Name    string `json:"name"`
		Deleted bool   `json:"deleted"`
	}{c.Name, true}, err
}

func SaveSources(until context.Context, c *Call, _ *Nothing) (any, error) {
	all, err := c.Sources.Save(until)
	return map[string]any{"sources": all}, err
}

// The calls below serve a reconciliation: a client compares counts with the data that they should
// count.

func PastOfSource(until context.Context, c *Call, body *struct {
	Keyspace  string   `json:"keyspace"`
	Partition uint32   `json:"partition"`
	From      position `json:"from"`
}) (*sources.Past, error) {
	return c.Sources.Past(until, c.Name, body.Keyspace, body.Partition, string(body.From))
}

// sourceIDsMax bounds the ids of one call of RowsOfSource. The call costs two log entries in each
// shard, for any number of rows.
const sourceIDsMax = 10_000

func RowsOfSource(until context.Context, c *Call, body *struct {
	Keyspace string      `json:"keyspace"`
	IDs      []client.ID `json:"ids"`
}) (*sources.Rows, error) {
	if len(body.IDs) > sourceIDsMax {
		return nil, invalid("ids", fmt.Sprintf("more than %d", sourceIDsMax))
	}
	ids := make([]string, 0, len(body.IDs))
	for _, id := range body.IDs {
		ids = append(ids, id.String())
	}
	return c.Sources.Rows(until, c.Name, body.Keyspace, ids)
}

// position is the text of a position in a queue: a number, or a string such as "1-2".
type position string

// UnmarshalJSON implements json.Unmarshaler.
func (p *position) UnmarshalJSON(text []byte) error {
	*p = position(strings.Trim(string(text), `"`))
	if *p == "" || strings.IndexByte(`"-0123456789`, text[0]) < 0 {
		return &MemberError{Problem: fmt.Sprintf("not a position: a number, or a string such as %q", "1-2")}
	}
	return nil
}
