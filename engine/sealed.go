package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/countd/countd/internal/wire"
)

// sealed is an immutable set of packed rows: a hash array without empty slots. It is the generation
// of a coldPart in memory.
//
// A row is in the bucket of its mixed id (see geometry). The rows of a bucket are ordered by
// remainder, and remainders are practically random, so all gaps have the same distribution. A
// lookup decodes half a bucket on average.
//
//	packed: where each bucket begins, and where the last one ends (2 bytes each, little-endian, in
//	        units of 1 << unit bytes) | the buckets | 8 zero bytes
//	bucket: row after row, from the highest bit of a byte on; zero bits up to a multiple of the unit
//	row:    the gap, which is the remainder minus the previous row's remainder minus 1, as
//	        gap >> gapBits zeros, a one, and the low gapBits bits of the gap; then a Golomb code
//	        (internal/wire) for each column that is not 0 everywhere
type sealed struct {
	geometry
	buckets uint64
	packed  []byte
	columns []sealedColumn
	gapBits uint
	unit    uint8
	rows    int
	minID   uint64
	maxID   uint64
}

// sealedColumn is the code of a column's counts.
type sealedColumn struct {
	number uint8
	k      uint8 // parameter of its Golomb code
	signed bool  // some counts are negative, so all are zigzag-encoded
}

// peekBits is the least number of valid bits in a result of peek.
const peekBits = 57

// peek returns at least peekBits bits of packed, starting at the given bit. The first of them is
// the highest bit of the result.
func (s *sealed) peek(bit uint) uint64 {
	return binary.BigEndian.Uint64(s.packed[bit>>3:]) << (bit & 7)
}

// begins returns the bit at which a bucket begins.
func (s *sealed) begins(bucket uint64) uint {
	return uint(binary.LittleEndian.Uint16(s.packed[2*bucket:])) << s.unit << 3
}

// place returns the place of id, which the window must cover.
func (s *sealed) place(id uint64) place { return s.geometry.place(id, s.buckets) }

// prefetchStart prefetches the 2 bytes that store where p's bucket begins. prefetchRows, called
// later, reads them and prefetches the bucket.
func (s *sealed) prefetchStart(p place) {
	start := unsafe.Pointer(&s.packed[2*p.first])
	Prefetch(uintptr(start), uintptr(start))
}

func (s *sealed) prefetchRows(p place) {
	at := s.begins(p.first) >> 3
	Prefetch(uintptr(unsafe.Pointer(&s.packed[at])), uintptr(unsafe.Pointer(&s.packed[min(at+lineWords*8-1, uint(len(s.packed)-1))])))
}

// read fills dst with the first len(dst) counts of id, or with zeros if s has no row of id.
func (s *sealed) read(id uint64, dst []int64) {
	clear(dst)
	if !s.covers(id) {
		return
	}
	p := s.place(id)
	s.prefetchRows(p)
	at, end, want := s.begins(p.first), s.begins(p.first+1), p.tag>>tagShift
	for remainder, more := ^uint64(0), false; ; at = s.skip(at) {
		if remainder, at, more = s.nextRow(remainder, at, end); !more || remainder > want {
			return
		}
		if remainder == want {
			s.counts(at, dst)
			return
		}
	}
}

// nextRow reads the gap of the row that begins at the given bit. remainder is that of the previous
// row, or 2^64-1 before the first row of a bucket. nextRow returns the row's remainder and the bit
// of its counts, or false at the end of the bucket.
func (s *sealed) nextRow(remainder uint64, bit, end uint) (uint64, uint, bool) {
	w := s.peek(bit)
	upper := uint(bits.LeadingZeros64(w))
	if upper >= peekBits || bit+upper >= end { // only padding, or the next bucket
		return 0, 0, false
	}
	bit += upper + 1
	if w <<= upper + 1; upper+1+s.gapBits > peekBits {
		w = s.peek(bit)
	}
	return remainder + 1 + uint64(upper)<<s.gapBits + w>>1>>(63-s.gapBits), bit + s.gapBits, true
}

// skip returns the bit at which the next row begins. bit is where the counts of a row begin.
func (s *sealed) skip(bit uint) uint {
	w, left := s.peek(bit), uint(peekBits) // valid bits of w
	for i := range s.columns {
		k := uint(s.columns[i].k)
		n := 2*uint(bits.LeadingZeros64(w)) + 1 + k
		if n > left {
			w, left = s.peek(bit), peekBits
			if n = 2*uint(bits.LeadingZeros64(w)) + 1 + k; n > left {
				_, next := s.long(bit, s.columns[i].k)
				bit, w, left = next, s.peek(next), peekBits
				continue
			}
		}
		w, left, bit = w<<n, left-n, bit+n
	}
	return bit
}

// counts stores the counts that begin at the given bit in dst, which must be all zero. It returns
// the bit of the next row.
func (s *sealed) counts(bit uint, dst []int64) uint {
	for _, c := range s.columns {
		w := s.peek(bit)
		zeros, v := uint(bits.LeadingZeros64(w)), uint64(0)
		if n := 2*zeros + 1 + uint(c.k); n <= peekBits {
			v = w<<zeros>>(63-zeros-uint(c.k)) - 1<<c.k
			bit += n
		} else {
			v, bit = s.long(bit, c.k)
		}
		if int(c.number) < len(dst) {
			if dst[c.number] = int64(v); c.signed {
				dst[c.number] = wire.Unzigzag(v)
			}
		}
	}
	return bit
}

// long reads a value that has more bits than peek returns.
func (s *sealed) long(bit uint, k uint8) (v uint64, next uint) {
	r := wire.GolombReader{Buf: s.packed, At: int(bit)}
	v = r.TakeValue(uint(k))
	return v, uint(r.At)
}

// Number implements Generation. The number is 0, because no snapshot names a generation in memory.
func (s *sealed) Number() uint64 { return 0 }

// Rows implements Generation.
func (s *sealed) Rows() int { return s.rows }

// Width implements Generation.
func (s *sealed) Width() int {
	if len(s.columns) == 0 {
		return 1
	}
	return int(s.columns[len(s.columns)-1].number) + 1
}

// Bytes implements Generation.
func (s *sealed) Bytes() (memory, disk int64) { return int64(s.bytes()), 0 }

func (s *sealed) bytes() int {
	return cap(s.packed) + int(unsafe.Sizeof(*s)) + cap(s.columns)*int(unsafe.Sizeof(sealedColumn{}))
}

// Get implements Generation.
func (s *sealed) Get(_ context.Context, id uint64, row []int64) error { return s.GetNow(id, row) }

// GetNow implements Generation.
func (s *sealed) GetNow(id uint64, row []int64) error {
	s.read(id, row)
	return nil
}

// Load implements Generation.
func (s *sealed) Load(first, last uint64, p *Page) error {
	type found struct {
		id uint64
		at uint // the bit at which its counts begin
	}
	rows, inv := make([]found, 0, s.rows), s.inverse()
	for bucket := range s.buckets {
		at, end := s.begins(bucket), s.begins(bucket+1)
		for remainder, more := ^uint64(0), false; ; at = s.skip(at) {
			if remainder, at, more = s.nextRow(remainder, at, end); !more {
				break
			}
			id := s.idAt(bucket, remainder<<tagShift|tagUsed, s.buckets, inv)
			if id >= first && id <= last {
				rows = append(rows, found{id, at})
			}
		}
	}
	slices.SortFunc(rows, func(a, b found) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	from := len(p.Counts)
	p.Counts = append(p.Counts, make([]int64, len(rows)*p.Width)...)
	for i, r := range rows {
		p.IDs = append(p.IDs, r.id)
		s.counts(r.at, p.Counts[from+i*p.Width:][:p.Width])
	}
	return nil
}

// check verifies that read finds every row of Load, and that no id has two rows.
func (s *sealed) check() error {
	p := Page{Width: s.Width()}
	if err := s.Load(0, 1<<64-1, &p); err != nil {
		return err
	}
	row := make([]int64, p.Width)
	for i, id := range p.IDs {
		if s.read(id, row); !slices.Equal(row, p.Row(i)) || i > 0 && id <= p.IDs[i-1] || id > s.maxID {
			return fmt.Errorf("sealed row %d of id %d is %v, read %v", i, id, p.Row(i), row)
		}
	}
	if len(p.IDs) != s.rows {
		return fmt.Errorf("%d rows are sealed, %d counted", len(p.IDs), s.rows)
	}
	return nil
}

// Retain and Release implement Generation. They do nothing, because the garbage collector frees
// sealed rows.
func (s *sealed) Retain()  {}
func (s *sealed) Release() {}
