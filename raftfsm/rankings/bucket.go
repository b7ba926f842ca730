package rankings

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
)

// bucket is an immutable bucket of time. Its cells have the same form in memory and in a snapshot:
//
//	columns (uvarint) | column …, ascending
//	column:  number (1) | bound (uvarint) | bytes of its cells (uvarint) | cell …, ascending by key
//	cell:    key (8, little-endian) | gained (varint) | doubt (uvarint)
//
// A cell usually takes 10 to 12 bytes, and at most cellBytesMax.
type bucket struct {
	number int64 // start of the bucket, in units of its level since 1970
	packed []byte
}

// Bounds of the bytes of a packed cell. A doubt has at most 57 bits.
const (
	cellBytesMin = 10
	cellBytesMax = 8 + binary.MaxVarintLen64 + 9
)

// pack returns the cells of a summary as a bucket. If no column has a cell or a bound, nothing is
// packed. The cells of each column ascend by key.
func (s *summary) pack(number int64) bucket {
	columns, cells := 0, 0
	for i := range s {
		if s[i].bound > 0 || len(s[i].cells) > 0 {
			columns++
			cells += len(s[i].cells)
		}
	}
	if columns == 0 {
		return bucket{number: number}
	}
	packed := binary.AppendUvarint(make([]byte, 0, (cellBytesMin+2)*cells+64), uint64(columns))
	var ofColumn []byte
	for i := range s {
		if of := &s[i]; of.bound > 0 || len(of.cells) > 0 {
			ofColumn = appendCells(ofColumn[:0], of.cells)
			packed = binary.AppendUvarint(append(packed, byte(i)), of.bound)
			packed = wire.AppendBytes(packed, ofColumn)
		}
	}
	return bucket{number, slices.Clip(packed)}
}

func appendCells(dst []byte, cells []cell) []byte {
	for _, c := range cells {
		dst = binary.LittleEndian.AppendUint64(dst, c.key)
		dst = binary.AppendUvarint(binary.AppendVarint(dst, c.gained), c.doubt)
	}
	return dst
}

// column is one column of a bucket.
type column struct {
	bound uint64
	cells []byte
}

// next removes and returns the first cell. There must be one.
func (c *column) next() (of cell) {
	var n int
	of.key = binary.LittleEndian.Uint64(c.cells)
	c.cells = c.cells[8:]
	of.gained, n = binary.Varint(c.cells)
	c.cells = c.cells[n:]
	of.doubt, n = binary.Uvarint(c.cells)
	c.cells = c.cells[n:]
	return of
}

// parseCell reads a cell that appendCells wrote.
func parseCell(r *wire.Reader) cell { return cell{r.Fixed64(), r.Int(), r.UintTo(doubtMax)} }

// columns calls yield with the columns of the bucket, ascending.
func (b *bucket) columns(yield func(number uint8, c column) bool) {
	r := wire.Reader{Rest: b.packed}
	if len(b.packed) == 0 {
		return
	}
	for range r.Uint() {
		number := r.Byte()
		if !yield(number, column{bound: r.Uint(), cells: r.Bytes()}) {
			return
		}
	}
}

// of returns a column of the bucket.
func (b *bucket) of(number uint8) (found column) {
	for n, c := range b.columns {
		if n == number {
			return c
		}
	}
	return found
}

// parsePacked reads the cells of a packed bucket, which has at most cellsMax cells.
func parsePacked(r *wire.Reader, cellsMax int) (packed []byte) {
	whole := r.Rest
	before := -1
	for range r.CountTo(2, engine.ColumnsMax) {
		number, bound := int(r.Byte()), r.UintTo(doubtMax)
		cells := wire.Reader{Rest: r.Bytes()}
		if r.Err == nil && (number <= before || number >= engine.ColumnsMax || bound == 0 && len(cells.Rest) == 0) {
			r.Fail(fmt.Sprintf("column %d after %d", number, before))
		}
		before = number
		for last, first := uint64(0), true; r.Err == nil && len(cells.Rest) > 0; first = false {
			key := parseCell(&cells).key
			if cellsMax--; cells.Err != nil || cellsMax < 0 || !first && key <= last {
				r.Fail(fmt.Sprintf("cell of key %d", key))
			}
			last = key
		}
	}
	if n := len(whole) - len(r.Rest); r.Err == nil && n > 1 { // a bucket without columns has one byte
		packed = slices.Clone(whole[:n])
	}
	return packed
}
