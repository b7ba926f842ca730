package cold

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/countd/countd/engine"
)

// Generation is a set of rows in blocks, in ascending id order. See engine.Generation.
type Generation struct {
	group  *Group
	number uint64
	needed atomic.Int64 // references: calls of Retain minus calls of Release
	index
}

var _ engine.Generation = (*Generation)(nil)

// Name returns the name of the generation.
func (n *Generation) Name() Name { return Name{n.group.number, n.number} }

// Number returns the generation's number in its group.
func (n *Generation) Number() uint64 { return n.number }

// Rows returns the number of rows.
func (n *Generation) Rows() int { return n.rows }

// Width returns the number of columns.
func (n *Generation) Width() int { return n.width }

// Sum returns a checksum of the contents. Another generation with the same number has another sum.
func (n *Generation) Sum() uint32 { return n.sum }

// Bytes returns the bytes in memory and on disk, without Pebble's overhead.
func (n *Generation) Bytes() (memory, disk int64) {
	for _, size := range n.sizes {
		disk += int64(size)
	}
	memory = int64(unsafe.Sizeof(*n)) + int64(indexItemBytes*len(n.firsts)) + generationOverhead
	return memory, disk + int64(indexHeadBytes+indexItemBytes*len(n.firsts))
}

// generationOverhead is about the size of the group's map entries for a generation.
const generationOverhead = 100

// Get implements engine.Generation.
func (n *Generation) Get(ctx context.Context, id uint64, row []int64) error {
	return n.get(id, row, func(key blockKey) ([]byte, error) { return n.group.store.read(ctx, key) })
}

// GetNow implements engine.Generation.
func (n *Generation) GetNow(id uint64, row []int64) error {
	return n.get(id, row, n.group.store.readNow)
}

func (n *Generation) get(id uint64, row []int64, read func(blockKey) ([]byte, error)) error {
	i := n.find(id)
	if i < 0 {
		clear(row)
		return nil
	}
	b, err := n.own(i, read)
	if err != nil {
		return err
	}
	k, err := takeApart(b)
	if err != nil {
		return err
	}
	return k.get(id, row)
}

// own reads block i with the function read, and refuses even a valid block if it is of another
// generation.
func (n *Generation) own(i int, read func(blockKey) ([]byte, error)) ([]byte, error) {
	key := n.blockKey(i)
	b, err := read(key)
	if err == nil && binary.LittleEndian.Uint32(b) != n.sums[i] {
		err = fmt.Errorf("%w: %v differs from what was written", ErrDamaged, key)
	}
	if errors.Is(err, ErrDamaged) && n.needed.Load() > 0 { // a removed generation is not damaged
		n.group.store.stats.damaged.Add(1)
	}
	return b, err
}

// Load implements engine.Generation. It does not fill the cache, which is for single
// rows.
func (n *Generation) Load(first, last uint64, p *engine.Page) error {
	from, to := n.overlapping(first, last)
	for i := from; i < to; i++ {
		b, err := n.Block(i)
		if err != nil {
			return err
		}
		k, err := takeApart(b)
		if err != nil {
			return err
		}
		if err := k.appendTo(p, first, last); err != nil {
			return err
		}
	}
	return nil
}

// Block returns a verified block as it is on disk. The caller must not change it.
func (n *Generation) Block(i int) ([]byte, error) {
	return n.own(i, n.group.store.readOnce)
}

func (n *Generation) blockKey(i int) blockKey {
	return blockKey{n.group.number, n.number, uint32(i)}
}

// Retain implements engine.Generation.
func (n *Generation) Retain() { n.needed.Add(1) }

// Release implements engine.Generation.
func (n *Generation) Release() {
	if n.needed.Add(-1) == 0 {
		n.group.unneeded(n)
	}
}

// DecodeBlock appends the rows with ids first … last of block i of a generation to p. The
// block may come from another node.
func DecodeBlock(of Name, i int, b []byte, first, last uint64, p *engine.Page) error {
	k, err := openBlock(blockKey{of.Group, of.Number, uint32(i)}.encode(), b)
	if err != nil {
		return err
	}
	return k.appendTo(p, first, last)
}

// Carried returns the number of the first block that may have ids first … last, and the
// sizes of all such blocks. Their numbers are consecutive.
func (n *Generation) Carried(first, last uint64) (from int, sizes []uint16) {
	from, to := n.overlapping(first, last)
	return from, n.sizes[from:to]
}

// BlockWidth returns how many columns a block has, without verifying it.
func BlockWidth(b []byte) int {
	if len(b) < blockHeadBytes {
		return 0
	}
	return min(int(b[5]), engine.ColumnsMax)
}
