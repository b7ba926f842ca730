package raftfsm

// Route maps the ids of a keyspace to shards and to keys in them. Nothing else does.
//
// By modulo, the key of a row is id div shards: the part that all ids of a shard share is not stored.
// By hash, the key is the whole id. Both keep the order of ids within a shard, so a scan merges
// shards, and an age is a range of keys.
//
// Invariant: no two ids share a key of a shard, and the mapping never changes.
type Route struct {
	Shards uint64
	Hash   bool
}

// KeyOf returns the shard of an id, and the key of its row there.
func (r Route) KeyOf(id uint64) (shard int, key uint64) {
	if r.Hash {
		return int(mixID(id) % r.Shards), id
	}
	return int(id % r.Shards), id / r.Shards
}

// IDOf returns the only id whose row has the given key in a shard.
func (r Route) IDOf(shard int, key uint64) uint64 {
	if r.Hash {
		return key
	}
	return key*r.Shards + uint64(shard)
}

// LeastID returns the least id of a shard.
func (r Route) LeastID(shard int) (id uint64) {
	for s, _ := r.KeyOf(id); s != shard; s, _ = r.KeyOf(id) {
		id++ // each shard is equally likely, so this takes about as many steps as there are shards
	}
	return id
}

// PerKey returns how many ids share a key over all shards: the key of every id is id div PerKey.
func (r Route) PerKey() uint64 {
	if r.Hash {
		return 1
	}
	return r.Shards
}

// FirstAbove returns the least key of a shard that may belong to an id above the given one, and
// false if there is none.
func (r Route) FirstAbove(id uint64, shard int) (uint64, bool) {
	if r.Hash {
		return id + 1, id+1 > id
	}
	s, key := r.KeyOf(id)
	if shard <= s {
		key++
	}
	return key, r.IDOf(shard, key) > id // false past 2^64-1
}

// mixID is the finalizer of MurmurHash3: a bijection in which every bit of the id affects every bit of
// the result. It is fixed for ever, because it decides where rows are stored (docs/FORMAT.md).
func mixID(id uint64) uint64 {
	id = (id ^ id>>33) * 0xff51afd7ed558ccd
	id = (id ^ id>>33) * 0xc4ceb9fe1a85ec53
	return id ^ id>>33
}
