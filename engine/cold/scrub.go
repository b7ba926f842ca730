package cold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// This file reads what is on disk to find damage before somebody needs the rows: past
// the cache, and counted as nobody's read.

// Numbers returns the generations that are on disk, rising: those that the table
// has, and those that only stored snapshots name.
func (g *Group) Numbers() []uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.mu.stored))
}

// Scrub reads a generation from disk, index and blocks, and verifies its checksums. It
// calls read with the bytes of each block, and stops with that error. A generation that
// is removed meanwhile is not damaged. With ErrDamaged, retained reports whether
// somebody retains the generation: if not, only stored snapshots name it.
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
	done, err := g.store.use()
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
		return x, fmt.Errorf("%w: generation %d of group %d is another than was written", ErrDamaged, number, g.number)
	}
	return x, nil
}

func (g *Group) scrubBlock(key blockKey, sum uint32, dst []byte) ([]byte, error) {
	done, err := g.store.use()
	if err != nil {
		return nil, err
	}
	defer done()
	b, err := g.store.get(key, dst)
	if err == nil && binary.LittleEndian.Uint32(b) != sum {
		err = fmt.Errorf("%w: %v is another than was written", ErrDamaged, key)
	}
	return b, err
}

// unlessGone is the error of reading a generation, nil if that is damaged because it is
// not on disk any more.
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
