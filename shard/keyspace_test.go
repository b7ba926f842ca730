package shard

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/kinds"
)

// For both ways to spread ids and any number of shards:
//
//  1. a shard and a key give their id back, and no other id;
//  2. keys of a shard rise with its ids;
//  3. FirstAbove is the first key past an id;
//  4. id div PerKey is the key.
func TestRoutes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, sharding := range []string{"", ShardingModulo, ShardingHash} {
		for shards := 1; shards <= ShardsMax; shards++ {
			route := raftfsm.NewRoute(shards, shards, sharding == ShardingHash)
			for s := range shards {
				if got, _ := route.KeyOf(route.LeastID(s)); got != s {
					t.Fatalf("the least id of shard %d is of shard %d", s, got)
				}
			}
			for _, id := range []uint64{0, 1, uint64(shards) - 1, uint64(shards), 1 << 63, 1<<64 - 2, 1<<64 - 1, r.Uint64(), r.Uint64() >> r.IntN(64)} {
				shard, key := route.KeyOf(id)
				if shard < 0 || shard >= shards || route.IDOf(shard, key) != id || id/route.Divisor != key {
					t.Fatalf("id %d of %d shards, %s: shard %d key %d", id, shards, sharding, shard, key)
				}
				for s := range shards {
					next, found := route.FirstAbove(id, s)
					switch {
					case found && route.IDOf(s, next) <= id:
						t.Fatalf("above id %d of %d shards, %s: key %d of shard %d, id %d", id, shards, sharding, next, s, route.IDOf(s, next))
					case found && next > 0 && route.IDOf(s, next-1) > id:
						t.Fatalf("above id %d of %d shards, %s: key %d of shard %d, and one before", id, shards, sharding, next, s)
					case !found && id < math.MaxUint64-uint64(shards):
						t.Fatalf("above id %d of %d shards, %s: none in shard %d", id, shards, sharding, s)
					}
				}
			}
		}
	}
}

// Ids that carry a time in milliseconds and end in zeros fill all shards, if the keyspace has the
// default number of shards or spreads its ids by hash.
func TestIDsThatEndInZerosFillAllShards(t *testing.T) {
	const ids = 60_000
	for _, k := range []Keyspace{{Shards: ShardsDefault}, {Shards: 4, Sharding: ShardingHash}, {Shards: 64, Sharding: ShardingHash}} {
		rows := make([]int, k.Shards)
		for i := range uint64(ids) {
			rows[k.ShardOf((500_000_000_000+i)<<22)]++
		}
		for s, n := range rows {
			if n < ids/k.Shards*4/5 || n > ids/k.Shards*5/4 {
				t.Errorf("shard %d of %+v has %d of %d ids", s, k, n, ids)
			}
		}
	}
	for _, k := range kinds.Beginning(nil, ShardsDefault, nil) {
		if k.Name != kinds.KeyspaceBoard && k.Divisor%2 == 0 {
			t.Errorf("keyspace %s has %d shards", k.Name, k.Divisor)
		}
	}
}
