package kinds

import (
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/raftfsm/catalog"
)

// The names of the kinds, as keyspaces in the catalog use them.
const (
	Counters = "counters" // plain counters
	Unread   = "unread"   // counters and cursors of users
	Feed     = "feed"     // the followees of users, and how many posts of each the user has seen
	Board    = "board"    // notices and dots that all users share
	Names    = "names"    // the numbers of text ids
)

// Created is the kind of the keyspaces that operators create.
const Created = Counters

// The names of the built-in keyspaces.
const (
	KeyspacePosts  = "posts" // the ids are posts
	KeyspaceUsers  = "users" // the ids are authors
	KeyspaceUnread = "unread"
	KeyspaceFeed   = "feed"
	KeyspaceBoard  = "board"
)

// Feeds lists the keyspaces of kind Feed. A poll shows how many posts of the user's followees are new,
// under the name of the keyspace. Column of KeyspaceUsers counts the posts of an author. Feeds is read
// only.
var Feeds = [...]struct{ Keyspace, Column string }{
	{Keyspace: KeyspaceFeed, Column: "posts"},
}

// Builtin lists the keyspaces that every cluster begins with. Divisor is 0, unless the number of
// shards is fixed. It is read only.
var Builtin = []catalog.Keyspace{
	{Name: KeyspacePosts, Kind: Counters, Columns: []string{"repost", "comment", "like", "view"}},
	{Name: KeyspaceUsers, Kind: Counters, Columns: []string{"posts", "followers", "following"}},
	// An unread number is never shown below zero.
	{Name: KeyspaceUnread, Kind: Unread, Columns: []string{"at", "comment", "like", "dm"}, Settings: column.Settings[int64]{Floors: map[string]int64{"at": 0, "comment": 0, "like": 0, "dm": 0}}},
	{Name: KeyspaceFeed, Kind: Feed, Columns: []string{}},
	{Name: KeyspaceBoard, Kind: Board, Columns: []string{}, Divisor: 1}, // all users share the board
}
