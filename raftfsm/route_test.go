package raftfsm

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/internal/wire"
)

// A keyspace grows several times, and its parents split one after the other. After each split:
//
//  1. IDOf returns the id for its shard and key;
//  2. the key of an id is the same as at the creation, and in a shard a higher id has a higher key;
//  3. an id moves to another shard only when its parent splits, and only to a part of this parent;
//  4. the id, or its hash, has the residue and modulus of its shard's route;
//  5. the bound of FirstAbove excludes the id, and includes all higher ids of a shard;
//  6. KeyOf allocates nothing.
func TestRoutesOfAKeyspaceThatGrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		created, hash := rapid.IntRange(1, 9).Draw(t, "created"), rapid.Bool().Draw(t, "hash")
		shards, first := created, NewRoute(created, created, hash)
		ids := rapid.SliceOfN(rapid.OneOf(rapid.Uint64Range(0, 200), rapid.Uint64()), 2, 20).Draw(t, "ids")
		last := make([]int, len(ids))
		for i, id := range ids {
			last[i], _ = first.KeyOf(id)
		}
		check := func(r Route, split int) { // the parent that has just split, or -1
			parents := shards
			if r.moduli != nil {
				parents = len(*r.moduli)
			}
			for i, id := range ids {
				s, key := r.KeyOf(id)
				if _, was := first.KeyOf(id); s < 0 || s >= int(r.Shards) || key != was || key != id/r.Divisor || r.IDOf(s, key) != id {
					t.Fatalf("id %d: shard %d key %d, and at first key %d; back: %d", id, s, key, was, r.IDOf(s, key))
				}
				if s != last[i] && (split < 0 || last[i] != split) || s%parents != last[i]%parents {
					t.Fatalf("id %d went from shard %d to %d when %d split", id, last[i], s, split)
				}
				last[i] = s
				spread := id
				if hash {
					spread = wire.MixID(id)
				}
				if of := r.Of(s); spread%uint64(of.Modulus) != uint64(of.Residue) || int(of.Residue) != s {
					t.Fatalf("id %d is in %s", id, of)
				}
				for _, other := range ids {
					above, key := r.KeyOf(other)
					if next, found := r.FirstAbove(id, above); (other > id) != (found && key >= next) {
						t.Fatalf("id %d of shard %d has key %d; above id %d: %d, %t", other, above, key, id, next, found)
					}
				}
			}
		}
		check(first, -1)
		for range rapid.IntRange(0, 3).Draw(t, "growths") {
			parents := shards
			shards *= rapid.IntRange(2, 4).Draw(t, "factor")
			moduli := slices.Repeat([]uint32{uint32(parents)}, parents)
			grown := NewRoute(created, shards, hash)
			check(grown.Growing(moduli), -1)
			for _, p := range rapid.Permutation(numbersTo(parents)).Draw(t, "order") {
				moduli = slices.Clone(moduli)
				moduli[p] = uint32(shards)
				check(grown.Growing(moduli), p)
				if shard := rapid.IntRange(0, shards-1).Draw(t, "shard"); int(moduli[shard%parents]) == shards {
					if s, _ := grown.Growing(moduli).KeyOf(grown.Growing(moduli).LeastID(shard)); s != shard {
						t.Fatalf("the least id of shard %d is of shard %d", shard, s)
					}
				}
			}
			check(grown, -1)
		}
	})
	for _, r := range []Route{NewRoute(7, 7, false), NewRoute(7, 21, false), NewRoute(7, 21, true).Growing([]uint32{7, 21, 7, 21, 7, 7, 7})} {
		if n := testing.AllocsPerRun(100, func() { sink, _ = r.KeyOf(uint64(sink) + 1<<40) }); n > 0 {
			t.Errorf("KeyOf of %+v allocates %v times", r, n)
		}
	}
}

var sink int

// numbersTo returns the numbers below n.
func numbersTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

var created = 7 // a variable, so that the compiler does not replace the division

func BenchmarkRoute(b *testing.B) {
	r, sum := NewRoute(created, created, false), uint64(0)
	b.Run("KeyOf", func(b *testing.B) {
		for id := uint64(4467107636950632); b.Loop(); id += 1 << 22 {
			s, key := r.KeyOf(id)
			sum += uint64(s) + key
		}
	})
	b.Run("IDOf", func(b *testing.B) {
		for key := uint64(4467107636950632); b.Loop(); key++ {
			sum += r.IDOf(3, key)
		}
	})
}

// wire.MixID must not change, because it determines where rows on disk are stored.
// A shard of a larger growth, which was withdrawn, is no parent of a smaller one.
func TestSplitOfNoParent(t *testing.T) {
	r := NewRoute(2, 4, false).Growing([]uint32{2, 2})
	if got := r.Split(2).Of(0); got != r.Of(0) {
		t.Errorf("shard 0 has the route %s", got)
	}
}

func TestMixIDIsFixed(t *testing.T) {
	for id, want := range map[uint64]uint64{
		0: 0, 1: 0xb456bcfc34c2cb2c, 4467107636950632: 0x4b5be8b5e16aee56, 1<<64 - 1: 0x64b5720b4b825f21,
	} {
		if got := wire.MixID(id); got != want {
			t.Errorf("id %d is mixed to %#x, want %#x", id, got, want)
		}
	}
}

// Equal compares moduli by value, and tells apart routes by which an id has the same shard, but another number of shards.
func TestRoutesAreEqual(t *testing.T) {
	t.Parallel()
	for _, hash := range []bool{false, true} {
		grown, growing := NewRoute(2, 4, hash), NewRoute(2, 4, hash).Growing([]uint32{2, 2})
		all := []Route{NewRoute(2, 2, hash), growing, growing.Split(0), growing.Split(1), growing.Split(0).Split(1), grown, NewRoute(4, 4, hash)}
		if hash {
			all = all[:6] // the divisor of a keyspace by hash is always 1
		}
		for i, a := range all {
			for j, b := range all {
				if got := a.Equal(b); got != (i == j) {
					t.Errorf("hash %v: Equal of routes %d and %d is %v", hash, i, j, got)
				}
			}
		}
		if !growing.Split(0).Split(1).Equal(growing.Split(1).Split(0)) {
			t.Error("the order of splits matters")
		}
	}
}
