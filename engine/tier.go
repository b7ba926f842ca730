package engine

import "context"

// Cold stores rows of one table outside of memory. engine/cold implements it.
type Cold interface {
	// Write stores each page as one generation. No page is empty. When Write returns, the
	// generations are durable, and Write has verified them by reading them back. The caller
	// releases the generations.
	Write(pages []*Page) ([]Generation, error)
}

// Generation is an immutable set of rows on disk, or of sealed rows in memory. Retain and
// Release count references. A generation exists at least until its last reference is
// released, and as long as a snapshot names it. Its methods are safe for concurrent use.
type Generation interface {
	Number() uint64 // unique among all generations that the table ever had on disk
	Rows() int      // none is all zero
	Width() int     // all counts of columns at or above Width are 0
	Bytes() (memory, disk int64)
	// Get fills row with the first len(row) counts of id, zeros if there is no such row.
	// It waits for its turn to read until ctx ends.
	Get(ctx context.Context, id uint64, row []int64) error
	// GetNow is like Get, but without a turn and without a deadline, for a caller that blocks
	// others.
	GetNow(id uint64, row []int64) error
	// Load appends the rows of ids first … last to p. p may be narrower than the rows.
	Load(first, last uint64, p *Page) error
	Retain()
	Release()
}

// coldPart is the rows of a segment that are not in its array, on disk or sealed: the generation's
// rows with ids first … last. A row in the segment's array, even a row of zeros, hides the row with
// its id. A coldPart never changes. The segment owns one reference to the generation.
//
// first … last is the segment's range when the part was made. The segment may own more
// ids since a neighbour was dropped; the generation's rows of those ids, if any, are
// outdated.
type coldPart struct {
	generation  Generation
	first, last uint64
	divided     bool // other parts of the generation may exist
}

// mayHave reports whether the part, which may be nil, may contain a row of id.
func (c *coldPart) mayHave(id uint64) bool { return c != nil && id-c.first <= c.last-c.first }

// onDisk reports whether there is a part that is on disk, so that reading it may block.
func (c *coldPart) onDisk() bool { return c != nil && c.sealed() == nil }

// sealed returns the rows of the part if they are in memory; the part may be nil.
func (c *coldPart) sealed() *sealed {
	if c == nil {
		return nil
	}
	s, _ := c.generation.(*sealed)
	return s
}

// read fills dst with a row that the segment's array does not contain. It returns false
// if the row may be on disk. The part may be nil.
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

// retain and release change the reference count of the part's generation; a nil part has
// none.
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

// split divides the part of a segment, nil for none, at an id. The left part, if there is
// one, takes over the segment's reference to the generation.
func (c *coldPart) split(start uint64) (left, right *coldPart) {
	switch {
	case c == nil:
		return nil, nil
	case start <= c.first:
		return nil, c
	case start > c.last:
		return c, nil
	}
	c.generation.Retain()
	return &coldPart{generation: c.generation, first: c.first, last: start - 1, divided: true}, &coldPart{generation: c.generation, first: start, last: c.last, divided: true}
}
