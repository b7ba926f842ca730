// Package keyspace owns the keyspaces as requests see them: their columns, kinds and floors,
// the shard and the key of an id, and the names and bounds that a new keyspace may have.
//
// It never changes a keyspace: the catalog does, and each change makes a new value.
//
// Invariant: in one keyspace no two ids share a key of a shard, whatever its sharding, and
// the mapping never changes.
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
	KindFeed     = "feed"     // what users saw of those that they follow
	KindBoard    = "board"    // notices and dots that are everybody's
)

// The names of the keyspaces that every cluster begins with.
const (
	Posts  = "posts" // its ids are posts
	Users  = "users" // its ids are authors; its column raftfsm.PostsColumn counts their posts
	Unread = "unread"
	Feed   = "feed"
	Board  = "board"
)

const (
	// ShardsDefault is the number of shards of a keyspace that does not say. It is odd,
	// as ids that carry a time often end in zeros: of 4 shards one would have them all.
	ShardsDefault = 7
	// ShardsMax bounds the shards of a keyspace. All of them may be on one node,
	// and 16 to 64 Raft groups are what a node carries well.
	ShardsMax = 64
	// CatalogName is the keyspace name of the catalog's group in a status.
	CatalogName = "meta"
)

// Keyspace describes one named table. A value handed out is never changed:
// AddColumns, DropColumn and SetEverywhere make a new one.
type Keyspace struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Columns []string `json:"columns"` // position is the column's number for ever; "" was dropped, and is not in the JSON
	Shards  int      `json:"shards"`  // fixed when the keyspace is created
	// Dropped are the numbers of the columns that were dropped, ascending.
	Dropped []int `json:"dropped_columns,omitempty"`
	// Sharding is ShardingHash, or "" for ShardingModulo; fixed likewise.
	Sharding string `json:"sharding,omitempty"`
	// Everywhere says that every node holds a replica of each shard, those that are
	// not to vote without a vote.
	Everywhere bool `json:"everywhere,omitempty"`
	// Floors holds the floors of those columns that have one, by name: no increment
	// takes such a count below its floor.
	Floors map[string]int64 `json:"floors,omitempty"`
	// Warning is of CreateKeyspace alone: what its caller should know of the shape that
	// it chose.
	Warning string `json:"warning,omitempty"`

	FloorsByNumber *raftfsm.Floors `json:"-"`
	FirstGroup     uint32          `json:"-"` // groups FirstGroup … FirstGroup+Shards-1 hold its shards
}

// Of returns a keyspace of the catalog.
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

// Same reports whether other is this keyspace, and no other that was made under its name
// after this one was dropped. Either may have columns that the other has not.
func (k *Keyspace) Same(other *Keyspace) bool {
	return other != nil && k.Name == other.Name && k.FirstGroup == other.FirstGroup
}

// MarshalJSON shows the columns that were not dropped.
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
