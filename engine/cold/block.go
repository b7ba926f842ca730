package cold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
)

// A block holds rows of ascending ids. Integers are little-endian.
//
//	 0        4         5         6      8          16
//	+--------+---------+---------+------+----------+-------+-----------+--------+
//	| CRC32C | version | columns | rows | first id | codes | directory | bits … |
//	|        | 1       |         |      |          |       |           |        |
//	+--------+---------+---------+------+----------+-------+-----------+--------+
//
//	codes: one byte for the gaps between ids, one a column: the k of its Golomb code, plus 0x80 where
//	            counts are zigzagged; 0xFF for a column that is 0 in each row and has no bits
//	            directory: for each group of 64 rows but the first: its first id minus the block's
//	            (8), the bit at which it begins (2) bits: row after row, from the highest bit of a
//	            byte on: the gap to the previous id, less 1, except in the first row of a group; the
//	            counts
//
// The CRC covers the block's name, which is its key in Pebble, and all bytes after the CRC. So a
// reader refuses a block that is stored under the key of another block.
const (
	blockVersion   = 1
	blockHeadBytes = 16

	// blockBytesMax bounds a block. With the bytes that Pebble adds, such a block fills a page of 4
	// KiB.
	blockBytesMax = 4000
	groupRows     = 64 // a lookup decodes half of them on average
	groupBytes    = 10
	// blockRowsMax bounds the rows of a block, and so those that chooseCodes reads. About 700 rows
	// of real posts fit a block.
	blockRowsMax = 1024

	codeZigzag = 0x80
	codeNone   = 0xFF
)

// ErrDamaged is returned for rows that are missing on disk, or differ from what was written.
var ErrDamaged = errors.New("cold rows are damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeBlock appends one block to dst, with as many rows of p as fit, beginning at p.IDs[from]. It
// also returns the index of the next row, which is not in the block.
func encodeBlock(dst []byte, name []byte, p *engine.Page, from int) (block []byte, next int) {
	start := len(dst)
	c := chooseCodes(p, from, min(len(p.IDs), from+blockRowsMax))
	// The size of the directory is known only after the last row, so the bits have a
	// buffer of their own.
	var w wire.GolombWriter
	var directory []byte
	room := blockBytesMax - blockHeadBytes - len(c)
	next = from
	for next < len(p.IDs) && next-from < blockRowsMax {
		head := 0
		if (next-from)%groupRows == 0 && next > from {
			head = groupBytes
		}
		before := w
		begins := w.Bits()
		c.putRow(&w, p, next, (next-from)%groupRows == 0)
		if len(directory)+head+len(w.Buf)+1 > room && next > from {
			w = before
			break
		}
		if head > 0 {
			directory = binary.LittleEndian.AppendUint64(directory, p.IDs[next]-p.IDs[from])
			directory = binary.LittleEndian.AppendUint16(directory, uint16(begins))
		}
		next++
	}
	w.Flush()
	dst = append(dst, 0, 0, 0, 0, blockVersion, byte(len(c)-1))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(next-from))
	dst = binary.LittleEndian.AppendUint64(dst, p.IDs[from])
	dst = append(append(append(dst, c...), directory...), w.Buf...)
	binary.LittleEndian.PutUint32(dst[start:], namedCRC(name, dst[start+4:]))
	return dst, next
}

// namedCRC returns the CRC of a Pebble key and a body. It includes the key so that a body under the
// wrong key fails the check.
func namedCRC(name, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(name, castagnoli), castagnoli, body)
}

// codes holds one byte for the code of a block's ids, and one for each column.
type codes []byte

// chooseCodes returns the shortest codes for the rows with indexes in [from, to).
func chooseCodes(p *engine.Page, from, to int) codes {
	var gaps [65]int
	for i := from + 1; i < to; i++ {
		gaps[bits.Len64(p.IDs[i]-p.IDs[i-1]-1)]++
	}
	c := make(codes, 1, 1+p.Width)
	c[0] = byte(wire.GolombK(&gaps))
	for column := range p.Width {
		c = append(c, columnCode(p, from, to, column))
	}
	for len(c) > 1 && c[len(c)-1] == codeNone {
		c = c[:len(c)-1]
	}
	return c
}

func columnCode(p *engine.Page, from, to, column int) byte {
	var sizes, zigzagged [65]int
	negative, used := false, false
	for i := from; i < to; i++ {
		v := p.Counts[i*p.Width+column]
		negative, used = negative || v < 0, used || v != 0
		sizes[bits.Len64(uint64(v))]++
		zigzagged[bits.Len64(wire.Zigzag(v))]++
	}
	switch {
	case !used:
		return codeNone
	case negative:
		// k is at least 1, because 2^64-1 has no code for k = 0.
		return byte(max(wire.GolombK(&zigzagged), 1)) | codeZigzag
	}
	return byte(wire.GolombK(&sizes))
}

func (c codes) putRow(w *wire.GolombWriter, p *engine.Page, i int, first bool) {
	if !first {
		w.PutValue(p.IDs[i]-p.IDs[i-1]-1, uint(c[0]))
	}
	for column, code := range c[1:] {
		v := p.Counts[i*p.Width+column]
		switch {
		case code == codeNone:
		case code&codeZigzag != 0:
			w.PutValue(wire.Zigzag(v), uint(code&^codeZigzag))
		default:
			w.PutValue(uint64(v), uint(code))
		}
	}
}

// block is a verified block.
type block struct {
	codes     []byte
	rows      int
	first     uint64
	directory []byte
	bits      []byte
}

// openBlock verifies a block and parses it. The result aliases b.
func openBlock(name, b []byte) (block, error) {
	if len(b) < blockHeadBytes+1 || namedCRC(name, b[4:]) != binary.LittleEndian.Uint32(b) {
		return block{}, fmt.Errorf("%w: a block of %d bytes fails its checksum", ErrDamaged, len(b))
	}
	return takeApart(b)
}

// takeApart is like openBlock, but does not verify the checksum.
func takeApart(b []byte) (block, error) {
	columns, rows := int(b[5]), int(binary.LittleEndian.Uint16(b[6:]))
	head := blockHeadBytes + 1 + columns
	directory := (rows - 1) / groupRows * groupBytes
	if b[4] != blockVersion || columns > engine.ColumnsMax || rows < 1 || rows > blockRowsMax || len(b) < head+directory {
		return block{}, fmt.Errorf("%w: a block of version %d, %d columns, %d rows", ErrDamaged, b[4], columns, rows)
	}
	k := block{
		codes: b[blockHeadBytes:head], rows: rows, first: binary.LittleEndian.Uint64(b[8:]),
		directory: b[head : head+directory], bits: b[head+directory:],
	}
	for i, code := range k.codes {
		if code != codeNone && code&^codeZigzag > 63 || i == 0 && code > 63 {
			return block{}, fmt.Errorf("%w: a block with code %02x", ErrDamaged, code)
		}
	}
	return k, nil
}

// group returns the first id of a group and where its bits begin.
func (k *block) group(g int) (first uint64, at int) {
	if g == 0 {
		return k.first, 0
	}
	d := k.directory[(g-1)*groupBytes:]
	return k.first + binary.LittleEndian.Uint64(d), int(binary.LittleEndian.Uint16(d[8:]))
}

// get fills row with the counts of id, zeros if the block has no such row.
func (k *block) get(id uint64, row []int64) error {
	low, high := 0, (k.rows-1)/groupRows+1 // the group is in [low, high)
	for high-low > 1 {
		middle := (low + high) / 2
		if first, _ := k.group(middle); first <= id {
			low = middle
		} else {
			high = middle
		}
	}
	at, begins := k.group(low)
	r := wire.GolombReader{Buf: k.bits, At: begins}
	for i := low * groupRows; i < k.rows && i < (low+1)*groupRows; i++ {
		if i > low*groupRows {
			at += r.TakeValue(uint(k.codes[0])) + 1
		}
		if at >= id || r.Past {
			break
		}
		k.skipCounts(&r)
	}
	clear(row)
	if at == id {
		k.takeCounts(&r, row)
	}
	if r.Past {
		return fmt.Errorf("%w: a block is truncated", ErrDamaged)
	}
	return nil
}

func (k *block) skipCounts(r *wire.GolombReader) {
	for _, code := range k.codes[1:] {
		if code != codeNone {
			r.TakeValue(uint(code &^ codeZigzag))
		}
	}
}

// takeCounts decodes the counts of a row into row. row may have fewer columns than the block.
func (k *block) takeCounts(r *wire.GolombReader, row []int64) {
	for column, code := range k.codes[1:] {
		v := int64(0)
		switch {
		case code == codeNone:
		case code&codeZigzag != 0:
			v = wire.Unzigzag(r.TakeValue(uint(code &^ codeZigzag)))
		default:
			v = int64(r.TakeValue(uint(code)))
		}
		if column < len(row) {
			row[column] = v
		}
	}
}

// appendTo appends the rows of ids first … last to p.
func (k *block) appendTo(p *engine.Page, first, last uint64) error {
	r := wire.GolombReader{Buf: k.bits}
	id := k.first
	for i := range k.rows {
		if i%groupRows == 0 {
			id, r.At = k.group(i / groupRows)
		} else {
			id += r.TakeValue(uint(k.codes[0])) + 1
		}
		at := len(p.Counts)
		for range p.Width {
			p.Counts = append(p.Counts, 0)
		}
		k.takeCounts(&r, p.Counts[at:])
		switch {
		case r.Past || i > 0 && len(p.IDs) > 0 && id <= p.IDs[len(p.IDs)-1]:
			return fmt.Errorf("%w: row %d of a block", ErrDamaged, i)
		case id < first || id > last:
			p.Counts = p.Counts[:at]
		default:
			p.IDs = append(p.IDs, id)
		}
	}
	return nil
}
