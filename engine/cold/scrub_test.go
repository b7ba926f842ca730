package cold

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/internal/scarce"
)

// scrubAll scrubs all generations of a group. It returns the damaged generations, and the number of blocks read.
func scrubAll(t *testing.T, g *Group) (damaged map[Name]bool, blocks int) {
	t.Helper()
	damaged = map[Name]bool{}
	for _, name := range g.Names() {
		err := g.Scrub(name, func(bytes int) error {
			if blocks++; bytes == 0 {
				t.Error("a block without bytes")
			}
			return nil
		})
		if errors.Is(err, ErrDamaged) {
			damaged[name] = true
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return damaged, blocks
}

// Scrub finds damaged blocks and indexes even if nobody else reads them.
func TestScrub(t *testing.T) {
	for name, damage := range map[string]func(s *Store, n *Generation) error{
		"a bit of a block": func(s *Store, n *Generation) error {
			return flipValue(s, n.blockKey(1).encode())
		},
		"a block is missing": func(s *Store, n *Generation) error {
			return s.db.Delete(n.blockKey(1).encode(), pebble.Sync)
		},
		"a block of before": func(s *Store, n *Generation) error {
			value, closer, err := s.db.Get(n.blockKey(2).encode())
			if err != nil {
				return err
			}
			defer closer.Close()
			return s.db.Set(n.blockKey(1).encode(), value, pebble.Sync)
		},
		"a bit of the list": func(s *Store, n *Generation) error {
			return flipValue(s, generationKey(keyGeneration, n.group.number, n.number))
		},
		"the list is missing": func(s *Store, n *Generation) error {
			return s.db.Delete(generationKey(keyGeneration, n.group.number, n.number), pebble.Sync)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, vfs.NewMem())
			defer s.Close()
			g := mustGroup(t, s, 1)
			made := mustWrite(t, g, syntheticRows(3000), syntheticRows(2000))
			if damaged, blocks := scrubAll(t, g); len(damaged) > 0 || blocks != len(made[0].firsts)+len(made[1].firsts) {
				t.Fatalf("before: %d blocks, damaged %v", blocks, damaged)
			}
			if err := damage(s, made[0]); err != nil {
				t.Fatal(err)
			}
			damaged, blocks := scrubAll(t, g)
			if len(damaged) != 1 || !damaged[made[0].Name()] || blocks < len(made[1].firsts) {
				t.Errorf("%d blocks, damaged %v", blocks, damaged)
			}
			if s := s.Stats(); s.Hits+s.Misses > uint64(len(made[0].firsts)+len(made[1].firsts)) || s.Damaged != 1 {
				t.Errorf("%+v", s) // Scrub must not count reads; Write counted one read of each block
			}
		})
	}
}

func flipValue(s *Store, key []byte) error {
	value, closer, err := s.db.Get(key)
	if err != nil {
		return err
	}
	flipped := append([]byte(nil), value...)
	flipped[len(flipped)/2] ^= 4
	return errors.Join(closer.Close(), s.db.Set(key, flipped, pebble.Sync))
}

// Scrub also reads a generation that only a snapshot names. A
// generation or a group that is removed meanwhile does not count as damaged.
func TestScrubBesideRemoval(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	defer s.Close()
	g := mustGroup(t, s, 1)
	made := mustWrite(t, g, syntheticRows(3000), syntheticRows(3000))
	named, gone := made[0], made[1]
	if err := g.Pin("one", []*Generation{named}); err != nil {
		t.Fatal(err)
	}
	named.Release()
	if err := flipValue(s, named.blockKey(1).encode()); err != nil {
		t.Fatal(err)
	}
	if err := g.Scrub(named.Name(), func(int) error { return nil }); !errors.Is(err, ErrDamaged) {
		t.Errorf("only a snapshot names it: %v", err)
	}
	if err := g.Scrub(gone.Name(), func(int) error {
		if gone.needed.Load() > 0 {
			gone.Release()
		}
		return nil
	}); err != nil {
		t.Errorf("it goes meanwhile: %v", err)
	}
	if err := s.Drop(1); err != nil {
		t.Fatal(err)
	}
	if err := g.Scrub(named.Name(), func(int) error { return nil }); err != nil {
		t.Errorf("the group is dropped: %v", err)
	}
	stop := errors.New("stop")
	g = mustGroup(t, s, 2)
	if err := g.Scrub(mustWrite(t, g, syntheticRows(3000))[0].Name(), func(int) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("told to stop: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := g.Scrub(Name{2, 1}, func(int) error { return nil }); !errors.Is(err, scarce.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
