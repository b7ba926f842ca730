package engine

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/countd/countd/internal/wire"
)

// bucketRows is the average number of rows in a bucket of sealed rows. With a higher value, the 2
// bytes for a bucket's start cost less per row; with a lower one, a lookup decodes fewer rows.
const bucketRows = 8

// bucketRowsMax bounds the rows of a bucket, because a lookup may have to decode all of them. With
// a random salt, a bucket with more rows is less likely than a flipped bit in memory.
const bucketRowsMax = 6 * bucketRows

// mixedRow is a row of a page and its remainder, which orders the rows of a bucket.
type mixedRow struct {
	remainder uint64
	row       int32 // index of the row in the page
}

// Sealer packs rows. It reuses its memory. The zero value is ready to use.
type Sealer struct {
	ends  []int32    // the end of each bucket in mixed
	mixed []mixedRow // sorted by bucket, then by remainder
	bits  wire.GolombWriter
}

// seal packs the rows of a page. The page must have at least bucketRows rows, and none may be all
// zero. seal tries up to saltsMax salts, and returns nil if each salt puts more than bucketRowsMax
// rows into some bucket.
func (x *Sealer) seal(p *Page, salts *salts) *sealed {
	first, last := p.IDs[0], p.IDs[len(p.IDs)-1]
	buckets := len(p.IDs) / bucketRows
	s := &sealed{buckets: uint64(buckets), rows: len(p.IDs), minID: first, maxID: last}
	for tries := 1; ; tries++ {
		s.geometry = geometryOf(bits.Len64((last-first)/uint64(salts.class.Stride)), buckets, first, salts.class.Stride, salts.next())
		if x.count(s, p.IDs) <= bucketRowsMax {
			break
		}
		if tries == saltsMax {
			return nil
		}
	}
	x.mix(s, p.IDs)
	s.chooseCodes(p)
	for !x.pack(s, p) {
		s.unit++
	}
	return s
}

// count stores the number of rows of each bucket in ends, and returns the largest number.
func (x *Sealer) count(s *sealed, ids []uint64) (most int32) {
	x.ends = append(x.ends[:0], make([]int32, s.buckets)...)
	for _, id := range ids {
		at := &x.ends[s.place(id).first]
		*at++
		most = max(most, *at)
	}
	return most
}

// mix sorts the rows by bucket and remainder. count must have run before.
func (x *Sealer) mix(s *sealed, ids []uint64) {
	end := int32(0)
	for i, n := range x.ends { // set x.ends[i] to the bucket's start; the next loop moves it to the bucket's end
		x.ends[i] = end
		end += n
	}
	x.mixed = append(x.mixed[:0], make([]mixedRow, len(ids))...)
	for i, id := range ids {
		p := s.place(id)
		x.mixed[x.ends[p.first]] = mixedRow{p.tag >> tagShift, int32(i)}
		x.ends[p.first]++
	}
	from := int32(0)
	for _, end := range x.ends {
		slices.SortFunc(x.mixed[from:end], func(a, b mixedRow) int { return cmp.Compare(a.remainder, b.remainder) })
		from = end
	}
}

// chooseCodes chooses the codes of gaps and counts.
func (s *sealed) chooseCodes(p *Page) {
	// Gaps have a geometric distribution. The best number of low bits is about the binary logarithm
	// of 0.69 times their mean (Gallager and van Voorhis, 1975).
	mean := uint64(1) << (64 - s.truncated) / bucketRows
	s.gapBits = uint(max(1, bits.Len64(mean-mean/3)) - 1)
	for c := range p.Width {
		if code, used := columnOf(p, c); used {
			s.columns = append(s.columns, code)
		}
	}
	s.columns = slices.Clip(s.columns)
}

// columnOf returns the code of a column. It returns false if the column is 0 in each row.
func columnOf(p *Page, column int) (code sealedColumn, used bool) {
	var sizes, zigzagged [65]int
	for i := range p.IDs {
		v := p.Counts[i*p.Width+column]
		used, code.signed = used || v != 0, code.signed || v < 0
		sizes[bits.Len64(uint64(v))]++
		zigzagged[bits.Len64(wire.Zigzag(v))]++
	}
	code.number = uint8(column)
	if code.signed {
		// k is at least 1, because 2^64-1 has no code for k = 0.
		code.k = uint8(max(wire.GolombK(&zigzagged), 1))
	} else {
		code.k = uint8(wire.GolombK(&sizes))
	}
	return code, used
}

// pack encodes the rows of mixed. It returns false if the unit is too small for their size.
func (x *Sealer) pack(s *sealed, p *Page) bool {
	w := &x.bits
	w.Buf = append(w.Buf[:0], make([]byte, 2*(s.buckets+1))...)
	from := int32(0)
	for bucket, end := range x.ends {
		if !s.begin(w, bucket) {
			return false
		}
		before := ^uint64(0)
		for _, r := range x.mixed[from:end] {
			gap := r.remainder - before - 1
			w.Put(1, uint(gap>>s.gapBits)+1)
			w.Put(gap&(1<<s.gapBits-1), s.gapBits)
			s.packCounts(w, p.Row(int(r.row)))
			before = r.remainder
		}
		from = end
	}
	if !s.begin(w, len(x.ends)) {
		return false
	}
	w.Put(0, 64)
	s.packed = append(slices.Grow([]byte(nil), len(w.Buf)), w.Buf...)
	return true
}

// begin stores where a bucket begins. It returns false if the unit is too small for that.
func (s *sealed) begin(w *wire.GolombWriter, bucket int) bool {
	for w.Flush(); len(w.Buf)&(1<<s.unit-1) != 0; {
		w.Put(0, 8)
	}
	at := len(w.Buf) >> s.unit
	if at > 1<<16-1 {
		return false
	}
	binary.LittleEndian.PutUint16(w.Buf[2*bucket:], uint16(at))
	return true
}

func (s *sealed) packCounts(w *wire.GolombWriter, row []int64) {
	for _, c := range s.columns {
		if v := row[c.number]; c.signed {
			w.PutValue(wire.Zigzag(v), uint(c.k))
		} else {
			w.PutValue(uint64(v), uint(c.k))
		}
	}
}
