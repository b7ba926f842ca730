package engine

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// Table is one shard's rows. Get, GetMany, Digest and Stats may be called from
// any goroutine at any time and wait for nobody; Apply, Scan and Snapshot take
// turns.
type Table struct {
	dir    atomic.Pointer[directory]
	digest atomic.Uint64
	rows   atomic.Int64

	mu struct {
		sync.Mutex
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
	d.starts = append(d.starts, 0)
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

// Apply applies ops in their order. If width is not 0 it fills rows, width
// counts an op, with each op's row right after it. It appends an Overflow for
// each op that it refused to overflows and returns that; a refused op changes
// nothing. Cells name columns below ColumnsMax; anything else is the caller's
// fault and panics. It does not allocate but for new rows and overflows.
func (t *Table) Apply(ops []Op, width int, rows []int64, overflows []Overflow) []Overflow {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range ops {
		if i%pageRows == 0 && len(ops) > 1 {
			t.prefetchLocked(ops[i:min(len(ops), i+pageRows)])
		}
		var dst []int64
		if width > 0 {
			dst = rows[i*width : (i+1)*width]
		}
		if column, ok := t.applyLocked(&ops[i], dst); !ok {
			overflows = append(overflows, Overflow{Op: i, Column: column})
		}
	}
	return overflows
}

func (t *Table) prefetchLocked(ops []Op) {
	d := t.dir.Load()
	for i := range ops {
		s := d.segs[d.find(ops[i].ID)].Load()
		if s.covers(ops[i].ID) {
			p := s.place(ops[i].ID)
			s.prefetch(p)
		}
	}
}

// applyLocked applies one op and fills dst with its row. It returns the column
// whose sum does not fit, and false, when it refused the op.
func (t *Table) applyLocked(op *Op, dst []int64) (uint8, bool) {
	d := t.dir.Load()
	i := d.find(op.ID)
	s := d.segs[i].Load()
	slot := -1
	if s.covers(op.ID) {
		p := s.place(op.ID)
		slot = s.find(p)
	}
	if slot >= 0 && op.Kind != OpDelete && t.applyWordLocked(d, i, s, slot, op) {
		s = d.segs[i].Load()
		s.load(slot, dst)
		return 0, true
	}

	old, row := t.mu.old[:], t.mu.row[:]
	if slot >= 0 {
		s.load(slot, old)
	} else {
		clear(old)
	}
	copy(row, old)
	if column, ok := op.change(row); !ok {
		copy(dst, old)
		return column, false
	}
	copy(dst, row)
	t.replaceLocked(i, slot, op.ID, old, row)
	return 0, true
}

// change applies the op's cells to row. It returns the column whose sum does
// not fit an int64, and false; row is then half changed.
func (op *Op) change(row []int64) (uint8, bool) {
	if op.Kind == OpDelete {
		clear(row)
		return 0, true
	}
	for _, c := range op.Cells {
		if op.Kind == OpSet {
			row[c.Column] = c.Value
			continue
		}
		sum, ok := addInt64(row[c.Column], c.Value)
		if !ok {
			return c.Column, false
		}
		row[c.Column] = sum
	}
	return 0, true
}

// applyWordLocked applies an op whose row stands, before and after, in one word
// with at most the untouched columns in overflow: nearly all of them. It
// returns false, with nothing changed, when this op is not of that kind.
func (t *Table) applyWordLocked(d *directory, i int, s *segment, slot int, op *Op) bool {
	old := *s.word(slot, 0)
	word, digest := old, uint64(0)
	for _, c := range op.Cells {
		if c.Column >= wordColumns {
			return false
		}
		shift := 16 * c.Column
		was := word >> shift & 0xFFFF
		now := c.Value
		if op.Kind == OpAdd {
			if c.Value > inOverflow || c.Value < -inOverflow {
				return false
			}
			now += int64(was)
		}
		if was == inOverflow || !fits16(now) {
			return false
		}
		word += (uint64(now) - was) << shift
		digest += cellHash(op.ID, c.Column) * (uint64(now) - was)
	}
	if word == 0 {
		return false
	}
	if word != old {
		s = t.ownedLocked(d, i)
		atomic.StoreUint64(s.word(slot, 0), word)
		t.digest.Store(t.digest.Load() + digest)
	}
	return true
}

// replaceLocked makes the row of id, in segment i at slot or absent (-1), equal
// to row.
func (t *Table) replaceLocked(i, slot int, id uint64, old, row []int64) {
	digest, last := uint64(0), -1
	for c, v := range row {
		if v != 0 {
			last = c
		}
		if v != old[c] {
			digest += cellHash(id, uint8(c)) * uint64(v-old[c])
		}
	}
	d := t.dir.Load()
	switch {
	case last < 0 && slot < 0:
		return
	case last < 0:
		t.ownedLocked(d, i).remove(slot)
		t.rows.Add(-1)
	case slot >= 0 && last < d.segs[i].Load().columns():
		t.ownedLocked(d, i).update(slot, row)
	case slot >= 0:
		// The row outgrows its segment's words: give the segment more, first.
		t.reshapeLocked(i, last/wordColumns+1)
		s := d.segs[i].Load()
		p := s.place(id)
		t.replaceLocked(i, s.find(p), id, old, row)
		return
	default:
		t.insertLocked(id, row, last/wordColumns+1)
		t.rows.Add(1)
	}
	t.digest.Store(t.digest.Load() + digest)
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
