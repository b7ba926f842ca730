package api

import (
	"context"
	"fmt"

	"github.com/countd/countd/client"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/shard"
)

// listKeyspaces answers from this node's copy of the catalog. For a linearizable read, or
// one with a bound, it first waits until the copy is as new as the leader's.
func listKeyspaces(until context.Context, s *Server, r *request, _ *nothing) (any, error) {
	if r.read.Consistency == shard.Linearizable || r.read.MaxStaleness > 0 {
		if err := s.node().CatchUp(until); err != nil {
			return nil, fmt.Errorf("cannot list keyspaces: %w", err)
		}
	}
	return map[string]any{"keyspaces": append([]*shard.Keyspace{}, s.node().Keyspaces()...)}, nil
}

// createKeyspace creates a keyspace. The backend checks its names.
func createKeyspace(until context.Context, s *Server, _ *request, body *struct {
	Name     string          `json:"name"`
	Columns  []client.Column `json:"columns"`
	Shards   *int            `json:"shards"`
	Sharding *string         `json:"sharding"`
}) (*shard.Keyspace, error) {
	ks := shard.Keyspace{Name: body.Name, Kind: shard.KindCounters}
	columns, floors, err := columnsOf(body.Columns)
	if err != nil {
		return nil, err
	}
	ks.Columns = columns
	for column, floor := range floors {
		if floor != nil {
			if ks.Floors == nil {
				ks.Floors = map[string]int64{}
			}
			ks.Floors[column] = *floor
		}
	}
	if body.Shards != nil {
		if ks.Shards = *body.Shards; ks.Shards < 1 || ks.Shards > shard.ShardsMax {
			return nil, invalid("shards", fmt.Sprintf("not an integer from 1 to %d", shard.ShardsMax))
		}
	}
	if body.Sharding != nil {
		if ks.Sharding = *body.Sharding; ks.Sharding == "" {
			return nil, invalid("sharding", "neither modulo nor hash")
		}
	}
	return s.node().CreateKeyspace(until, ks)
}

func addColumns(until context.Context, s *Server, r *request, body *struct {
	Columns []client.Column `json:"columns"`
}) (*shard.Keyspace, error) {
	columns, floors, err := columnsOf(body.Columns)
	if err != nil {
		return nil, err
	}
	return s.node().AddColumns(until, string(r.name), columns, floors)
}

// columnsOf returns the names of columns, and the given floors or nil.
func columnsOf(columns []client.Column) (names []string, floors map[string]*int64, err error) {
	switch {
	case len(columns) == 0:
		return nil, nil, invalid("columns", oneColumn)
	case len(columns) > engine.ColumnsMax:
		return nil, nil, invalid("columns", fmt.Sprintf("more than %d", engine.ColumnsMax))
	}
	for _, c := range columns {
		names = append(names, c.Name)
		if c.Floor != nil || c.NoFloor {
			if floors == nil {
				floors = map[string]*int64{}
			}
			floors[c.Name] = c.Floor
		}
	}
	return names, floors, nil
}

func setEverywhere(until context.Context, s *Server, r *request, body *struct {
	Everywhere bool `json:"everywhere"`
}) (*shard.Keyspace, error) {
	return s.node().SetEverywhere(until, string(r.name), body.Everywhere)
}

func dropKeyspace(until context.Context, s *Server, r *request, _ *nothing) (*shard.Keyspace, error) {
	return s.node().DropKeyspace(until, string(r.name))
}

func dropColumn(until context.Context, s *Server, r *request, _ *nothing) (*shard.Keyspace, error) {
	return s.node().DropColumn(until, string(r.name), string(r.column))
}
