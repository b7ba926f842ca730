package shard

import (
	"fmt"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
)

// check returns an ArgumentError for a keyspace that cannot be created. It also refuses the name
// of the catalog's group, which would be ambiguous in a status.
func (k *Keyspace) check() error {
	if k.Name == catalogName {
		return &errs.ArgumentError{Field: "name", Problem: fmt.Sprintf("%q is the group that holds the list of keyspaces", k.Name)}
	}
	if b := kinds.BuiltinOf(k.Name); b != nil && b.Kind != kinds.Created {
		return &errs.ArgumentError{Field: "name", Problem: fmt.Sprintf("%q is kept for a keyspace that is built in", k.Name)}
	}
	if !catalog.ValidName(k.Name) {
		return &errs.ArgumentError{Field: "name", Problem: "must be 1 to 63 of a-z, 0-9 and _, and begin with a letter"}
	}
	if k.Shards < 0 || k.Shards > ShardsMax {
		return &errs.ArgumentError{Field: "shards", Problem: fmt.Sprintf("%d is not in 1…%d", k.Shards, ShardsMax)}
	}
	if k.Sharding != "" && k.Sharding != ShardingModulo && k.Sharding != ShardingHash {
		return &errs.ArgumentError{Field: "sharding", Problem: fmt.Sprintf("%q is neither %s nor %s", k.Sharding, ShardingModulo, ShardingHash)}
	}
	if k.IDs != "" && k.IDs != IDsText {
		return &errs.ArgumentError{Field: "ids", Problem: fmt.Sprintf("%q is not %s; leave it out for numbers", k.IDs, IDsText)}
	}
	if err := checkColumns(k.Columns); err != nil {
		return err
	}
	if err := k.Settings.Check(k.Columns); err != nil {
		return &errs.ArgumentError{Field: "columns", Problem: err.Error()}
	}
	return nil
}

// idColumn cannot be the name of a column, because files of rows have the row's id under that
// name.
const idColumn = "id"

// checkColumns returns an ArgumentError for columns that a keyspace cannot have.
func checkColumns(columns []string) error {
	if len(columns) < 1 || len(columns) > engine.ColumnsMax {
		return &errs.ArgumentError{Field: "columns", Problem: fmt.Sprintf("%d names are not 1…%d", len(columns), engine.ColumnsMax)}
	}
	for i, c := range columns {
		if !catalog.ValidName(c) {
			return &errs.ArgumentError{Field: fmt.Sprintf("columns[%d]", i), Problem: "must be 1 to 63 of a-z, 0-9 and _, and begin with a letter"}
		}
		if c == idColumn {
			return &errs.ArgumentError{Field: fmt.Sprintf("columns[%d]", i), Problem: fmt.Sprintf("%q is the id of a row", c)}
		}
		if slices.Contains(columns[:i], c) {
			return &errs.ArgumentError{Field: fmt.Sprintf("columns[%d]", i), Problem: "is there twice"}
		}
	}
	return nil
}
