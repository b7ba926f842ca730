package raftfsm

import (
	"errors"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
)

// Partition divides the keys of a shard into the parts of a split. It is an engine.Partition. It
// depends only on the entry that splits the shard, so equal replicas have equal parts.
//
// With sharding by modulo, shard i of n splits into the shards i, i+n, …, whose modulus is k·n. With
// the divisor d, the key of id is id div d. Since d divides n, a key of shard i+p·n leaves the remainder
// (i+p·n) div d when it is divided by k·n/d. With sharding by hash, the part follows from the hash of the id, and a part
// may have any key.
type Partition struct {
	From    codec.Route // route of the shard before the split
	Divisor uint64      // Route.Divisor, which divides the modulus; 0 for sharding by hash
	Parts   uint32      // at least 1; 0 is no Partition
}

var _ engine.Partition = Partition{}

// ErrReplaced is returned by Part if the shard does not have the route before the split, or is closed.
var ErrReplaced = errors.New("the shard has split, or is closed")

// Of implements engine.Partition.
func (p Partition) Of(key uint64) int {
	n, k := uint64(p.From.Modulus), uint64(p.Parts)
	if p.Divisor == 0 {
		return int(wire.MixID(key) % (k * n) / n)
	}
	return int(key / (n / p.Divisor) % k)
}

// Classes implements engine.Partition.
func (p Partition) Classes() []engine.Class {
	classes := make([]engine.Class, p.Parts)
	for part := range classes {
		classes[part] = engine.ClassOf(1, 0)
		if d := p.Divisor; d > 0 {
			n := uint64(p.From.Modulus)
			classes[part] = engine.ClassOf(uint64(p.Parts)*n/d, (uint64(p.From.Residue)+uint64(part)*n)/d)
		}
	}
	return classes
}

// Filters implements engine.Partition.
func (p Partition) Filters() []engine.Filter {
	filters := make([]engine.Filter, p.Parts)
	for part := range filters {
		f := engine.Filter{Modulus: p.Parts * p.From.Modulus, Residue: p.From.Residue + uint32(part)*p.From.Modulus, Hashed: p.Divisor == 0}
		if d := uint32(p.Divisor); d > 0 {
			f.Modulus, f.Residue = f.Modulus/d, f.Residue/d
		}
		filters[part] = f
	}
	return filters
}
