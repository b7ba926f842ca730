package rows

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// A section of rows.
//
//	payload:  width (1) | rows (4) | row …        1 to 32,768, ascending
//	row:      key - key of the row before, 0 for the first of the section (uvarint)
//	          columns that are not 0, bit i for column i (uvarint) | count … (varint)

const (
	// sectionRowsMax bounds the rows of a section, and so the memory of its reader: 17 MB with
	// ColumnsMax columns.
	sectionRowsMax = 1 << 15

	// sectionRows is the largest number of rows of a section that Sections writes. It is near the
	// rows of a full segment, because a reader that packs rows makes a segment of each section.
	sectionRows = 10_000

	// A section ends after sectionRowsMin rows before the first key whose hash is a multiple of
	// cutOneIn. So a row that is added or removed changes only the sections near it, and a later
	// backup shares all others. Most sections find such a key before sectionRows. Only the last
	// section, and a section before cold rows, may have fewer rows.
	sectionRowsMin = 8_000
	cutOneIn       = 1 << 9
)

// Compile-time checks: a section can hold the rows of any segment, and a segment can hold
// sectionRows rows.
const (
	_ = uint(sectionRowsMax - engine.SegmentRowsMax)
	_ = uint(engine.SegmentRowsMax - sectionRows)
)

// Sections writes rows as sections of a kind, with some sectionRows rows each. It receives the rows in
// pages, one for each segment. The sections do not depend on the division into pages, so equal rows
// make equal bytes.
type Sections struct {
	W    *codec.StreamWriter
	Kind byte

	rows  int    // buffered rows
	last  uint64 // key of the last buffered row
	width int    // columns that the buffered rows need
	buf   []byte
}

// Add buffers the rows of a page, and writes full sections.
func (r *Sections) Add(p *engine.Page) error {
	for i, id := range p.IDs {
		if r.rows == sectionRows || r.rows >= sectionRowsMin && wire.Mix(id)%cutOneIn == 0 {
			if err := r.Flush(); err != nil {
				return err
			}
		}
		r.buf, r.width = appendRow(r.buf, id-r.last, p.Row(i), r.width)
		r.rows, r.last = r.rows+1, id
	}
	return nil
}

// Flush writes the buffered rows.
func (r *Sections) Flush() error {
	if r.rows == 0 {
		return nil
	}
	err := r.W.Section(r.Kind, func(b []byte) []byte {
		width := max(4, (r.width+3)&^3) // multiples of four: equal rows have equal bytes, whatever the width of their pages
		b = binary.LittleEndian.AppendUint32(append(b, byte(width)), uint32(r.rows))
		return append(b, r.buf...)
	})
	r.rows, r.last, r.width, r.buf = 0, 0, 0, r.buf[:0]
	return err
}

// AppendRows appends a payload with the rows from, …, to-1 of a page.
func AppendRows(b []byte, p *engine.Page, from, to int) []byte {
	b = binary.LittleEndian.AppendUint32(append(b, byte(p.Width)), uint32(to-from))
	last := uint64(0)
	for i := from; i < to; i++ {
		b, _ = appendRow(b, p.IDs[i]-last, p.Row(i), 0)
		last = p.IDs[i]
	}
	return b
}

// appendRow appends a row whose key exceeds the previous row's key by step. It also returns the
// larger of width and the number of columns that the row needs.
func appendRow(b []byte, step uint64, row []int64, width int) ([]byte, int) {
	set := uint64(0)
	for c, v := range row {
		if v != 0 {
			set |= 1 << c
		}
	}
	width = max(width, bits.Len64(set))
	b = binary.AppendUvarint(binary.AppendUvarint(b, step), set)
	for ; set != 0; set &= set - 1 {
		b = binary.AppendVarint(b, row[bits.TrailingZeros64(set)])
	}
	return b, width
}

// ParseRows decodes the payload of a section into page, and reuses its memory. If overCold is set,
// the section may have no rows, and may have rows of zeros.
func ParseRows(p []byte, page *engine.Page, overCold bool) error {
	bad := func(what string, i int) error { return fmt.Errorf("%w: %s of row %d", codec.ErrSnapshot, what, i) }
	if len(p) < 5 || p[0] < 1 || p[0] > engine.ColumnsMax {
		return bad("head", 0)
	}
	width, rows := int(p[0]), int(binary.LittleEndian.Uint32(p[1:]))
	p = p[5:]
	if rows < 1 && !overCold || rows > sectionRowsMax {
		return bad("number", rows)
	}
	page.IDs, page.Width, page.Counts = page.IDs[:0], width, page.Counts[:0]
	id := uint64(0)
	for i := range rows {
		step, n := binary.Uvarint(p)
		if n <= 0 {
			return bad("key", i)
		}
		set, m := binary.Uvarint(p[n:])
		if m <= 0 || set == 0 && !overCold || bits.Len64(set) > width {
			return bad("columns", i)
		}
		p = p[n+m:]
		if i > 0 && id+step <= id {
			return bad("order", i)
		}
		id += step
		page.IDs = append(page.IDs, id)
		for c := range width {
			var v int64
			if set>>c&1 != 0 {
				if v, n = binary.Varint(p); n <= 0 || v == 0 {
					return bad("count", i)
				}
				p = p[n:]
			}
			page.Counts = append(page.Counts, v)
		}
	}
	if len(p) > 0 {
		return bad("bytes after the last", rows)
	}
	return nil
}

// LoadRows adds a section of rows to a table that has only smaller keys.
func LoadRows(table *engine.Table, p []byte, page *engine.Page) error {
	if err := ParseRows(p, page, false); err != nil {
		return err
	}
	return LoadPage(table, page)
}

// LoadPage adds the rows of a page to a table that has only smaller keys.
func LoadPage(table *engine.Table, page *engine.Page) error {
	if err := table.Load(page); err != nil {
		return fmt.Errorf("%w: %w", codec.ErrSnapshot, err)
	}
	return nil
}

// WriteRows writes the rows of a table as sections of a kind. The table must have no cold rows.
func WriteRows(s *codec.StreamWriter, kind byte, table *engine.Snapshot) error {
	rows := Sections{W: s, Kind: kind}
	if err := table.Pages(rows.Add); err != nil {
		return err
	}
	return rows.Flush()
}

// Walk visits the sections of rows of a snapshot.
type Walk struct {
	See    *raftfsm.SnapshotVisitor
	Facts  *raftfsm.SnapshotFacts
	Page   engine.Page // rows of the section
	table  raftfsm.Table
	last   uint64 // key of the previous row of the same table
	behind bool   // there is a previous row
}

// Section visits the rows of a section of a table.
func (w *Walk) Section(table raftfsm.Table, p []byte) error {
	if err := ParseRows(p, &w.Page, false); err != nil {
		return err
	}
	return w.Visit(table)
}

// Visit visits the rows in Page as rows of a table.
func (w *Walk) Visit(table raftfsm.Table) error {
	if first := w.Page.IDs[0]; w.behind && table == w.table && first <= w.last {
		return fmt.Errorf("%w: key %d behind %d", codec.ErrSnapshot, first, w.last)
	}
	w.Facts.Rows += uint64(len(w.Page.IDs))
	w.table, w.last, w.behind = table, w.Page.IDs[len(w.Page.IDs)-1], true
	if w.See.Rows == nil {
		return nil
	}
	return w.See.Rows(table, &w.Page)
}
