package shard

import "github.com/countd/countd/raftfsm/kinds"

// IsBuiltin reports whether name is a built-in keyspace.
func IsBuiltin(name string) bool { return kinds.BuiltinOf(name) != nil }
