package shard

// The ways in which a keyspace spreads its ids over its shards, chosen once, when it is
// created.
const (
	// ShardingModulo: the shard of an id is id mod shards.
	ShardingModulo = "modulo"
	// ShardingHash: the shard of an id is mixID(id) mod shards.
	ShardingHash = "hash"
)

// route maps the ids of one keyspace to shards and to keys in them. Every call that
// needs the shard of an id uses it.
//
// By modulo a row stands under id div shards: what all ids of a shard share is not
// stored. By hash it stands under the whole id. In both, ids in order stay in order
// within a shard, so a scan merges shards and an age is a range of keys.
type route struct {
	shards uint64
	hash   bool
}

func newRoute(shards int, sharding string) route {
	return route{uint64(shards), sharding == ShardingHash}
}

func (r route) keyOf(id uint64) (shard int, key uint64) {
	if r.hash {
		return int(mixID(id) % r.shards), id
	}
	return int(id % r.shards), id / r.shards
}

// idOf returns the id whose row stands under a key of a shard. No other id does.
func (r route) idOf(shard int, key uint64) uint64 {
	if r.hash {
		return key
	}
	return key*r.shards + uint64(shard)
}

// leastID returns the least id of a shard.
func (r route) leastID(shard int) (id uint64) {
	for s, _ := r.keyOf(id); s != shard; s, _ = r.keyOf(id) {
		id++ // some shards times, as all are alike likely
	}
	return id
}

// perKey returns how many ids share a key over all shards: id div perKey is the key of
// every id, in the shard that it has.
func (r route) perKey() uint64 {
	if r.hash {
		return 1
	}
	return r.shards
}

// firstAbove returns the least key of a shard whose id may lie above after, and false
// when there is none.
func (r route) firstAbove(after uint64, shard int) (uint64, bool) {
	if r.hash {
		return after + 1, after+1 > after
	}
	s, key := r.keyOf(after)
	if shard <= s {
		key++
	}
	return key, r.idOf(shard, key) > after // false past 2^64-1
}

// mixID is a bijection of 64 bits in which every bit of the id moves every bit of the
// result: the finalizer of MurmurHash3. It is fixed for ever, as rows lie where it says
// (docs/FORMAT.md).
func mixID(id uint64) uint64 {
	id = (id ^ id>>33) * 0xff51afd7ed558ccd
	id = (id ^ id>>33) * 0xc4ceb9fe1a85ec53
	return id ^ id>>33
}

func (k *Keyspace) route() route { return newRoute(k.Shards, k.Sharding) }

// ShardOf returns the shard of an id.
func (k *Keyspace) ShardOf(id uint64) int {
	s, _ := k.route().keyOf(id)
	return s
}
