package operate

import (
	"context"
	"fmt"
	"slices"

	"github.com/countd/countd/admin"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
)

// Keyspaces answers from this node's copy of the catalog. For a linearizable read, or a read with a
// bound of staleness, it first waits until the copy is as new as the leader's.
func Keyspaces(until context.Context, c *Call, _ *Nothing) (any, error) {
	if c.Fresh {
		if err := c.Node.CatchUp(until); err != nil {
			return nil, fmt.Errorf("cannot list keyspaces: %w", err)
		}
	}
	shown := slices.DeleteFunc(append([]*shard.Keyspace{}, c.Node.Keyspaces()...), func(ks *shard.Keyspace) bool { return ks.Kind == kinds.Names })
	return map[string]any{"keyspaces": shown}, nil
}

// CreateKeyspace creates a keyspace. The backend checks its names.
func CreateKeyspace(until context.Context, c *Call, body *struct {
	Name     string          `json:"name"`
	Columns  []column.Column `json:"columns"`
	Shards   *int            `json:"shards"`
	Sharding *string         `json:"sharding"`
	IDs      *string         `json:"ids"`
	Limits   *catalog.Limits `json:"limits"`
}) (*shard.Keyspace, error) {
	if err := checkCount(body.Columns); err != nil {
		return nil, err
	}
	names, settings := column.Changes(body.Columns)
	ks := shard.Keyspace{Name: body.Name, Kind: kinds.Counters, Columns: names}
	ks.Settings = column.After(ks.Settings, settings)
	if body.Shards != nil {
		if ks.Shards = *body.Shards; ks.Shards < 1 || ks.Shards > shard.ShardsMax {
			return nil, invalid("shards", fmt.Sprintf("not an integer from 1 to %d", shard.ShardsMax))
		}
	}
	if body.Limits != nil {
		ks.Limits = *body.Limits
	}
	if body.Sharding != nil {
		if ks.Sharding = *body.Sharding; ks.Sharding == "" {
			return nil, invalid("sharding", "neither modulo nor hash")
		}
	}
	if body.IDs != nil {
		if ks.IDs = *body.IDs; ks.IDs != shard.IDsText {
			return nil, invalid("ids", "not "+shard.IDsText+"; leave it out for numbers")
		}
	}
	return c.Node.CreateKeyspace(until, ks)
}

func AddColumns(until context.Context, c *Call, body *struct {
	Columns []column.Column `json:"columns"`
}) (*shard.Keyspace, error) {
	if err := checkCount(body.Columns); err != nil {
		return nil, err
	}
	return c.Node.AddColumns(until, c.Name, body.Columns)
}

// checkCount refuses a list without columns, or with more columns than a keyspace may have.
func checkCount(columns []column.Column) error {
	switch {
	case len(columns) == 0:
		return invalid("columns", "at least one column is needed")
	case len(columns) > engine.ColumnsMax:
		return invalid("columns", fmt.Sprintf("more than %d", engine.ColumnsMax))
	}
	return nil
}

func SetEverywhere(until context.Context, c *Call, body *struct {
	Everywhere bool `json:"everywhere"`
}) (*shard.Keyspace, error) {
	return c.Node.ChangeSetting(until, c.Name, "everywhere", &catalog.Command{
		SetEverywhere: &catalog.SetEverywhereEntry{Keyspace: c.Name, Everywhere: body.Everywhere},
	})
}

// SetLimits sets the given limits of the keyspace in the path.
func SetLimits(until context.Context, c *Call, body *struct {
	Rows  *uint64 `json:"rows"`
	Bytes *uint64 `json:"bytes"`
}) (*shard.Keyspace, error) {
	if body.Rows == nil && body.Bytes == nil {
		return nil, invalid("rows", "neither rows nor bytes is given")
	}
	return c.Node.ChangeSetting(until, c.Name, "name", &catalog.Command{
		SetLimits: &catalog.SetLimitsEntry{Keyspace: c.Name, Rows: body.Rows, Bytes: body.Bytes},
	})
}

// Grow makes the keyspace in the path grow, withdraws its growth, or answers what a growth would do.
func Grow(until context.Context, c *Call, body *struct {
	By       *int `json:"by"`
	From     *int `json:"from"`
	DryRun   bool `json:"dry_run"`
	Withdraw bool `json:"withdraw"`
}) (*clientadmin.Growth, error) {
	o := admin.GrowOrder{Keyspace: c.Name, DryRun: body.DryRun, Withdraw: body.Withdraw}
	if body.By != nil {
		if o.By = *body.By; o.By < 2 || o.By > clientadmin.GrowMax {
			return nil, invalid("by", fmt.Sprintf("not an integer from 2 to %d", clientadmin.GrowMax))
		}
	}
	if body.From != nil {
		if o.From = *body.From; o.From < 1 || o.From > shard.ShardsMax {
			return nil, invalid("from", fmt.Sprintf("not an integer from 1 to %d", shard.ShardsMax))
		}
	}
	if o.Withdraw && (o.By != 0 || o.DryRun) {
		return nil, invalid("withdraw", "by or dry_run is given too")
	}
	return c.Admin.Grow(until, o)
}

func DropKeyspace(until context.Context, c *Call, _ *Nothing) (*shard.Keyspace, error) {
	return c.Node.DropKeyspace(until, c.Name)
}

func DropColumn(until context.Context, c *Call, _ *Nothing) (*shard.Keyspace, error) {
	return c.Node.DropColumn(until, c.Name, c.Column)
}
