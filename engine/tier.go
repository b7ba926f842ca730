package engine

import "context"

// Cold keeps rows of one table outside of memory. engine/cold has it.
type Cold interface {
	// Write keeps each page, of which none is empty, as a generation of its own. When
	// it returns they are durable, and were read back as they were given. The
	// caller releases them.
	Write(pages []*Page) ([]Generation, error)
}

// Generation is rows outside of memory, or sealed ones, which never change. Retain and
// Release count who needs it: it is there at least until the last has released it, and
// for as long as a snapshot names it. Its methods may be called from any goroutine.
type Generation interface {
	Number() uint64              // tells it from all others on disk that the table ever had
	Rows() int                   // none of them all zero
	Width() int                  // no row has a count in a column from there on
	Bytes() (memory, disk int64) // what it takes of each
	// Get fills row with the first len(row) counts of id, zeros if there is no such
	// row. It waits for its turn to read, until ctx ends.
	Get(ctx context.Context, id uint64, row []int64) error
	// GetNow is Get without turn and end, for who holds others up.
	GetNow(id uint64, row []int64) error
	// Load appends the rows of ids first … last to p, whose width may be less than
	// that of the rows.
	Load(first, last uint64, p *Page) error
	Retain()
	Release()
}

// coldPart is the rows of a segment that do not stand in its array, on disk or
// sealed: those of the generation from first to last but for the ids that the segment
// has rows of, zeros among them. It never changes. The segment holds one count of the
// generation.
//
// The range is that of the segment when the part was made. The segment may own
// more ids since, when a neighbour was dropped, of which the generation's rows, if
// it has any, are of the past.
type coldPart struct {
	generation  Generation
	first, last uint64
	divided     bool // there may be other parts of the generation
}

// mayHave reports whether a row of id may be in the part, which may be nil.
func (c *coldPart) mayHave(id uint64) bool { return c != nil && id-c.first <= c.last-c.first }

// onDisk reports whether there is a part, and reading it may wait.
func (c *coldPart) onDisk() bool { return c != nil && c.sealed() == nil }

// sealed returns the rows of the part if they are in memory; the part may be nil.
func (c *coldPart) sealed() *sealed {
	if c == nil {
		return nil
	}
	s, _ := c.generation.(*sealed)
	return s
}

// read fills dst with a row that the segment does not have, and returns true; or
// false if it may be on disk. The part may be nil.
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

// retain and release count for a part, nil for none.
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

// parts is 1 for a part on disk, 0 for another or none.
func (c *coldPart) parts() int64 {
	if c.onDisk() {
		return 1
	}
	return 0
}

// split divides the part of a segment, nil for none, at an id. The segment's count
// of the generation is the left part's, if there is one.
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
	return &coldPart{c.generation, c.first, start - 1, true}, &coldPart{c.generation, start, c.last, true}
}
