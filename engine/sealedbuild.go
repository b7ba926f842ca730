package engine

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/countd/countd/engine/golomb"
)

// bucketRows is how many rows a bucket of sealed rows has on average. More save part
// of the 2 bytes for where it begins, fewer have a lookup decode less.
const bucketRows = 8

// mixedRow is a row on its way into its bucket.
type mixedRow struct {
	bucket    uint32
	row       int32 // its number in the page
	remainder uint64
}

// sealRows returns the rows of a page packed. They are in ascending order of ids, none
// is all zero, and they are sealRowsMin at least.
func sealRows(p *Page) *sealed {
	first, last := p.IDs[0], p.IDs[len(p.IDs)-1]
	buckets := len(p.IDs) / bucketRows
	s := &sealed{
		geometry: geometryOf(bits.Len64(last-first), buckets, first, 0),
		buckets:  uint64(buckets), rows: len(p.IDs), maxID: last,
	}
	mixed := make([]mixedRow, len(p.IDs))
	for i, id := range p.IDs {
		at := s.place(id)
		mixed[i] = mixedRow{uint32(at.first), int32(i), at.tag >> tagShift}
	}
	slices.SortFunc(mixed, func(a, b mixedRow) int {
		if a.bucket != b.bucket {
			return cmp.Compare(a.bucket, b.bucket)
		}
		return cmp.Compare(a.remainder, b.remainder)
	})
	s.chooseCodes(p)
	for !s.pack(p, mixed) {
		s.unit++
	}
	return s
}

// chooseCodes chooses how gaps and counts are coded.
func (s *sealed) chooseCodes(p *Page) {
	// Gaps are distributed geometrically, for which the number of low bits that is
	// best follows from their mean (Gallager and van Voorhis, 1975): about the
	// logarithm of 0.69 of it.
	mean := uint64(1) << (64 - s.truncated) / bucketRows
	s.gapBits = uint(max(1, bits.Len64(mean-mean/3)) - 1)
	for c := range p.Width {
		if code, used := columnOf(p, c); used {
			s.columns = append(s.columns, code)
		}
	}
	s.columns = slices.Clip(s.columns)
}

// columnOf returns how a column is coded, and false for one that is 0 in each row.
func columnOf(p *Page, column int) (code sealedColumn, used bool) {
	var sizes, zigzagged [65]int
	for i := range p.IDs {
		v := p.Counts[i*p.Width+column]
		used, code.signed = used || v != 0, code.signed || v < 0
		sizes[bits.Len64(uint64(v))]++
		zigzagged[bits.Len64(golomb.Zigzag(v))]++
	}
	code.number = uint8(column)
	if code.signed {
		// A k of 1 keeps the one value without a code, 2^64-1 for k = 0, away.
		code.k = uint8(max(golomb.K(&zigzagged), 1))
	} else {
		code.k = uint8(golomb.K(&sizes))
	}
	return code, used
}

// pack stores the rows, or returns false if the unit is too small.
func (s *sealed) pack(p *Page, mixed []mixedRow) bool {
	head := 2 * (int(s.buckets) + 1)
	w := golomb.Writer{Buf: make([]byte, head, head+len(mixed)*8)}
	for bucket := range s.buckets + 1 {
		for w.Flush(); len(w.Buf)&(1<<s.unit-1) != 0; {
			w.Put(0, 8)
		}
		begins := len(w.Buf) >> s.unit
		if begins > 1<<16-1 {
			return false
		}
		binary.LittleEndian.PutUint16(w.Buf[2*bucket:], uint16(begins))
		for before := ^uint64(0); len(mixed) > 0 && uint64(mixed[0].bucket) == bucket; mixed = mixed[1:] {
			gap := mixed[0].remainder - before - 1
			w.Put(1, uint(gap>>s.gapBits)+1)
			w.Put(gap&(1<<s.gapBits-1), s.gapBits)
			s.packCounts(&w, p.Row(int(mixed[0].row)))
			before = mixed[0].remainder
		}
	}
	w.Put(0, 64)
	s.packed = slices.Grow([]byte(nil), len(w.Buf))
	s.packed = append(s.packed, w.Buf...)
	return true
}

func (s *sealed) packCounts(w *golomb.Writer, row []int64) {
	for _, c := range s.columns {
		if v := row[c.number]; c.signed {
			w.PutValue(golomb.Zigzag(v), uint(c.k))
		} else {
			w.PutValue(uint64(v), uint(c.k))
		}
	}
}
