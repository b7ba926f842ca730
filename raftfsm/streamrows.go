package raftfsm

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/countd/countd/engine"
)

// A section of rows.
//
//	payload:  width (1) | rows (4) | row …        1 to 32,768, ascending
//	row:      key - key of the row before, 0 for the first of the section (uvarint)
//	          columns that are not 0, bit i for column i (uvarint) | count … (varint)

// sectionRowsMax bounds the rows of a section, and with it what a reader of
// rows allocates: 17 MB at the most columns. It is above a usual segment's
// rows, so that nearly always a section is one segment.
const sectionRowsMax = 1 << 15

// appendRows appends rows from … to-1 of a page.
func appendRows(b []byte, p *engine.Page, from, to int) []byte {
	b = binary.LittleEndian.AppendUint32(append(b, byte(p.Width)), uint32(to-from))
	last := uint64(0)
	for i := from; i < to; i++ {
		id := p.IDs[i]
		b = binary.AppendUvarint(b, id-last)
		last = id
		row, set := p.Row(i), uint64(0)
		for c, v := range row {
			if v != 0 {
				set |= 1 << c
			}
		}
		b = binary.AppendUvarint(b, set)
		for ; set != 0; set &= set - 1 {
			b = binary.AppendVarint(b, row[bits.TrailingZeros64(set)])
		}
	}
	return b
}

// parseRows fills page, whose memory it uses again. Over cold rows there may be none,
// and rows of zeros.
func parseRows(p []byte, page *engine.Page, overCold bool) error {
	bad := func(what string, i int) error { return fmt.Errorf("%w: %s of row %d", errSnapshot, what, i) }
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

// loadRows adds a section of rows to a table that holds only smaller keys.
func loadRows(table *engine.Table, p []byte, page *engine.Page) error {
	if err := parseRows(p, page, false); err != nil {
		return err
	}
	return loadPage(table, page)
}

func loadPage(table *engine.Table, page *engine.Page) error {
	if err := table.Load(page); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	return nil
}
