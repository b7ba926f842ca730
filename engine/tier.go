package engine

import "context"

// Cold stores rows of one table outside of memory. engine/cold implements it.
type Cold interface {
	// Write stores each page as one generation. No page is empty. Before Write returns, it makes
	// the generations durable, reads them back, and compares them with the pages. The caller must
	// release the generations.
	Write(pages []*Page) ([]Generation, error)
}

// Generation is an immutable set of rows on disk, or of sealed rows in memory. Retain and Release
// count references. A generation exists until its last reference is released and no stored snapshot
// names it any more. Its methods are safe for concurrent use.
type Generation interface {
	Number() uint64 // no other generation of the table on disk ever had this number
	Rows() int      // number of rows; none is all zero
	Width() int     // all counts of columns at or above Width are 0
	Bytes() (memory, disk int64)
	// Get fills row with the first len(row) counts of id, or with zeros if there is no such row. It
	// may wait for other reads, until ctx ends.
	Get(ctx context.Context, id uint64, row []int64) error
	// GetNow is like Get, but does not wait for other reads and has no deadline. It is for a caller
	// that blocks other goroutines.
	GetNow(id uint64, row []int64) error
	// Load appends the rows of ids first … last to p. If p is narrower than the rows, it drops
	// their other columns.
	Load(first, last uint64, p *Page) error
	Retain()
	Release()
}

// coldPart is the rows of a segment that are on disk or sealed, instead of in its array. They are
// the generation's rows with ids first … last. A row in the array, even a row of zeros, hides the
// row of the same id here. A coldPart never changes. The segment owns one reference to the
// generation.
//
// first … last is the segment's range when the part was made. If a neighbour was dropped since, the
// segment owns more ids. The generation may have rows of those ids too, but they are outdated.
type coldPart struct {
	generation  Generation
	first, last uint64
	divided     bool // other parts of the table may have the same generation
	// A share has only those rows that filter selects: tables of other parts of a split shard, or those
	// of a parted table, have the others. rows is then about the number of those with ids first … last.
	filter Filter
	rows   int
	of     *coldPart // for a share, the part that Parting.Step has divided, without a share of its own
}

// share reports whether c has not all rows of its generation. It returns false if c is nil.
func (c *coldPart) share() bool { return c != nil && c.filter.Modulus > 0 }

// size returns the number of rows, including those that a row in memory hides.
func (c *coldPart) size() int {
	if c.share() {
		return c.rows
	}
	return c.generation.Rows()
}

// load appends the rows with ids from … on to p. It is like Generation.Load.
func (c *coldPart) load(from uint64, p *Page) error {
	n := len(p.IDs)
	if err := c.generation.Load(max(from, c.first), c.last, p); err != nil {
		return err
	}
	p.Filter(n, c.filter)
	return nil
}

// mayHave reports whether the part, which may be nil, may contain a row of id.
func (c *coldPart) mayHave(id uint64) bool {
	return c != nil && id-c.first <= c.last-c.first && c.filter.Has(id)
}

// onDisk reports whether c is a part on disk, whose reads may block. It returns false if c is nil.
func (c *coldPart) onDisk() bool { return c != nil && c.sealed() == nil }

// sealed returns the packed rows if the part is in memory, and nil if it is on disk or c is nil.
func (c *coldPart) sealed() *sealed {
	if c == nil {
		return nil
	}
	s, _ := c.generation.(*sealed)
	return s
}

// read fills dst with the counts of id; the segment's array must not have a row of id. It returns
// false if the row may be on disk. c may be nil.
func (c *coldPart) read(id uint64, dst []int64) bool {
	if !c.mayHave(id) {
		clear(dst)
		return true
	}
	s := c.sealed()
	if s != nil {
		s.read(id, dst)
	}
	return s != nil
}

// retain and release change the reference count of the part's generation. They do nothing if c is
// nil.
func (c *coldPart) retain() {
	if c != nil {
		c.generation.Retain()
	}
}

func (c *coldPart) release() {
	if c != nil {
		c.generation.Release()
	}
}

// parts returns 1 for a part on disk, 0 for a sealed part or nil.
func (c *coldPart) parts() int64 {
	if c.onDisk() {
		return 1
	}
	return 0
}

// split divides a part, which may be nil, into the ids below start and those from start on. If both
// results are parts, the left one has the reference of c, and the right one a new reference.
func (c *coldPart) split(start uint64) (left, right *coldPart) {
	if left, right = c.cut(start); left != nil && right != nil {
		c.generation.Retain()
	}
	return left, right
}

// cut is split without a new reference.
func (c *coldPart) cut(start uint64) (left, right *coldPart) {
	switch {
	case c == nil:
		return nil, nil
	case start <= c.first:
		return nil, c
	case start > c.last:
		return c, nil
	}
	below, above := *c, *c
	below.last, above.first = start-1, start
	below.divided, above.divided = true, true
	below.rows, above.rows = c.rows/2, c.rows-c.rows/2 // estimates with the right sum
	return &below, &above
}
