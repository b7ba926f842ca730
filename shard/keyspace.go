package shard

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
)

const (
	// ShardsDefault is the number of shards of a keyspace that sets none: one shard costs least, and a
	// keyspace can grow.
	ShardsDefault = 1
	// ShardsMax bounds the shards of a keyspace. One node may hold all of them, and a node can run
	// 16 to 64 Raft groups well.
	ShardsMax = 64
)

// Keyspace describes a keyspace. A published value never changes: AddColumns, DropColumn and
// ChangeSetting create a new one.
type Keyspace struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Columns []string `json:"columns"` // by number, which never changes; "" for a dropped column, which the JSON omits
	Shards  int      `json:"shards"`  // a growth multiplies it
	// Dropped has the numbers of dropped columns, ascending.
	Dropped []int `json:"dropped_columns,omitempty"`
	// Sharding is ShardingHash, or "" for ShardingModulo. It is fixed when the keyspace is created.
	Sharding string `json:"sharding,omitempty"`
	// Everywhere means that every node holds a replica of each shard. Replicas beyond the wanted
	// voters have no vote.
	Everywhere bool           `json:"everywhere,omitempty"`
	Limits     catalog.Limits `json:"limits,omitzero"`
	column.Settings[int64]
	Growing *catalog.Progress `json:"growing,omitempty"` // nil unless the number of shards is growing now
	// CreatedShards is the number of shards at the creation; 0 unless the keyspace has grown.
	CreatedShards int `json:"created_shards,omitempty"`
	// Warning describes a problem of the chosen number of shards. Only CreateKeyspace sets it.
	Warning string `json:"warning,omitempty"`

	// IDs is IDsText if ids are texts, and "" if they are numbers.
	IDs   string `json:"ids,omitempty"`
	Names string `json:"-"` // the keyspace that gives texts their numbers; "" if ids are numbers

	ByNumber   *raftfsm.Settings `json:"-"` // the settings of columns
	FirstGroup uint32            `json:"-"` // group of shard 0; a later keyspace of the same name has another one
	Groups     []uint32          `json:"-"` // groups of the shards, in order
	Divisor    int               `json:"-"` // number of shards at the creation; 0 means Shards
}

// IDsText is the value of Keyspace.IDs for texts.
const IDsText = "text"

// keyspaceOf converts the catalog's description of a keyspace.
func keyspaceOf(k *catalog.Keyspace) *Keyspace {
	known := &Keyspace{
		Name: k.Name, Kind: k.Kind, Columns: k.Columns, Shards: len(k.Groups), Sharding: k.Sharding, FirstGroup: k.FirstGroup(), Groups: k.Groups, Divisor: k.Divisor,
		Everywhere: k.Everywhere, Limits: k.Limits, Growing: k.Progress(), Settings: k.Settings, ByNumber: raftfsm.SettingsOf(k.Columns, k.Settings),
	}
	if k.Divisor != known.Shards {
		known.CreatedShards = k.Divisor
	}
	if k.Names != "" {
		known.IDs, known.Names = IDsText, k.Names
	}
	for number, name := range k.Columns {
		if name == "" {
			known.Dropped = append(known.Dropped, number)
		}
	}
	return known
}

// ColumnNames returns the columns that were not dropped, in the order of their numbers.
func (k *Keyspace) ColumnNames() []string {
	if len(k.Dropped) == 0 {
		return k.Columns
	}
	return slices.DeleteFunc(slices.Clone(k.Columns), func(c string) bool { return c == "" })
}

// Same reports whether k and other are the same keyspace, and not two successive keyspaces of one
// name. Their columns may differ.
func (k *Keyspace) Same(other *Keyspace) bool {
	return other != nil && k.Name == other.Name && k.FirstGroup == other.FirstGroup
}

// MarshalJSON omits the dropped columns.
func (k *Keyspace) MarshalJSON() ([]byte, error) {
	type plain Keyspace
	shown := plain(*k)
	shown.Columns = k.ColumnNames()
	return json.Marshal(&shown)
}

// Column returns the number of a column by name, or -1.
func (k *Keyspace) Column(name string) int { return k.ColumnOf([]byte(name)) }

// ColumnOf is Column for a name in bytes.
func (k *Keyspace) ColumnOf(name []byte) int {
	for i, c := range k.Columns {
		if string(name) == c && c != "" {
			return i
		}
	}
	return -1
}

// The sharding of a keyspace distributes its ids to its shards. It never changes.
const (
	// With ShardingModulo, the shard of an id is id mod shards.
	ShardingModulo = "modulo"
	// With ShardingHash, the shard of an id is a hash of the id mod shards; see raftfsm.Route.
	ShardingHash = "hash"
)

// Route returns the route of the keyspace.
func (k *Keyspace) Route() raftfsm.Route {
	return raftfsm.NewRoute(cmp.Or(k.Divisor, k.Shards), k.Shards, k.Sharding == ShardingHash)
}

// ShardOf returns the shard of an id.
func (k *Keyspace) ShardOf(id uint64) int {
	s, _ := k.Route().KeyOf(id)
	return s
}
