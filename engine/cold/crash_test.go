package cold

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/engine"
)

// crashing is a group, together with the rows of all generations ever written to it, and with the
// generations that snapshots name.
type crashing struct {
	r        *rand.Rand
	fs       *vfs.MemFS
	g        *Group
	retained []*Generation
	pages    map[uint64]*engine.Page // rows of each generation that was ever made
	sums     map[uint64]uint32
	named    map[string][]uint64 // by snapshot
}

// step writes or releases a generation, takes a snapshot, or deletes one, at random.
func (c *crashing) step(t *testing.T, i int) {
	switch c.r.IntN(4) {
	case 0:
		p := syntheticRows(1 + c.r.IntN(3000))
		n := mustWrite(t, c.g, p)[0]
		if c.pages[n.Number()] != nil {
			t.Fatalf("generation %d is there twice", n.Number())
		}
		c.pages[n.Number()], c.sums[n.Number()] = p, n.Sum()
		c.retained = append(c.retained, n)
	case 1:
		if len(c.retained) > 0 {
			j := c.r.IntN(len(c.retained))
			c.retained[j].Release()
			c.retained = slices.Delete(c.retained, j, j+1)
		}
	case 2:
		var numbers []uint64
		for _, n := range c.retained {
			numbers = append(numbers, n.Number())
		}
		name := fmt.Sprintf("snapshot-%d", i)
		if err := c.g.Pin(name, numbers); err != nil {
			t.Fatal(err)
		}
		c.named[name] = numbers
	case 3:
		for name := range c.named { // delete any one snapshot
			delete(c.named, name)
			break
		}
		if err := c.g.Sweep(names(slices.Collect(maps.Keys(c.named))...)); err != nil {
			t.Fatal(err)
		}
	}
}

// check opens the store after a crash. The store must have each generation that a snapshot names,
// unchanged. After a sweep it must have no other generation.
func (c *crashing) check(t *testing.T) {
	s := openStore(t, c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.r.IntN(101), RNG: c.r}))
	defer s.Close()
	g := mustGroup(t, s, 1)
	needed := map[uint64]struct{}{}
	for _, numbers := range c.named {
		for _, number := range numbers {
			needed[number] = struct{}{}
			n, err := g.Open(number, c.sums[number])
			if err != nil {
				t.Fatal(err)
			}
			if err := n.verify(c.pages[number]); err != nil {
				t.Fatal(err)
			}
			n.Release()
		}
	}
	if err := g.Sweep(names(slices.Collect(maps.Keys(c.named))...)); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(g.mu.stored, needed) {
		t.Fatalf("on disk are %v, needed %v", g.mu.stored, needed)
	}
	if n := mustWrite(t, g, syntheticRows(10))[0]; slices.Contains(slices.Collect(maps.Keys(needed)), n.Number()) {
		t.Fatalf("generation %d is made again", n.Number())
	}
}

// The test writes, pins and releases generations, and simulates a crash of the machine after every
// step. Whatever unsynced data survives, each generation that a snapshot names exists, and after a
// sweep no other generation exists.
func TestCrashes(t *testing.T) {
	for seed := range uint64(4) {
		c := &crashing{
			r: rand.New(rand.NewPCG(seed, 5)), fs: vfs.NewCrashableMem(),
			pages: map[uint64]*engine.Page{}, sums: map[uint64]uint32{}, named: map[string][]uint64{},
		}
		s := openStore(t, c.fs)
		c.g = mustGroup(t, s, 1)
		for i := range 50 {
			c.step(t, i)
			c.check(t)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
