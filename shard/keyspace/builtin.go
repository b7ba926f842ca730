package keyspace

import (
	"slices"

	"github.com/countd/countd/raftfsm/catalog"
)

// builtin are the keyspaces that every cluster begins with.
var builtin = []catalog.Keyspace{
	{Name: Posts, Kind: KindCounters, Columns: []string{"repost", "comment", "like", "view"}, Shards: ShardsDefault},
	{Name: Users, Kind: KindCounters, Columns: []string{"posts", "followers", "following"}, Shards: ShardsDefault},
	{Name: Unread, Kind: KindUnread, Columns: []string{"at", "comment", "like", "dm"}, Shards: ShardsDefault},
	{Name: Feed, Kind: KindFeed, Columns: []string{}, Shards: ShardsDefault},
	{Name: Board, Kind: KindBoard, Columns: []string{}, Shards: BoardShards},
}

// BoardShards is the number of shards of the board, which all users share.
const BoardShards = 1

// Builtin returns the keyspaces that a new cluster begins with. shards replaces the default number of
// shards, by name.
func Builtin(shards map[string]int) []catalog.Keyspace {
	all := slices.Clone(builtin)
	for i := range all {
		if n, ok := shards[all[i].Name]; ok {
			all[i].Shards = n
		}
	}
	return all
}

// HasBuiltin reports whether a column of a keyspace is built in.
func HasBuiltin(name, column string) bool {
	return slices.ContainsFunc(builtin, func(k catalog.Keyspace) bool { return k.Name == name && slices.Contains(k.Columns, column) })
}

// IsBuiltin reports whether the keyspace of a name is built in.
func IsBuiltin(name string) bool {
	return slices.ContainsFunc(builtin, func(k catalog.Keyspace) bool { return k.Name == name })
}
