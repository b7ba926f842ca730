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

// crashing is a parent's group and that of a child, together with the rows of all generations ever written to them, and
// with the generations that snapshots name. Snapshots of the child name generations of both.
type crashing struct {
	r        *rand.Rand
	fs       *vfs.MemFS
	s        *Store
	retained map[uint32][]*Generation // by the group that retains them
	pages    map[Name]*engine.Page    // rows of each generation that was ever made
	sums     map[Name]uint32
	named    map[uint32]map[string][]Name // by group and snapshot
	dropped  bool                         // the parent's group
}

const (
	crashParent = 1
	crashChild  = 2
)

// step writes or releases a generation, takes a snapshot, deletes one, or drops the parent, at random.
func (c *crashing) step(t *testing.T, i int) {
	owner := uint32(crashParent + c.r.IntN(2))
	if c.dropped {
		owner = crashChild
	}
	g := mustGroup(t, c.s, owner)
	switch c.r.IntN(5) {
	case 0:
		p := syntheticRows(1 + c.r.IntN(3000))
		n := mustWrite(t, g, p)[0]
		if c.pages[n.Name()] != nil {
			t.Fatalf("generation %d is there twice", n.Number())
		}
		c.pages[n.Name()], c.sums[n.Name()] = p, n.Sum()
		c.retained[owner] = append(c.retained[owner], n)
		if owner == crashParent && c.r.IntN(2) == 0 { // the child shares it
			n.Retain()
			c.retained[crashChild] = append(c.retained[crashChild], n)
		}
	case 1:
		if all := c.retained[owner]; len(all) > 0 {
			j := c.r.IntN(len(all))
			all[j].Release()
			c.retained[owner] = slices.Delete(all, j, j+1)
		}
	case 2:
		var numbers []Name
		for _, n := range c.retained[owner] {
			numbers = append(numbers, n.Name())
		}
		name := fmt.Sprintf("snapshot-%d", i/2) // both groups may have one of the same name
		if err := g.Pin(name, c.retained[owner]); err != nil {
			t.Fatal(err)
		}
		if len(numbers) > 0 { // a snapshot without generations has no pin
			c.named[owner][name] = numbers
		}
	case 3:
		for name := range c.named[owner] { // delete any one snapshot
			delete(c.named[owner], name)
			break
		}
		if err := g.Sweep(names(slices.Collect(maps.Keys(c.named[owner]))...)); err != nil {
			t.Fatal(err)
		}
	case 4:
		if owner == crashChild || c.r.IntN(6) > 0 {
			return
		}
		for _, n := range c.retained[owner] {
			n.Release()
		}
		c.retained[owner] = nil
		if err := c.s.Drop(owner); err != nil {
			t.Fatal(err)
		}
		clear(c.named[owner])
		c.dropped = true
		for _, n := range c.retained[crashChild] {
			if err := n.verify(c.pages[n.Name()]); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// check opens the store after a crash. The store must have each generation that a snapshot names,
// unchanged. After a sweep of each group whose replica is here, it must have no other generation.
func (c *crashing) check(t *testing.T) {
	s := openStore(t, c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.r.IntN(101), RNG: c.r}))
	defer s.Close()
	owners := []uint32{crashParent, crashChild}
	c.r.Shuffle(2, func(i, j int) { owners[i], owners[j] = owners[j], owners[i] })
	needed := map[Name]struct{}{}
	for _, owner := range owners {
		if owner == crashParent && c.dropped {
			continue
		}
		g := mustGroup(t, s, owner)
		// Before the other group is open, only its pins protect what it needs.
		if err := g.Sweep(names(slices.Collect(maps.Keys(c.named[owner]))...)); err != nil {
			t.Fatal(err)
		}
	}
	for _, owner := range owners {
		for _, numbers := range c.named[owner] {
			for _, name := range numbers {
				needed[name] = struct{}{}
				n, err := mustGroup(t, s, owner).OpenNamed(name, c.sums[name])
				if err != nil {
					t.Fatal(err)
				}
				if err := n.verify(c.pages[name]); err != nil {
					t.Fatal(err)
				}
				n.Release()
			}
		}
	}
	stored := map[Name]struct{}{}
	for _, owner := range owners {
		for _, n := range mustGroup(t, s, owner).names() {
			stored[n] = struct{}{}
		}
	}
	if !maps.Equal(stored, needed) {
		t.Fatalf("on disk are %v, needed %v", stored, needed)
	}
	if n := mustWrite(t, mustGroup(t, s, crashParent), syntheticRows(10))[0]; c.pages[n.Name()] != nil {
		if _, named := needed[n.Name()]; named {
			t.Fatalf("generation %d is made again", n.Number())
		}
	}
}

// The test writes, pins and releases generations, and simulates a crash of the machine after every
// step. Whatever unsynced data survives, each generation that a snapshot names exists, and after a
// sweep no other generation exists. In some runs the parent's replica leaves the node.
func TestCrashes(t *testing.T) {
	for seed := range uint64(6) {
		c := &crashing{
			r: rand.New(rand.NewPCG(seed, 5)), fs: vfs.NewCrashableMem(), retained: map[uint32][]*Generation{},
			pages: map[Name]*engine.Page{}, sums: map[Name]uint32{},
			named: map[uint32]map[string][]Name{crashParent: {}, crashChild: {}},
		}
		c.s = openStore(t, c.fs)
		for i := range 60 {
			c.step(t, i)
			c.check(t)
		}
		if err := c.s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A child's snapshot keeps generations of its parent: beside sweeps of the parent, after the parent's replica has left the
// node and after a restart without it. They go with the child's snapshots and table, or with its replica.
func TestPinsOfOtherGroups(t *testing.T) {
	for name, leaves := range map[string]func(t *testing.T, s *Store){
		"the snapshot goes": func(t *testing.T, s *Store) {
			if err := mustGroup(t, s, 2).Sweep(names()); err != nil {
				t.Fatal(err)
			}
		},
		"the replica goes": func(t *testing.T, s *Store) {
			if err := s.Drop(2); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			s := openStore(t, fs)
			parent, child := mustGroup(t, s, 1), mustGroup(t, s, 2)
			made := mustWrite(t, parent, syntheticRows(100), syntheticRows(200), syntheticRows(300))
			own := mustWrite(t, child, syntheticRows(50))
			pinned, retained, neither := made[0], made[1], made[2]
			retained.Retain()
			if err := parent.Pin("snap", made); err != nil {
				t.Fatal(err)
			}
			if err := child.Pin("snap", []*Generation{own[0], pinned}); err != nil {
				t.Fatal(err)
			}
			for _, n := range made {
				n.Release()
			}
			there := func(n *Generation) bool {
				again, err := mustGroup(t, s, 2).OpenNamed(n.Name(), n.Sum())
				if err != nil {
					return false
				}
				again.Release()
				return true
			}
			expect := func(when string, want ...bool) {
				t.Helper()
				if got := []bool{there(pinned), there(retained), there(neither)}; !slices.Equal(got, want) {
					t.Errorf("%s: %v, want %v", when, got, want)
				}
			}
			expect("pinned", true, true, true)
			if err := parent.Sweep(names()); err != nil {
				t.Fatal(err)
			}
			expect("the parent's snapshot is gone", true, true, false)
			if err := s.Drop(1); err != nil {
				t.Fatal(err)
			}
			expect("the parent left", true, true, false)
			if again := mustWrite(t, mustGroup(t, s, 1), syntheticRows(10))[0]; again.Number() <= neither.Number() {
				t.Errorf("number %d after %d", again.Number(), neither.Number())
			} else {
				again.Release()
			}
			retained.Release()
			expect("the child's table let go", true, false, false)
			if n := len(mustGroup(t, s, 2).Names()); n != 2 {
				t.Errorf("the child scrubs %d generations", n)
			}
			if !mustGroup(t, s, 2).Pinned()[pinned.Name()] || mustGroup(t, s, 1).Pinned()[pinned.Name()] {
				t.Error("the pin has another owner")
			}
			release := mustGroup(t, s, 2).Hold()
			if err := mustGroup(t, s, 2).Sweep(names()); err != nil {
				t.Fatal(err)
			}
			expect("held", true, false, false)
			release()
			own[0].Release()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openStore(t, fs)
			defer s.Close()
			leaves(t, s) // nobody has opened the parent's group
			expect("the child let go", false, false, false)
			count := 0
			for _, kind := range []byte{keyOthersPin, keyBlock, keyGeneration} {
				if err := mustGroup(t, s, 1).each(kind, func(_, _ []byte) error { count++; return nil }); err != nil || count > 0 {
					t.Errorf("%d keys of the parent are left, %v", count, err)
				}
			}
		})
	}
}
