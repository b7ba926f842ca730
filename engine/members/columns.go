package members

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"unsafe"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
)

// A block of Pebble stores its keys, each of keyBytes bytes, as one column:
//
//	varying (4, little-endian) | first key (32) | for each set bit of varying: that byte of every key
//
// Bit i of varying is set if the keys differ in byte i. A byte that all keys share is stored once.
// Each other byte is beside the same byte of the next key, because such neighbours compress best. A
// pair takes a third of the space that it would take in Pebble's own block format.
const columnHeadBytes = 4 + keyBytes

// keySchema returns the schema that makes Pebble store the keys of a block in this form.
func keySchema() *pebble.KeySchema {
	return &pebble.KeySchema{
		Name:         "countd.members",
		ColumnTypes:  []colblk.DataType{colblk.DataTypeBytes},
		NewKeyWriter: func() colblk.KeyWriter { return &keyWriter{} },
		InitKeySeekerMetadata: func(to *colblk.KeySeekerMetadata, block *colblk.DataBlockDecoder) {
			(*keySeeker)(unsafe.Pointer(to)).init(block.BlockDecoder())
		},
		KeySeeker: func(of *colblk.KeySeekerMetadata) colblk.KeySeeker { return (*keySeeker)(unsafe.Pointer(of)) },
	}
}

var _ [colblk.KeySeekerMetadataSize - unsafe.Sizeof(keySeeker{})]byte // compile-time check that a keySeeker fits into Pebble's metadata

// keyWriter encodes the keys of a block.
type keyWriter struct {
	keys    []byte
	varying uint32
	before  uint32 // varying of all keys but the last: Pebble may put the last key into the next block
}

func (w *keyWriter) at(row int) []byte { return w.keys[row*keyBytes : (row+1)*keyBytes] }

// ComparePrev implements colblk.KeyWriter.
func (w *keyWriter) ComparePrev(key []byte) colblk.KeyComparison {
	c := colblk.KeyComparison{PrefixLen: int32(comparer.Split(key)), UserKeyComparison: 1}
	if len(w.keys) == 0 {
		return c
	}
	last := w.keys[len(w.keys)-keyBytes:]
	c.UserKeyComparison = int32(bytes.Compare(key, last))
	shared := min(int(c.PrefixLen), comparer.Split(last))
	for i := 0; i < shared && key[i] == last[i]; i++ {
		c.CommonPrefixLen++
	}
	return c
}

// WriteKey implements colblk.KeyWriter.
func (w *keyWriter) WriteKey(_ int, key []byte, _, _ int32) {
	if len(key) != keyBytes {
		panic(fmt.Sprintf("members: a key of %d bytes", len(key)))
	}
	w.keys = append(w.keys, key...)
	w.before = w.varying
	for i := 0; i < keyBytes; i += 8 {
		w.varying |= nonzero(binary.LittleEndian.Uint64(w.keys[i:])^binary.LittleEndian.Uint64(key[i:])) << i
	}
}

// nonzero returns a bit for each byte of v that is not 0.
func nonzero(v uint64) uint32 {
	const low = 0x7f7f7f7f7f7f7f7f
	v = ((v&low + low) | v) &^ low // the high bit of each byte
	return uint32(v >> 7 * 0x0102040810204080 >> 56)
}

// MaterializeKey implements colblk.KeyWriter.
func (w *keyWriter) MaterializeKey(dst []byte, row int) []byte { return append(dst, w.at(row)...) }

// FinishHeader implements colblk.KeyWriter.
func (w *keyWriter) FinishHeader([]byte) {}

// NumColumns implements colblk.ColumnWriter.
func (w *keyWriter) NumColumns() int { return 1 }

// DataType implements colblk.ColumnWriter.
func (w *keyWriter) DataType(int) colblk.DataType { return colblk.DataTypeBytes }

// Reset implements colblk.ColumnWriter.
func (w *keyWriter) Reset() { w.keys, w.varying, w.before = w.keys[:0], 0, 0 }

// WriteDebug implements colblk.ColumnWriter.
func (w *keyWriter) WriteDebug(to io.Writer, rows int) {
	fmt.Fprintf(to, "%d keys, varying in %032b\n", rows, w.varying)
}

// of returns the value of varying for a block of all keys or, if rows is one less than their
// number, of all keys but the last.
func (w *keyWriter) of(rows int) uint32 {
	if rows*keyBytes < len(w.keys) {
		return w.before
	}
	return w.varying
}

// Size implements colblk.ColumnWriter.
func (w *keyWriter) Size(rows int, offset uint32) uint32 {
	if rows == 0 {
		return offset
	}
	return offset + columnHeadBytes + uint32(bits.OnesCount32(w.of(rows))*rows)
}

// Finish implements colblk.ColumnWriter.
func (w *keyWriter) Finish(_, rows int, offset uint32, to []byte) uint32 {
	if rows == 0 {
		return offset
	}
	varying := w.of(rows)
	binary.LittleEndian.PutUint32(to[offset:], varying)
	copy(to[offset+4:], w.at(0))
	offset += columnHeadBytes
	for ; varying != 0; varying &= varying - 1 {
		i := bits.TrailingZeros32(varying)
		column := to[offset : offset+uint32(rows)]
		for row := range column {
			column[row] = w.keys[row*keyBytes+i]
		}
		offset += uint32(rows)
	}
	return offset
}

// keySeeker finds keys in a block. Pebble stores it in memory that the garbage collector does not
// scan. So columns may point only into the block, which Pebble keeps alive.
type keySeeker struct {
	columns []byte // the bytes that vary, one after the other
	rows    int
	first   [keyBytes]byte
	n       int             // number of bytes that vary
	varying [keyBytes]uint8 // indexes of the bytes that vary, ascending
}

// init reads the column of a block. Pebble treats a panic as a damaged block.
func (s *keySeeker) init(block *colblk.BlockDecoder) {
	*s = keySeeker{rows: block.Rows()}
	if s.rows == 0 {
		return
	}
	// The block begins with the key schema's 4 bytes and Pebble's header of 7 bytes. Then follow
	// the column's type (1) and its offset (4).
	data := block.Data()
	column := data[binary.LittleEndian.Uint32(data[4+7+1:]):]
	copy(s.first[:], column[4:columnHeadBytes])
	for varying := binary.LittleEndian.Uint32(column); varying != 0; varying &= varying - 1 {
		s.varying[s.n] = uint8(bits.TrailingZeros32(varying))
		s.n++
	}
	s.columns = column[columnHeadBytes : columnHeadBytes+s.n*s.rows]
}

// IsLowerBound implements colblk.KeySeeker.
func (s *keySeeker) IsLowerBound(k, _ []byte) bool {
	return s.rows == 0 || bytes.Compare(s.first[:], k) >= 0
}

// SeekGE implements colblk.KeySeeker. Pebble uses the second result only for keys whose suffixes it
// replaces. The keys of this package have no suffixes.
func (s *keySeeker) SeekGE(key []byte, _ int, _ int8) (row int, equalPrefix bool) {
	// differs is the index of the first shared byte that key does not have, or the length of key.
	// To compare a key of the block with key, compare their varying bytes before that index. If
	// these are equal, the result is beyond, because the byte at differs is the same in all keys of
	// the block.
	differs, n := 0, 0
	for ; differs < keyBytes; differs++ {
		if n < s.n && int(s.varying[n]) == differs {
			if differs == len(key) {
				break
			}
			n++
		} else if differs == len(key) || key[differs] != s.first[differs] {
			break
		}
	}
	beyond := bytes.Compare(s.first[differs:], key[differs:]) // key may end there
	if differs == len(key) {
		beyond = 1
		if differs == keyBytes {
			beyond = 0
		}
	}
	low, high := 0, s.rows
	for low < high {
		middle := int(uint(low+high) / 2)
		order := beyond
		for i, at := range s.varying[:n] {
			if b := s.columns[i*s.rows+middle]; b != key[at] {
				order = int(b) - int(key[at])
				break
			}
		}
		if order < 0 {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low, false
}

// MaterializeUserKey implements colblk.KeySeeker.
func (s *keySeeker) MaterializeUserKey(to *colblk.PrefixBytesIter, _, row int) []byte {
	key := to.Buf[:keyBytes]
	copy(key, s.first[:])
	for i, at := range s.varying[:s.n] {
		key[at] = s.columns[i*s.rows+row]
	}
	return key
}

// MaterializeUserKeyWithSyntheticSuffix implements colblk.KeySeeker. Pebble replaces no suffixes
// here.
func (s *keySeeker) MaterializeUserKeyWithSyntheticSuffix(to *colblk.PrefixBytesIter, _ []byte, before, row int) []byte {
	return s.MaterializeUserKey(to, before, row)
}
