package backup

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/must"
)

// Two or more growths may overlap with one backup. Shards split in any order, but all shards of a growth split before the next
// growth begins. Whatever the moduli at the moments of the snapshots, the files have each id once.
func TestBackupWhileAKeyspaceGrowsTwice(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	smaller := 0
	for range 2000 {
		growths := []int{2, 6, 12, 36}
		level, moduli := 0, []int{2, 2} // moduli of the parents of the present growth, from growths[level] shards
		step := func() {
			if to := growths[min(level+1, len(growths)-1)]; slices.ContainsFunc(moduli, func(m int) bool { return m != to }) {
				at := rng.IntN(len(moduli))
				moduli[at] = to
			} else if level < len(growths)-2 {
				level++
				moduli = slices.Repeat([]int{growths[level]}, growths[level])
			}
		}
		k, most := Keyspace{Shards: 2}, 0
		for shard := range 2 {
			var err error
			k.Files, err = withParts(shard, 2, k.Files, func(part int) (*File, error) {
				for range rng.IntN(8) {
					step()
				}
				parent := part % len(moduli)
				if moduli[parent] == len(moduli) && part != parent {
					return nil, fmt.Errorf("part %d of %d does not exist yet", part, len(moduli))
				}
				g := File{Shard: part, Modulus: moduli[parent]}
				if g.Modulus < most {
					smaller++
				}
				most = max(most, g.Modulus)
				return &g, nil
			})
			must.Do(t, err)
		}
		if k.settle(); !k.covers() {
			t.Fatalf("%+v", k)
		}
	}
	if smaller == 0 {
		t.Error("no growths overlapped")
	}
	for _, modulus := range []int{3, 5} {
		if files, err := withParts(1, 2, nil, func(part int) (*File, error) { return &File{Shard: part, Modulus: modulus}, nil }); err == nil {
			t.Errorf("modulus %d: %+v", modulus, files)
		}
	}
}

// A manifest whose files have an id twice or never is refused.
func TestFilesCoverEachIDOnce(t *testing.T) {
	type files [][2]int // shard, modulus
	for _, c := range []struct {
		shards int
		files  files
		want   bool
	}{
		{1, files{{0, 0}}, true},
		{2, files{{0, 0}, {1, 0}}, true},
		{2, files{{0, 0}, {1, 6}, {3, 6}, {5, 6}}, true},
		{2, files{{0, 0}, {1, 6}, {3, 6}, {5, 12}, {11, 12}}, true},
		{2, files{{0, 0}}, false},
		{2, files{{0, 0}, {0, 0}}, false},
		{2, files{{0, 0}, {1, 6}, {3, 6}}, false},
		{2, files{{0, 0}, {1, 0}, {3, 6}}, false},
		{2, files{{0, 0}, {1, 6}, {3, 6}, {5, 6}, {2, 6}}, false},
		{2, files{{0, 3}, {1, 3}, {2, 3}}, true},
		{2, files{{0, 0}, {1, 5}, {3, 5}}, false},
		{2, files{{0, 0}, {-1, 0}}, false},
		{2, files{{0, 0}, {1, -2}}, false},
		{0, nil, false},
		{1 << 30, nil, false},
	} {
		k := Keyspace{Shards: c.shards}
		for _, f := range c.files {
			k.Files = append(k.Files, File{Shard: f[0], Modulus: f[1]})
		}
		if got := k.covers(); got != c.want {
			t.Errorf("%d shards, %v: %v", c.shards, c.files, got)
		}
	}
}

// A restore by ids sends each shard only the files that may have its ids.
func TestFilesOfARestoreByIDs(t *testing.T) {
	k := Keyspace{Shards: 6}
	for shard := range 6 {
		k.Files = append(k.Files, File{Shard: shard})
	}
	for _, c := range []struct {
		there client.Keyspace
		shard int
		want  []int
	}{
		{client.Keyspace{Shards: 6}, 4, []int{4}},
		{client.Keyspace{Shards: 12}, 10, []int{4}},
		{client.Keyspace{Shards: 4}, 3, []int{1, 3, 5}},
		{client.Keyspace{Shards: 3}, 2, []int{2, 5}},
		{client.Keyspace{Shards: 7}, 2, []int{0, 1, 2, 3, 4, 5}},
		{client.Keyspace{Shards: 6, Sharding: "hash"}, 4, []int{0, 1, 2, 3, 4, 5}},
	} {
		var got []int
		for _, g := range k.Files {
			if k.Shares(g, c.there, c.shard) {
				got = append(got, g.Shard)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("shard %d of %d: %v, want %v", c.shard, c.there.Shards, got, c.want)
		}
	}
}

// A keyspace that has shards from before and after a growth is created with so many shards that each gets one file.
func TestShardsFromOneFile(t *testing.T) {
	for _, c := range []struct {
		files [][2]int // shard, modulus
		want  int
		merge []int // numbers of shards that merge files
	}{
		{[][2]int{{0, 0}, {1, 0}}, 2, []int{1, 3}},
		{[][2]int{{0, 0}, {1, 6}, {3, 6}, {5, 6}}, 6, []int{1, 2, 3, 4, 9}},
		{[][2]int{{0, 0}, {1, 6}, {3, 6}, {5, 12}, {11, 12}}, 12, []int{1, 2, 6, 18}},
	} {
		k := Keyspace{Shards: 2}
		for _, f := range c.files {
			k.Files = append(k.Files, File{Shard: f[0], Modulus: f[1]})
		}
		if got := k.Parts(); got != c.want || k.Merges(client.Keyspace{Shards: got}) || k.Merges(client.Keyspace{Shards: 2 * got, CreatedShards: got}) {
			t.Errorf("%v: %d shards, want %d", c.files, got, c.want)
		}
		for _, shards := range c.merge {
			if !k.Merges(client.Keyspace{Shards: shards}) {
				t.Errorf("%v into %d shards merge no files", c.files, shards)
			}
		}
		if !k.Merges(client.Keyspace{Shards: c.want, Sharding: "hash"}) {
			t.Errorf("%v by hash merge no files", c.files)
		}
	}
}
