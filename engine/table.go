package engine

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/countd/countd/internal/wire"
)

// Table is one shard's rows. Get, GetMany, Digest and Stats are safe for concurrent use and take no
// lock, unless a Parting has moved rows of the table. If the writer is moving a row or changing several of its words, a read retries until the
// writer is done. Apply, Scan and Snapshot exclude each other. Rows may be on disk (cold):
// freeze.go moves them there, and cold.go reads them.
type Table struct {
	dir    atomic.Pointer[directory]
	digest atomic.Uint64 // mu.digest when mu was last unlocked
	rows   atomic.Int64  // including cold rows

	// coldParts is the number of segments with rows on disk. If it is 0, writes do not search for
	// cold rows. mu guards its changes.
	coldParts atomic.Int64
	// coldMax is an upper bound of the ids of all rows on disk. It never falls. Most writes are to
	// new ids, which are above it and so need no search.
	coldMax atomic.Uint64
	// Apply holds writing from the time it begins to bring cold rows into memory until it has used
	// them, even while it reads the disk. Code that moves rows out of memory holds writing too. It
	// is acquired before mu.
	writing sync.Mutex
	cuts    []Cut // cuts of the last Apply; guarded by writing

	salts salts

	Rises *Rises // guarded by mu

	sealing int // index of the part that Seal checks; only Seal uses it

	// If the table is parted, rows, digest, mu.digest, coldParts and coldMax are those of its own segments.
	mu struct {
		sync.Mutex
		digest   uint64
		epoch    uint64            // incremented by each snapshot; see segment.epoch
		captured []uint64          // epochs of the open snapshots, ascending
		old, row [ColumnsMax]int64 // scratch memory of one op
		// handed has the cold rows of the parts to which the table kept references when Split handed the
		// parts over; nil before that.
		handed []*coldPart
	}
}

// New returns an empty table.
func New() *Table { return NewOf(allIDs) }

// NewOf returns an empty table of a class of ids. Any other id reads as zeros. Apply panics on an op
// on one, unless the op changes nothing because it has no cells.
func NewOf(class Class) *Table { return newTableOf(newSecret(), class) }

// newTableOf is like NewOf, but with a given secret for the salts.
func newTableOf(secret uint64, class Class) *Table {
	t := &Table{}
	t.salts.secret, t.salts.class = secret, class
	t.mu.epoch = 1
	t.Rises = newRises(&t.mu.Mutex)
	var k *keys
	if class.Stride > 1 {
		k = &keys{class: class}
	}
	d := newDirectory(1, k)
	d.segs[0].Store(newSegment(newGeometry(bucketsMin, false, class.Residue, class, t.salts.next()), bucketsMin, 1, t.mu.epoch))
	t.dir.Store(d)
	return t
}

// Get fills dst with the first len(dst) counts of id's row, as of one moment during the call. It
// returns false if the row may be cold; then the caller must call ReadCold. It does not allocate.
func (t *Table) Get(id uint64, dst []int64) bool {
	d := t.dir.Load()
	if d.keys != nil {
		d = d.keys.dirOf(d, id)
	}
	s := d.segs[d.find(id)].Load()
	if s.covers(id) && s.readAt(s.place(id), dst) {
		return true
	}
	return s.cold.read(id, dst)
}

// Has reports whether id has a count other than zero, or may have a cold row.
func (t *Table) Has(id uint64) bool {
	var row [ColumnsMax]int64
	return !t.Get(id, row[:]) || row != [ColumnsMax]int64{}
}

// Widens reports whether an op may need more words per row than the rows of its segment have. Such
// an op takes memory for every row of the segment, even if it adds no row.
func (t *Table) Widens(op *Op) bool {
	d := t.dir.Load()
	if d.keys != nil {
		d = d.keys.dirOf(d, op.ID)
	}
	words := (d.segs[d.find(op.ID)].Load().widest() + wordColumns - 1) / wordColumns
	for i := range op.Cells {
		c := &op.Cells[i]
		if c.Value != 0 && !c.IsBound() && op.Kind != OpTake && int(c.Column) >= words*wordColumns {
			return true
		}
	}
	return false
}

// pageRows is the number of rows that GetMany and Apply prefetch at a time. It is above the number
// of concurrent cache misses of today's cores, and small enough for arrays on the stack.
const pageRows = 32

// GetMany fills dst with the rows of ids in their order, width counts per id. It reads each row as
// it is at one moment, but different rows at different moments. The cache misses of different rows
// overlap. If a row may be cold, GetMany does not fill that row, but appends the index of the row's
// id to cold. It returns cold, and allocates only if cold must grow.
func (t *Table) GetMany(ids []uint64, width int, dst []int64, cold []int) []int {
	var segs [pageRows]*segment
	var places [pageRows]place
	d := t.dir.Load()
	for from := 0; from < len(ids); from += pageRows {
		page, anySealed := ids[from:min(len(ids), from+pageRows)], false
		for i, id := range page {
			d := d
			if d.keys != nil {
				d = d.keys.dirOf(d, id)
			}
			s := d.segs[d.find(id)].Load()
			segs[i] = s
			if s.covers(id) {
				places[i] = s.place(id)
				s.prefetch(places[i])
			}
			if packed := s.cold.sealed(); packed != nil && packed.covers(id) {
				packed.prefetchStart(packed.place(id))
				anySealed = true
			}
		}
		if anySealed {
			prefetchSealed(segs[:len(page)], page)
		}
		for i, id := range page {
			s, row := segs[i], dst[:width]
			if !(s.covers(id) && s.readAt(places[i], row)) && !s.cold.read(id, row) {
				cold = append(cold, from+i)
			}
			dst = dst[width:]
		}
	}
	return cold
}

// prefetchSealed prefetches the sealed rows of ids. segs are their segments.
func prefetchSealed(segs []*segment, ids []uint64) {
	for i, id := range ids {
		if packed := segs[i].cold.sealed(); packed != nil && packed.covers(id) {
			packed.prefetchRows(packed.place(id))
		}
	}
}

// ownedLocked returns segment i so that the writer may change it in place. If an open snapshot has
// captured the segment, or if it is watched, ownedLocked first replaces it by a copy.
func (t *Table) ownedLocked(d *directory, i int) *segment {
	s := d.segs[i].Load()
	if n := len(t.mu.captured); s.watched != 0 || n > 0 && s.epoch <= t.mu.captured[n-1] {
		s = s.clone(t.mu.epoch)
		d.segs[i].Store(s)
	}
	return s
}

// unlock publishes the digest and unlocks mu.
func (t *Table) unlock() {
	t.digest.Store(t.mu.digest)
	t.mu.Unlock()
}

// spot is the position of an id's row or, if there is no such row, the position that a new row
// would get. The spot of an id that the table cannot have is in nowhere.
type spot struct {
	d *directory
	i int
	s *segment // d.segs[i]
	p place    // valid only if s covers the id
}

func (t *Table) locate(id uint64) spot {
	d := t.dir.Load()
	if d.keys != nil && !d.keys.class.Has(id) {
		d = nowhere
	}
	i := d.find(id)
	s := d.segs[i].Load()
	return spot{d: d, i: i, s: s, p: s.place(id)}
}

// standsIn reports whether the spot is still valid. d is the table's present directory.
func (at *spot) standsIn(d *directory) bool { return at.d == d && d.segs[at.i].Load() == at.s }

// MayBeCold quickly reports whether the row of id may be cold, without searching for it.
func (t *Table) MayBeCold(id uint64) bool {
	if p := t.dir.Load().parted(); p != nil && p.has(id) {
		return p.tableOf(id).MayBeCold(id)
	}
	return t.coldParts.Load() > 0 && id <= t.coldMax.Load()
}

// addColdLocked updates coldMax and coldParts for a new part on disk. last is the part's last id.
func (t *Table) addColdLocked(last uint64) {
	t.coldMax.Store(max(last, t.coldMax.Load()))
	t.coldParts.Add(1)
}

// Digest returns the linear digest of the table: the sum over all counts of
// hash(id, column) × count, mod 2^64. Tables of equal rows have equal digests,
// whatever ops made them.
func (t *Table) Digest() uint64 {
	digest := t.digest.Load()
	p := t.dir.Load().parted()
	if p == nil { // so no row was in a part when digest was loaded
		return digest
	}
	t.mu.Lock() // rows are moved to the parts under mu
	defer t.mu.Unlock()
	digest = t.mu.digest
	for _, table := range p.tables {
		digest += table.digest.Load()
	}
	return digest
}

// cellHash returns the factor of a count in the digest: the finalizer of splitmix64 (Steele, Lea
// and Flood, 2014) of id and column.
func cellHash(id uint64, column uint8) uint64 {
	return wire.Mix(id + (uint64(column)+1)*mixA)
}

// RowDigest returns what a row adds to the digest of its table. row must have all columns with
// counts, from column 0 on.
func RowDigest(id uint64, row []int64) (digest uint64) {
	for c, v := range row {
		if v != 0 {
			digest += cellHash(id, uint8(c)) * uint64(v)
		}
	}
	return digest
}

// Stats is the size of a table.
type Stats struct {
	Rows        uint64 // including cold rows
	Segments    int
	Bytes       uint64 // memory of segments, their overflow tables, the directory, and the metadata of cold rows
	ColdRows    uint64 // number of rows on disk, including those that a row in memory hides
	ColdBytes   uint64 // disk space
	SharedBytes uint64 // the part of ColdBytes that the table shares with tables of other parts of a split shard

	SealedRows  uint64 // number of packed rows in memory, including those that a changed row hides
	SealedBytes uint64 // memory; included in Bytes
}

// Stats returns the size of the table. Rows and Bytes may be from slightly different moments.
func (t *Table) Stats() Stats {
	st := ownStats(t)
	p := t.dir.Load().parted()
	if p == nil { // so no row was in a part
		return st
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	st = ownStats(t)
	for _, table := range p.tables {
		part := table.Stats()
		st.Rows, st.Segments, st.Bytes = st.Rows+part.Rows, st.Segments+part.Segments, st.Bytes+part.Bytes
		st.SealedRows, st.SealedBytes = st.SealedRows+part.SealedRows, st.SealedBytes+part.SealedBytes
		st.ColdRows, st.ColdBytes = st.ColdRows+part.ColdRows, st.ColdBytes+part.ColdBytes
	}
	return st
}

// ownStats returns the size of a table without its parts.
func ownStats(t *Table) Stats {
	d := t.dir.Load()
	st := Stats{Rows: uint64(t.rows.Load()), Segments: len(d.segs), Bytes: uint64(unsafe.Sizeof(*t))}
	var divided map[Generation]bool // generations of divided parts that were counted already
	for i := range d.segs {
		s := d.segs[i].Load()
		st.Bytes += uint64(s.bytes())
		if s.cold == nil {
			continue
		}
		st.Bytes += uint64(unsafe.Sizeof(*s.cold))
		if s.cold.divided && !s.cold.share() {
			if divided[s.cold.generation] {
				continue
			}
			if divided == nil {
				divided = map[Generation]bool{}
			}
			divided[s.cold.generation] = true
		}
		st.addPart(s.cold)
	}
	return st
}

// addPart adds the rows and bytes of a part's generation to st. A share counts as so much of the
// generation's bytes as it has of the rows.
func (st *Stats) addPart(c *coldPart) {
	rows := uint64(c.size())
	memory, disk := c.generation.Bytes()
	if all := int64(max(c.generation.Rows(), 1)); c.share() {
		memory, disk = memory*int64(rows)/all, disk*int64(rows)/all
		st.SharedBytes += uint64(disk)
	}
	st.Bytes += uint64(memory)
	if c.onDisk() {
		st.ColdRows, st.ColdBytes = st.ColdRows+rows, st.ColdBytes+uint64(disk)
	} else {
		st.SealedRows, st.SealedBytes = st.SealedRows+rows, st.SealedBytes+uint64(memory)
	}
}
