package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/countd/countd/engine/golomb"
)

// sealed is rows that are packed, and never change: a hash array without empty
// slots. It is the generation of a coldPart, one that is in memory.
//
// A row stands in the bucket of its mixed id (see geometry), and the rows of a
// bucket in the order of their remainders, which are as good as random, so that
// all gaps between them are of one kind. A lookup decodes half a bucket.
//
//	packed: where each bucket begins, and where the last one ends (2 bytes each,
//	        little-endian, in units of 1 << unit bytes) | the buckets | 8 zeros
//	bucket: row after row, from the highest bit of a byte on; zeros up to a unit
//	row:    the remainder less 1 less that of the row before, of which the upper
//	        bits are said by as many zeros and a one, then the low gapBits of it;
//	        a Golomb code (engine/golomb) for each column that is not 0 everywhere
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

// sealedColumn says how the counts of a column are coded.
type sealedColumn struct {
	number uint8
	k      uint8 // of its Golomb code
	signed bool  // some are below 0, so all are zigzagged
}

// peekBits is how many bits one load has for sure.
const peekBits = 57

// peek returns peekBits or more of packed from a bit on, the first of them highest.
func (s *sealed) peek(at uint) uint64 {
	return binary.BigEndian.Uint64(s.packed[at>>3:]) << (at & 7)
}

// begins returns the bit at which a bucket begins.
func (s *sealed) begins(bucket uint64) uint {
	return uint(binary.LittleEndian.Uint16(s.packed[2*bucket:])) << s.unit << 3
}

// place returns where a row of id, which the window covers, stands.
func (s *sealed) place(id uint64) place { return s.geometry.place(id, s.buckets) }

// prefetchStart asks for where the bucket of p begins, prefetchRows, once that is
// there, for the bucket.
func (s *sealed) prefetchStart(p place) {
	start := unsafe.Pointer(&s.packed[2*p.first])
	prefetch(start, start)
}

func (s *sealed) prefetchRows(p place) {
	at := s.begins(p.first) >> 3
	prefetch(unsafe.Pointer(&s.packed[at]), unsafe.Pointer(&s.packed[min(at+lineWords*8-1, uint(len(s.packed)-1))]))
}

// read fills dst with the first len(dst) counts of id, zeros if it has no row here.
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

// nextRow returns the remainder of the row at a bit, and the bit of its counts, or
// false at the end of the bucket. Before the first row the remainder is 2^64-1.
func (s *sealed) nextRow(remainder uint64, at, end uint) (uint64, uint, bool) {
	w := s.peek(at)
	upper := uint(bits.LeadingZeros64(w))
	if upper >= peekBits || at+upper >= end { // no row, but zeros up to a unit or the next bucket
		return 0, 0, false
	}
	at += upper + 1
	if w <<= upper + 1; upper+1+s.gapBits > peekBits {
		w = s.peek(at)
	}
	return remainder + 1 + uint64(upper)<<s.gapBits + w>>1>>(63-s.gapBits), at + s.gapBits, true
}

// skip returns where the row behind the counts at a bit is.
func (s *sealed) skip(at uint) uint {
	w, left := s.peek(at), uint(peekBits) // bits of w from at on
	for i := range s.columns {
		k := uint(s.columns[i].k)
		n := 2*uint(bits.LeadingZeros64(w)) + 1 + k
		if n > left {
			w, left = s.peek(at), peekBits
			if n = 2*uint(bits.LeadingZeros64(w)) + 1 + k; n > left {
				_, next := s.long(at, s.columns[i].k)
				at, w, left = next, s.peek(next), peekBits
				continue
			}
		}
		w, left, at = w<<n, left-n, at+n
	}
	return at
}

// counts stores the counts at a bit in dst, which is all zero, and returns where the
// next row is.
func (s *sealed) counts(at uint, dst []int64) uint {
	for _, c := range s.columns {
		w := s.peek(at)
		zeros, v := uint(bits.LeadingZeros64(w)), uint64(0)
		if n := 2*zeros + 1 + uint(c.k); n <= peekBits {
			v = w<<zeros>>(63-zeros-uint(c.k)) - 1<<c.k
			at += n
		} else {
			v, at = s.long(at, c.k)
		}
		if int(c.number) < len(dst) {
			if dst[c.number] = int64(v); c.signed {
				dst[c.number] = golomb.Unzigzag(v)
			}
		}
	}
	return at
}

// long reads a value of more bits than one load has.
func (s *sealed) long(at uint, k uint8) (v uint64, next uint) {
	r := golomb.Reader{Buf: s.packed, At: int(at)}
	v = r.TakeValue(uint(k))
	return v, uint(r.At)
}

// Number is Generation's. No snapshot names one that is in memory.
func (s *sealed) Number() uint64 { return 0 }

// Rows is Generation's.
func (s *sealed) Rows() int { return s.rows }

// Width is Generation's.
func (s *sealed) Width() int {
	if len(s.columns) == 0 {
		return 1
	}
	return int(s.columns[len(s.columns)-1].number) + 1
}

// Bytes is Generation's.
func (s *sealed) Bytes() (memory, disk int64) { return int64(s.bytes()), 0 }

func (s *sealed) bytes() int {
	return cap(s.packed) + int(unsafe.Sizeof(*s)) + cap(s.columns)*int(unsafe.Sizeof(sealedColumn{}))
}

// Get is Generation's.
func (s *sealed) Get(_ context.Context, id uint64, row []int64) error { return s.GetNow(id, row) }

// GetNow is Generation's.
func (s *sealed) GetNow(id uint64, row []int64) error {
	s.read(id, row)
	return nil
}

// Load is Generation's.
func (s *sealed) Load(first, last uint64, p *Page) error {
	type found struct {
		id uint64
		at uint // of its counts
	}
	rows, divisor := make([]found, 0, s.rows), s.divisor()
	for bucket := range s.buckets {
		at, end := s.begins(bucket), s.begins(bucket+1)
		for remainder, more := ^uint64(0), false; ; at = s.skip(at) {
			if remainder, at, more = s.nextRow(remainder, at, end); !more {
				break
			}
			id := s.idAt(bucket, remainder<<tagShift|tagUsed, s.buckets, divisor)
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

// check verifies that every row is found, and in one place.
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

// Retain and Release are Generation's: the collector knows who needs it.
func (s *sealed) Retain()  {}
func (s *sealed) Release() {}
