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

// Generation is rows of ascending ids in blocks. See engine.Generation.
type Generation struct {
	group  *Group
	number uint64
	needed atomic.Int64 // counts of Retain that were not released
	index
}

var _ engine.Generation = (*Generation)(nil)

// Number is that of the generation in its group.
func (n *Generation) Number() uint64 { return n.number }

// Rows is how many rows it has.
func (n *Generation) Rows() int { return n.rows }

// Width is how many columns its rows have.
func (n *Generation) Width() int { return n.width }

// Sum distinguishes its contents from those of another generation with its number.
func (n *Generation) Sum() uint32 { return n.sum }

// Bytes returns the bytes in memory and on disk, without what Pebble adds.
func (n *Generation) Bytes() (memory, disk int64) {
	for _, size := range n.sizes {
		disk += int64(size)
	}
	memory = int64(unsafe.Sizeof(*n)) + int64(indexItemBytes*len(n.firsts)) + generationOverhead
	return memory, disk + int64(indexHeadBytes+indexItemBytes*len(n.firsts))
}

// generationOverhead is about what the group's lists take per generation.
const generationOverhead = 100

// Get is engine.Generation's.
func (n *Generation) Get(ctx context.Context, id uint64, row []int64) error {
	return n.get(id, row, func(key blockKey) ([]byte, error) { return n.group.store.read(ctx, key) })
}

// GetNow is engine.Generation's.
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

// own reads block i, and refuses a valid block of another generation.
func (n *Generation) own(i int, read func(blockKey) ([]byte, error)) ([]byte, error) {
	key := n.blockKey(i)
	b, err := read(key)
	if err == nil && binary.LittleEndian.Uint32(b) != n.sums[i] {
		err = fmt.Errorf("%w: %v is another than was written", ErrDamaged, key)
	}
	if errors.Is(err, ErrDamaged) && n.needed.Load() > 0 { // else it has gone as it should
		n.group.store.stats.damaged.Add(1)
	}
	return b, err
}

// Load implements engine.Generation. It leaves the cache to readers of rows.
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

// Block returns a block as it is on disk, verified. It is not to be changed.
func (n *Generation) Block(i int) ([]byte, error) {
	return n.own(i, n.group.store.readOnce)
}

func (n *Generation) blockKey(i int) blockKey {
	return blockKey{n.group.number, n.number, uint32(i)}
}

// Retain is engine.Generation's.
func (n *Generation) Retain() { n.needed.Add(1) }

// Release is engine.Generation's.
func (n *Generation) Release() {
	if n.needed.Add(-1) == 0 {
		n.group.unneeded(n)
	}
}

// DecodeBlock appends the rows of ids first … last of a block, number i of a
// generation of a group, to p. The block may have come from another node.
func DecodeBlock(group uint32, generation uint64, i int, b []byte, first, last uint64, p *engine.Page) error {
	k, err := openBlock(blockKey{group, generation, uint32(i)}.encode(), b)
	if err != nil {
		return err
	}
	return k.appendTo(p, first, last)
}

// Carried returns which blocks have the rows of ids first … last, and the size of each.
// Block returns them by the numbers from from on.
func (n *Generation) Carried(first, last uint64) (from int, sizes []uint16) {
	from, to := n.overlapping(first, last)
	return from, n.sizes[from:to]
}

// Group is the number of the generation's group.
func (n *Generation) Group() uint32 { return n.group.number }

// BlockWidth is how many columns a block has that DecodeBlock takes.
func BlockWidth(b []byte) int {
	if len(b) < blockHeadBytes {
		return 0
	}
	return min(int(b[5]), engine.ColumnsMax)
}
