package engine

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// Table is one shard's rows. Get, GetMany, Digest and Stats may be called from
// any goroutine at any time and take no lock: a read of a row that is being moved
// or changed in several words is repeated until the writer has done that. Apply,
// Scan and Snapshot take turns.
type Table struct {
	dir    atomic.Pointer[directory]
	digest atomic.Uint64 // mu.digest as it was when mu was last unlocked
	rows   atomic.Int64

	mu struct {
		sync.Mutex
		digest   uint64
		epoch    uint64   // grows with each snapshot; marks segments made since
		captured []uint64 // epochs of the open snapshots, ascending
		old, row [ColumnsMax]int64
	}
}

// New returns an empty table.
func New() *Table {
	t := &Table{}
	t.mu.epoch = 1
	d := newDirectory(1)
	d.segs[0].Store(newSegment(newGeometry(bucketsMin, false, 0, 0), bucketsMin, 1, t.mu.epoch))
	t.dir.Store(d)
	return t
}

// Get fills dst with the first len(dst) counts of id's row, as they were
// together at one moment during the call. It does not allocate.
func (t *Table) Get(id uint64, dst []int64) {
	d := t.dir.Load()
	s := d.segs[d.find(id)].Load()
	if !s.covers(id) {
		clear(dst)
		return
	}
	s.readAt(s.place(id), dst)
}

// Has reports whether id has a row: a count other than zero.
func (t *Table) Has(id uint64) bool {
	var row [ColumnsMax]int64
	t.Get(id, row[:])
	return row != [ColumnsMax]int64{}
}

// pageRows is how many rows GetMany and Apply have in flight to memory at once:
// above the outstanding misses of today's cores, and small enough for a stack.
const pageRows = 32

// GetMany fills dst, width counts an id, with the rows of ids in their order.
// Each row is whole; rows may be of different moments during the call. The
// cache misses of different rows overlap. It does not allocate.
func (t *Table) GetMany(ids []uint64, width int, dst []int64) {
	var segs [pageRows]*segment
	var places [pageRows]place
	d := t.dir.Load()
	for len(ids) > 0 {
		n := min(len(ids), pageRows)
		for i, id := range ids[:n] {
			s := d.segs[d.find(id)].Load()
			if !s.covers(id) {
				segs[i] = nil
				continue
			}
			segs[i], places[i] = s, s.place(id)
			s.prefetch(places[i])
		}
		for i := range ids[:n] {
			if segs[i] == nil {
				clear(dst[:width])
			} else {
				segs[i].readAt(places[i], dst[:width])
			}
			dst = dst[width:]
		}
		ids = ids[n:]
	}
}

// ownedLocked returns segment i as one that may be changed in place: a copy of
// it if an open snapshot has captured it.
func (t *Table) ownedLocked(d *directory, i int) *segment {
	s := d.segs[i].Load()
	if n := len(t.mu.captured); n > 0 && s.epoch <= t.mu.captured[n-1] {
		s = s.clone(t.mu.epoch)
		d.segs[i].Store(s)
	}
	return s
}

// Digest returns the linear digest of the table: the sum over all counts of
// hash(id, column) × count, mod 2^64. Tables of equal rows have equal digests,
// whatever ops made them.
func (t *Table) Digest() uint64 { return t.digest.Load() }

// cellHash is the digest's weight of one count: the finalizer of splitmix64
// (Steele, Lea and Flood, 2014) over id and column.
func cellHash(id uint64, column uint8) uint64 {
	x := id + (uint64(column)+1)*mixA
	x = (x ^ x>>30) * mixSalt
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Stats is the size of a table.
type Stats struct {
	Rows     uint64
	Segments int
	Bytes    uint64 // memory of segments, their overflow tables and the directory
}

// Stats returns the size of the table. Rows and Bytes may be of moments that a
// write lies between.
func (t *Table) Stats() Stats {
	d := t.dir.Load()
	st := Stats{Rows: uint64(t.rows.Load()), Segments: len(d.segs), Bytes: uint64(unsafe.Sizeof(*t))}
	for i := range d.segs {
		st.Bytes += uint64(d.segs[i].Load().bytes())
	}
	return st
}
