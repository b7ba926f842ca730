package keyspace

import "github.com/countd/countd/raftfsm"

// The ways in which a keyspace spreads its ids over its shards. It is fixed when the keyspace is
// created.
const (
	// ShardingModulo: the shard of an id is id mod shards.
	ShardingModulo = "modulo"
	// ShardingHash: the shard of an id is a hash of the id mod shards; see raftfsm.Route.
	ShardingHash = "hash"
)

// NewRoute returns the route of a keyspace of some shards.
func NewRoute(shards int, sharding string) raftfsm.Route {
	return raftfsm.Route{Shards: uint64(shards), Hash: sharding == ShardingHash}
}

// Route returns the route of the keyspace.
func (k *Keyspace) Route() raftfsm.Route { return NewRoute(k.Shards, k.Sharding) }

// ShardOf returns the shard of an id.
func (k *Keyspace) ShardOf(id uint64) int {
	s, _ := k.Route().KeyOf(id)
	return s
}
