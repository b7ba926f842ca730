package keyspace

import (
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
)

// Check returns an ArgumentError for a keyspace that cannot be created. It refuses the name of the
// catalog's group, which would be ambiguous in a status.
func (k *Keyspace) Check() error {
	if k.Name == CatalogName {
		return &errs.ArgumentError{Field: "name", Problem: fmt.Sprintf("%q is the group that holds the list of keyspaces", k.Name)}
	}
	if slices.Contains(reservedNames[:], k.Name) {
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
	if err := CheckColumns(k.Columns); err != nil {
		return err
	}
	for _, column := range slices.Sorted(maps.Keys(k.Floors)) {
		if !slices.Contains(k.Columns, column) {
			return &errs.ArgumentError{Field: "columns", Problem: fmt.Sprintf("a floor of column %q, which is not there", column)}
		}
	}
	return nil
}

// reservedNames are the names of built-in keyspaces of kinds other than counters.
var reservedNames = [...]string{Unread, Feed, Board}

// idColumn cannot be the name of a column, because files of rows store the row's id under that
// name.
const idColumn = "id"

// CheckColumns returns an ArgumentError for columns that no keyspace can have.
func CheckColumns(columns []string) error {
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
