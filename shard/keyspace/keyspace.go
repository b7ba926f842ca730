// Package keyspace owns the keyspaces as requests see them: their columns, kinds and floors,
// and the names and bounds that a new keyspace may have.
//
// Invariant: it never changes a keyspace: the catalog does, and each change makes a new value.
package keyspace

import (
	"encoding/json"
	"slices"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
)

// The kinds of keyspaces.
const (
	KindCounters = "counters" // plain counters
	KindUnread   = "unread"   // counters and cursors of users
	KindFeed     = "feed"     // the followees of users, and how many posts of each the user has seen
	KindBoard    = "board"    // notices and dots that all users share
)

// The names of the keyspaces that every cluster begins with.
const (
	Posts  = "posts" // the ids are posts
	Users  = "users" // the ids are authors; column counters.PostsColumn counts their posts
	Unread = "unread"
	Feed   = "feed"
	Board  = "board"
)

const (
	// ShardsDefault is the number of shards of a keyspace that sets none. It is odd, because ids that
	// carry a time often end in zeros: one of 4 shards would get all of them.
	ShardsDefault = 7
	// ShardsMax bounds the shards of a keyspace. One node may hold all of them, and a node carries 16
	// to 64 Raft groups well.
	ShardsMax = 64
	// CatalogName is the keyspace name of the catalog's group in a status.
	CatalogName = "meta"
)

// Keyspace describes a keyspace. A value never changes once it is published: AddColumns, DropColumn and
// SetEverywhere make a new one.
type Keyspace struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Columns []string `json:"columns"` // by number, which is fixed for ever; "" for a dropped column, which the JSON omits
	Shards  int      `json:"shards"`  // fixed when the keyspace is created
	// Dropped are the numbers of the columns that were dropped, ascending.
	Dropped []int `json:"dropped_columns,omitempty"`
	// Sharding is ShardingHash, or "" for ShardingModulo. It is fixed when the keyspace is created.
	Sharding string `json:"sharding,omitempty"`
	// Everywhere means that every node holds a replica of each shard. Those beyond the wanted voters
	// have no vote.
	Everywhere bool `json:"everywhere,omitempty"`
	// Floors has the floors by column name. No increment takes a count below the floor of its column.
	Floors map[string]int64 `json:"floors,omitempty"`
	// Warning is set only by CreateKeyspace: a problem of the chosen number of shards.
	Warning string `json:"warning,omitempty"`

	FloorsByNumber *raftfsm.Floors `json:"-"`
	FirstGroup     uint32          `json:"-"` // groups FirstGroup … FirstGroup+Shards-1 hold its shards
}

// Of returns the Keyspace of an entry of the catalog.
func Of(k *catalog.Keyspace) *Keyspace {
	known := &Keyspace{
		Name: k.Name, Kind: k.Kind, Columns: k.Columns, Shards: k.Shards, Sharding: k.Sharding, FirstGroup: k.FirstGroup,
		Everywhere: k.Everywhere, Floors: k.Floors, FloorsByNumber: raftfsm.FloorsOf(k.Columns, k.Floors),
	}
	for number, column := range k.Columns {
		if column == "" {
			known.Dropped = append(known.Dropped, number)
		}
	}
	return known
}

// Names returns the columns that were not dropped, in the order of their numbers.
func (k *Keyspace) Names() []string {
	if len(k.Dropped) == 0 {
		return k.Columns
	}
	return slices.DeleteFunc(slices.Clone(k.Columns), func(c string) bool { return c == "" })
}

// Same reports whether other is this keyspace, and not a later one of the same name. Their columns may
// differ.
func (k *Keyspace) Same(other *Keyspace) bool {
	return other != nil && k.Name == other.Name && k.FirstGroup == other.FirstGroup
}

// MarshalJSON omits the dropped columns.
func (k *Keyspace) MarshalJSON() ([]byte, error) {
	type plain Keyspace
	shown := plain(*k)
	shown.Columns = k.Names()
	return json.Marshal(&shown)
}

// Column returns the number of a column by name, or -1.
func (k *Keyspace) Column(name string) int {
	for i, c := range k.Columns {
		if c == name && c != "" {
			return i
		}
	}
	return -1
}
