package cold

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/countd/countd/engine"
)

// index is the part of a generation that stays in memory: the first id, size and checksum of each
// block. In Pebble it has this form, with little-endian integers:
//
//	version 1 (1) | columns (1) | rows (8) | last id (8) | first id (8), bytes (2) and CRC32C (4) of each block … | CRC32C (4)
//
// The last CRC covers the key and all bytes before it, including the rows.
type index struct {
	width  int
	rows   int
	last   uint64
	firsts []uint64 // first id of each block
	sizes  []uint16
	sums   []uint32 // each block's CRC
	sum    uint32   // this index's CRC
}

const (
	indexVersion   = 1
	indexHeadBytes = 18
	indexItemBytes = 14
	entryCRCBytes  = 4
	indexItemsMax  = 1 << 20 // far more blocks than the rows of a segment can fill
)

func (x *index) appendTo(dst, key []byte) []byte {
	dst = append(dst, indexVersion, byte(x.width))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(x.rows))
	dst = binary.LittleEndian.AppendUint64(dst, x.last)
	for i := range x.firsts {
		dst = binary.LittleEndian.AppendUint64(dst, x.firsts[i])
		dst = binary.LittleEndian.AppendUint16(dst, x.sizes[i])
		dst = binary.LittleEndian.AppendUint32(dst, x.sums[i])
	}
	return binary.LittleEndian.AppendUint32(dst, namedCRC(key, dst))
}

func parseIndex(key, b []byte) (x index, err error) {
	n := (len(b) - indexHeadBytes - entryCRCBytes) / indexItemBytes
	if n < 1 || len(b) != indexHeadBytes+n*indexItemBytes+entryCRCBytes || b[0] != indexVersion {
		return x, fmt.Errorf("%w: the index of a generation has %d bytes", ErrDamaged, len(b))
	}
	body := b[:len(b)-entryCRCBytes]
	x.sum = binary.LittleEndian.Uint32(b[len(body):])
	if namedCRC(key, body) != x.sum {
		return x, fmt.Errorf("%w: the index of a generation fails its checksum", ErrDamaged)
	}
	rows := binary.LittleEndian.Uint64(b[2:])
	x.width, x.rows, x.last = int(b[1]), int(rows), binary.LittleEndian.Uint64(b[10:])
	if err := checkIndex(n, x.width, rows); err != nil {
		return x, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	x.firsts, x.sizes, x.sums = make([]uint64, n), make([]uint16, n), make([]uint32, n)
	for i := range n {
		item := body[indexHeadBytes+i*indexItemBytes:]
		x.firsts[i] = binary.LittleEndian.Uint64(item)
		x.sizes[i], x.sums[i] = binary.LittleEndian.Uint16(item[8:]), binary.LittleEndian.Uint32(item[10:])
	}
	return x, nil
}

// checkIndex returns an error for an index that parseIndex would refuse. The writer calls
// it too, so that it never stores a generation that the next start cannot open.
func checkIndex(blocks, width int, rows uint64) error {
	if blocks > indexItemsMax || width < 1 || width > engine.ColumnsMax || rows > uint64(blocks)*blockRowsMax {
		return fmt.Errorf("the index of a generation has %d blocks, %d columns and %d rows", blocks, width, rows)
	}
	return nil
}

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

// overlapping returns the range [from, to) of blocks that may have ids first … last.
func (x *index) overlapping(first, last uint64) (from, to int) {
	if first > x.last {
		return 0, 0
	}
	from = max(0, x.find(first))
	return from, max(from, x.find(min(last, x.last))+1)
}
