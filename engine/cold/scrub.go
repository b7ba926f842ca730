package cold

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// This file reads rows on disk to find damage before a reader needs them. It bypasses the cache
// and the statistics of reads.

// Names returns the names of the generations on disk, ascending: those of this group, and those of other groups that
// stored snapshots of this group name. Some may be needed only by a stored snapshot, or only by another group.
func (g *Group) Names() []Name {
	names := slices.AppendSeq(g.names(), maps.Keys(g.Pinned()))
	slices.SortFunc(names, func(a, b Name) int { return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Number, b.Number)) })
	return slices.Compact(names)
}

// names returns the names of the group's own generations on disk.
func (g *Group) names() (names []Name) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for number := range g.mu.stored {
		names = append(names, Name{g.number, number})
	}
	return names
}

// Pinned returns the names of the generations that stored snapshots of this group name.
func (g *Group) Pinned() map[Name]bool {
	pinned := map[Name]bool{}
	for _, of := range append(g.store.others(g.number), g) {
		for _, numbers := range of.pinsOf(g.number) {
			for _, number := range numbers {
				pinned[Name{of.number, number}] = true
			}
		}
	}
	return pinned
}

// Scrub reads the index and the blocks of a generation from disk and verifies their checksums. It
// calls read with the size of each block; if read fails, Scrub stops and returns its error. Scrub
// returns nil for a generation that is removed meanwhile.
func (g *Group) Scrub(n Name, read func(bytes int) error) error {
	of, err := g.of(n.Group)
	if err != nil {
		return err
	}
	return of.scrub(n.Number, read)
}

func (g *Group) scrub(number uint64, read func(bytes int) error) error {
	x, err := g.scrubIndex(number)
	if err != nil {
		return g.unlessGone(number, err)
	}
	var b []byte
	for i := range x.firsts {
		if b, err = g.scrubBlock(blockKey{g.number, number, uint32(i)}, x.sums[i], b[:0]); err != nil {
			return g.unlessGone(number, err)
		}
		if err := read(len(b)); err != nil {
			return err
		}
	}
	return nil
}

func (g *Group) scrubIndex(number uint64) (index, error) {
	done, err := g.store.db.Use()
	if err != nil {
		return index{}, err
	}
	defer done()
	x, err := g.readIndex(number)
	if err != nil {
		return x, fmt.Errorf("generation %d of group %d: %w", number, g.number, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if open := g.mu.open[number]; open != nil && open.sum != x.sum {
		return x, fmt.Errorf("%w: generation %d of group %d differs from what was written", ErrDamaged, number, g.number)
	}
	return x, nil
}

func (g *Group) scrubBlock(key blockKey, sum uint32, dst []byte) ([]byte, error) {
	done, err := g.store.db.Use()
	if err != nil {
		return nil, err
	}
	defer done()
	b, err := g.store.get(key, dst)
	if err == nil && binary.LittleEndian.Uint32(b) != sum {
		err = fmt.Errorf("%w: %v differs from what was written", ErrDamaged, key)
	}
	return b, err
}

// unlessGone returns err, the error of reading a generation, or nil if the generation is no longer
// on disk.
func (g *Group) unlessGone(number uint64, err error) error {
	if !errors.Is(err, ErrDamaged) {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, stored := g.mu.stored[number]; !stored {
		return nil
	}
	g.store.stats.damaged.Add(1)
	return err
}
