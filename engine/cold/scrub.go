package cold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// This file reads rows on disk to find damage before a reader needs them. It bypasses the cache
// and the statistics of reads.

// Numbers returns the numbers of the generations on disk, ascending. The result includes
// generations that only stored snapshots name.
func (g *Group) Numbers() []uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.mu.stored))
}

// Scrub reads the index and the blocks of a generation from disk and verifies their checksums. It
// calls read with the size of each block; if read fails, Scrub stops and returns its error. Scrub
// returns nil for a generation that is removed meanwhile. If the error is ErrDamaged, retained
// reports whether somebody retains the generation. If not, only stored snapshots name it.
func (g *Group) Scrub(number uint64, read func(bytes int) error) (retained bool, err error) {
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
			return false, err
		}
	}
	return false, nil
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
// on disk. For an ErrDamaged, retained reports whether somebody retains the generation.
func (g *Group) unlessGone(number uint64, err error) (retained bool, _ error) {
	if !errors.Is(err, ErrDamaged) {
		return false, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, stored := g.mu.stored[number]; !stored {
		return false, nil
	}
	g.store.stats.damaged.Add(1)
	return g.mu.open[number] != nil, err
}
