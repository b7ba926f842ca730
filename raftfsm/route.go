package raftfsm

import (
	"slices"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// Route maps the ids of a keyspace to shards and to keys in these shards. Only Route computes this
// mapping.
//
// With sharding by modulo, the key of a row is id div Divisor. The remainder id mod Divisor need
// not be stored, because it is the same for all ids of a shard. With sharding by hash, the key is
// the whole id. In both cases, keys have the order of their ids within a shard. So a scan can merge
// shards, and rows of one age are a range of keys.
//
// A keyspace grows by splitting each of its shards, the parents, into parts. The parents split one
// after the other, so their moduli differ until all have split. The first part of a parent keeps
// the parent's number.
//
// Invariants: No two ids of a shard have the same key. The key of an id never changes. The shard of
// an id changes only when the parent splits.
type Route struct {
	// Divisor is the number of ids with the same key, over all shards. By modulo, it is the number
	// of shards at the creation of the keyspace. By hash, it is 1. The key of every id is id div
	// Divisor.
	Divisor uint64
	Shards  uint64 // number of shards, a multiple of Divisor; includes parts that do not exist yet

	// While the keyspace grows, moduli holds the modulus of each parent: the number of parents
	// before the split of the parent, and Shards after it. Otherwise moduli is nil. The parent of
	// an id is id mod the number of parents.
	moduli *[]uint32
	spread spread
}

// spread is the way in which ids are distributed to the shards. Route has only four fields, so that
// the compiler keeps a Route in registers.
type spread uint8

const (
	direct spread = iota // the shard is id mod Divisor
	grown                // the keyspace has grown or is growing
	hashed               // the shard is computed from a hash of the id
)

// NewRoute returns the route of a keyspace. created is the number of shards at its creation, and
// shards the present number.
func NewRoute(created, shards int, hash bool) Route {
	r := Route{Divisor: uint64(created), Shards: uint64(shards)}
	switch {
	case hash:
		r.Divisor, r.spread = 1, hashed
	case created != shards:
		r.spread = grown
	}
	return r
}

// Growing returns the route of the keyspace while its parents split. moduli holds the modulus of
// each parent.
func (r Route) Growing(moduli []uint32) Route {
	r.moduli, r.spread = &moduli, max(r.spread, grown)
	return r
}

// Parent returns the parent of a shard while the keyspace grows, and otherwise the shard itself.
func (r Route) Parent(shard int) int {
	if r.moduli == nil {
		return shard
	}
	return shard % len(*r.moduli)
}

// Split returns the route after a parent has split. If the keyspace does not grow, the parent has
// split before, or it is not a parent, Split returns r.
func (r Route) Split(parent int) Route {
	if r.moduli == nil || parent >= len(*r.moduli) || (*r.moduli)[parent] == uint32(r.Shards) {
		return r
	}
	moduli := slices.Clone(*r.moduli)
	moduli[parent] = uint32(r.Shards)
	return r.Growing(moduli)
}

// Equal reports whether two routes of one keyspace are the same. A keyspace that begins or ends to grow has another
// route, even if no id moves.
func (r Route) Equal(other Route) bool {
	if r.moduli == nil || other.moduli == nil {
		return r == other
	}
	return r.Divisor == other.Divisor && r.Shards == other.Shards && r.spread == other.spread && slices.Equal(*r.moduli, *other.moduli)
}

// JudgeOf returns the shard that judges the idempotency key of a request. The hash of the key
// and the route determine that shard, whatever the spread of ids.
func (r Route) JudgeOf(id *dedup.RequestID) int {
	modulus := int(r.Shards)
	if r.moduli != nil {
		modulus = int((*r.moduli)[id.Shard(len(*r.moduli))])
	}
	return id.Shard(modulus)
}

// KeyOf returns the shard of an id, and the key of its row there.
func (r Route) KeyOf(id uint64) (shard int, key uint64) {
	if r.spread > direct {
		return r.shardOf(id), id / r.Divisor
	}
	return int(id % r.Divisor), id / r.Divisor
}

// shardOf returns the shard of an id unless spread is direct. It is not inlined, so that the
// compiler can inline KeyOf.
//
//go:noinline
func (r Route) shardOf(id uint64) int {
	if r.spread == hashed {
		id = wire.MixID(id)
	}
	if r.moduli != nil {
		moduli := *r.moduli
		return int(id % uint64(moduli[id%uint64(len(moduli))]))
	}
	return int(id % r.Shards)
}

// Of returns the route of a shard. For a part whose parent has not split yet, it returns the future
// route.
func (r Route) Of(shard int) codec.Route {
	of := codec.Route{Modulus: uint32(r.Shards), Residue: uint32(shard)}
	if r.moduli != nil && shard < len(*r.moduli) {
		of.Modulus = (*r.moduli)[shard]
	}
	return of
}

// Exists reports whether a shard has ids. A part of a parent that has not split yet has none, and reads of all
// shards leave it out.
func (r Route) Exists(shard int) bool {
	parent := r.Parent(shard)
	return parent == shard || uint64(r.Of(parent).Modulus) == r.Shards
}

// IDOf returns the only id whose row has the given key in a shard.
func (r Route) IDOf(shard int, key uint64) uint64 {
	s := uint64(shard)
	if s >= r.Divisor { // true only by hash, or after the keyspace has grown
		s %= r.Divisor
	}
	return key*r.Divisor + s
}

// LeastID returns the least id of a shard. The parent of the shard must have split.
func (r Route) LeastID(shard int) (id uint64) {
	for s, _ := r.KeyOf(id); s != shard; s, _ = r.KeyOf(id) {
		id++ // each shard is equally likely, so this takes about as many steps as there are shards
	}
	return id
}

// FirstAbove returns a key of a shard such that the shard's ids above the given id have this key or
// higher keys, and its other ids have lower keys. If the shard has no id above the given id,
// FirstAbove returns false.
func (r Route) FirstAbove(id uint64, shard int) (uint64, bool) {
	key := id / r.Divisor
	if uint64(shard)%r.Divisor <= id%r.Divisor {
		key++
	}
	return key, r.IDOf(shard, key) > id // false if the id would exceed 2^64-1
}
