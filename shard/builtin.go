package shard

import (
	"cmp"
	"slices"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
)

// builtinKeyspaces returns the keyspaces that a new cluster begins with. shards overrides the
// default number of shards, by keyspace.
func builtinKeyspaces(shards map[string]int) []catalog.Keyspace {
	all := slices.Clone(kinds.Builtin)
	for i := range all {
		all[i].Divisor = cmp.Or(shards[all[i].Name], all[i].Divisor, ShardsDefault)
	}
	return all
}

// builtin returns the built-in keyspace with the name, or nil.
func builtin(name string) *catalog.Keyspace {
	if i := slices.IndexFunc(kinds.Builtin, func(k catalog.Keyspace) bool { return k.Name == name }); i >= 0 {
		return &kinds.Builtin[i]
	}
	return nil
}

// IsBuiltin reports whether name is a built-in keyspace.
func IsBuiltin(name string) bool { return builtin(name) != nil }
