package kinds

import (
	"cmp"
	"slices"

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

// BuiltinOf returns the built-in keyspace with the name, or nil.
func BuiltinOf(name string) *catalog.Keyspace {
	if i := slices.IndexFunc(Builtin, func(k catalog.Keyspace) bool { return k.Name == name }); i >= 0 {
		return &Builtin[i]
	}
	return nil
}

// TakesTexts reports whether the ids of a built-in keyspace can be chosen to be texts. The choice for
// KeyspaceUsers is that for all keyspaces whose ids are users.
func TakesTexts(keyspace string) bool { return keyspace == KeyspacePosts || keyspace == KeyspaceUsers }

// Beginning returns the keyspaces that a new cluster begins with. For the keyspaces in shards, the number of
// shards is that, and for the others divisor, unless it is fixed. texts has the keyspaces whose ids are texts.
func Beginning(shards map[string]int, divisor int, texts map[string]bool) []catalog.Keyspace {
	all := slices.Clone(Builtin)
	for i := range all {
		k := &all[i]
		k.Divisor = cmp.Or(shards[k.Name], k.Divisor, divisor)
		ids := idsOf(k)
		if texts[ids] {
			k.Names = catalog.NamesOf(ids)
		}
	}
	return all
}

// idsOf returns the built-in keyspace whose ids the rows of a built-in keyspace have.
func idsOf(k *catalog.Keyspace) string {
	if k.Kind == Unread || k.Kind == Feed {
		return KeyspaceUsers
	}
	return k.Name
}

// Missing returns the first keyspace of beginning that a catalog lacks, or nil. If users are its ids, they are
// texts if and only if they are so in the catalog: the nodes that create the keyspaces may have been told
// different things, and users must be the same everywhere.
func Missing(v *catalog.View, beginning []catalog.Keyspace) *catalog.Keyspace {
	for _, k := range beginning {
		if _, there := v.Keyspaces[k.Name]; there {
			continue
		}
		if users, there := v.Keyspaces[idsOf(&k)]; there {
			k.Names = users.Names
		}
		return &k
	}
	return nil
}

// NotTexts returns the keyspaces of beginning that should have chosen texts as ids, but have numbers in a catalog.
func NotTexts(v *catalog.View, beginning []catalog.Keyspace) (names []string) {
	for _, k := range beginning {
		if is, there := v.Keyspaces[k.Name]; there && TakesTexts(k.Name) && k.Names != "" && is.Names == "" {
			names = append(names, k.Name)
		}
	}
	return names
}
