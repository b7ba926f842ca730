package cold

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sort"
	"sync/atomic"
	"unsafe"

	"github.com/cockroachdb/pebble/v2"

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

// index is what is known in memory of a generation's blocks. In Pebble it is,
// little-endian:
//
//	version 1 (1) | columns (1) | rows (8) | last id (8) | first id (8) and bytes (2) of each block … | CRC32C (4)
//
// The CRC is of the key and of all before it. sum is of the blocks' own CRCs.
type index struct {
	width  int
	rows   int
	last   uint64
	firsts []uint64 // of each block
	sizes  []uint16
	sum    uint32
}

const (
	indexVersion   = 1
	indexHeadBytes = 18
	indexItemBytes = 10
	indexItemsMax  = 1 << 20 // far more blocks than a segment's rows can fill
)

func (x *index) appendTo(dst, key []byte) []byte {
	dst = append(dst, indexVersion, byte(x.width))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(x.rows))
	dst = binary.LittleEndian.AppendUint64(dst, x.last)
	for i := range x.firsts {
		dst = binary.LittleEndian.AppendUint64(dst, x.firsts[i])
		dst = binary.LittleEndian.AppendUint16(dst, x.sizes[i])
	}
	return binary.LittleEndian.AppendUint32(dst, indexCRC(key, dst))
}

func indexCRC(key, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, body)
}

func parseIndex(key, b []byte) (x index, err error) {
	n := (len(b) - indexHeadBytes - entryCRCBytes) / indexItemBytes
	if n < 1 || n > indexItemsMax || len(b) != indexHeadBytes+n*indexItemBytes+entryCRCBytes || b[0] != indexVersion {
		return x, fmt.Errorf("%w: the index of a generation has %d bytes", ErrDamaged, len(b))
	}
	body := b[:len(b)-entryCRCBytes]
	x.sum = binary.LittleEndian.Uint32(b[len(body):])
	if indexCRC(key, body) != x.sum {
		return x, fmt.Errorf("%w: the index of a generation fails its checksum", ErrDamaged)
	}
	x.width, x.rows, x.last = int(b[1]), int(binary.LittleEndian.Uint64(b[2:])), binary.LittleEndian.Uint64(b[10:])
	x.firsts, x.sizes = make([]uint64, n), make([]uint16, n)
	for i := range n {
		item := body[indexHeadBytes+i*indexItemBytes:]
		x.firsts[i], x.sizes[i] = binary.LittleEndian.Uint64(item), binary.LittleEndian.Uint16(item[8:])
	}
	return x, nil
}

const entryCRCBytes = 4

// find returns the number of the only block that may have id, -1 for none.
func (x *index) find(id uint64) int {
	if id > x.last {
		return -1
	}
	i, found := slices.BinarySearch(x.firsts, id)
	if found {
		return i
	}
	return i - 1
}

// overlapping returns the blocks that may have ids first … last, those from the
// first number up to before the second.
func (x *index) overlapping(first, last uint64) (from, to int) {
	if first > x.last {
		return 0, 0
	}
	from = max(0, x.find(first))
	to = sort.Search(len(x.firsts), func(i int) bool { return x.firsts[i] > last })
	return from, max(from, to)
}

// Number is that of the generation in its group.
func (n *Generation) Number() uint64 { return n.number }

// Rows is how many rows it has.
func (n *Generation) Rows() int { return n.rows }

// Width is how many columns its rows have.
func (n *Generation) Width() int { return n.width }

// Sum tells its contents from those of another with its number.
func (n *Generation) Sum() uint32 { return n.sum }

// Bytes is what it takes in memory and on disk, without what Pebble adds.
func (n *Generation) Bytes() (memory, disk int64) {
	for _, size := range n.sizes {
		disk += int64(size)
	}
	memory = int64(unsafe.Sizeof(*n)) + int64(indexItemBytes*len(n.firsts)) + generationOverhead
	return memory, disk + int64(indexHeadBytes+indexItemBytes*len(n.firsts))
}

// generationOverhead is about what the group's lists take for a generation.
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
	key := n.blockKey(i)
	b, err := read(key)
	if err != nil {
		return err
	}
	k, err := takeApart(b)
	if err != nil {
		return err
	}
	return k.get(id, row)
}

// Load is engine.Generation's. It leaves the cache to those who read rows.
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
	key := n.blockKey(i)
	if b, ok := n.group.store.cache.GetIfPresent(key); ok {
		return b, nil
	}
	return n.group.store.fetch(key)
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

// Write is engine.Cold's. All pages become durable with one sync.
func (g *Group) Write(pages []*engine.Page) ([]engine.Generation, error) {
	made, err := g.write(pages)
	if err != nil {
		return nil, err
	}
	generations := make([]engine.Generation, len(made))
	for i, n := range made {
		generations[i] = n
		if err := n.verify(pages[i]); err != nil {
			for _, n := range made {
				n.Release()
			}
			return nil, err
		}
	}
	return generations, nil
}

// write writes pages; each generation is retained once.
func (g *Group) write(pages []*engine.Page) ([]*Generation, error) {
	done, err := g.store.use()
	if err != nil {
		return nil, err
	}
	defer done()
	batch := g.store.db.NewBatch()
	defer batch.Close()
	made := make([]*Generation, len(pages))
	var block []byte
	for i, p := range pages {
		made[i] = g.newGeneration()
		x := &made[i].index
		x.rows, x.last = len(p.IDs), p.IDs[len(p.IDs)-1]
		for from := 0; from < len(p.IDs); {
			name := made[i].blockKey(len(x.firsts)).encode()
			x.firsts = append(x.firsts, p.IDs[from])
			block, from = encodeBlock(block[:0], name, p, from)
			x.sizes = append(x.sizes, uint16(len(block)))
			x.width = max(x.width, int(block[5]))
			if err := batch.Set(name, block, nil); err != nil {
				return nil, fmt.Errorf("cannot write cold rows: %w", err)
			}
		}
		x.firsts, x.sizes = slices.Clip(x.firsts), slices.Clip(x.sizes)
		key := generationKey(keyGeneration, g.number, made[i].number)
		value := x.appendTo(nil, key)
		x.sum = binary.LittleEndian.Uint32(value[len(value)-entryCRCBytes:])
		if err := batch.Set(key, value, nil); err != nil {
			return nil, fmt.Errorf("cannot write cold rows: %w", err)
		}
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return nil, fmt.Errorf("cannot write cold rows: %w", err)
	}
	g.opened(made)
	return made, nil
}

// verify reads the generation back and holds it to the rows that it was made of.
func (n *Generation) verify(want *engine.Page) error {
	got := engine.Page{Width: want.Width}
	if err := n.Load(0, 1<<64-1, &got); err != nil {
		return fmt.Errorf("cannot read cold rows back: %w", err)
	}
	if !slices.Equal(got.IDs, want.IDs) || !slices.Equal(got.Counts, want.Counts) {
		return fmt.Errorf("%w: they were read back otherwise than they were written", ErrDamaged)
	}
	return nil
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

// Carried returns which blocks have the rows of ids first … last, and the bytes of
// each: what Block gives for the numbers from from on.
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
