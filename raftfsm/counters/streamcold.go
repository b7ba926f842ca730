package counters

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/rows"
)

// These are the sections of cold rows in a stream. A snapshot that a replica stores only names the
// rows:
//
//	cold:     group (4) | generation (8) | its checksum (4) | ids first (8) … last (8) |
//	          number of the first block that has such ids (4) | blocks (4) | the rows in
//	          memory, as a section of rows: none, or with rows of zeros that hide others
//	carried:  the same, followed by the blocks
//	share:    modulus (4) | residue (4) | 1 if the residue is that of wire.MixID of the id, or 0 (1) | number of such
//	          rows in the generation (4) | as cold. The section has only these rows of the generation. A shard that
//	          has split, or was a part, may have such sections
//	carried share: the same, followed by whole blocks
//	block:    a block of engine/cold
//
// A stream that a node sends, to a follower or as a backup, contains the blocks, which CarryBlocks
// inserts. The head states the size of the inserted blocks, because raft must know the size of the
// stream before it sends the stream.
const (
	coldHeadSize  = 40
	shareHeadSize = 13
)

// coldPart is one section of cold rows.
type coldPart struct {
	name        cold.Name
	sum         uint32
	filter      engine.Filter // of a share
	rows        int           // of a share, in the whole generation
	first, last uint64
	block       int // number of the first block
	blocks      int
	hiding      engine.Page // the rows in memory that hide cold rows
}

// coldKind returns the kind of the section of a part.
func coldKind(p *engine.Part) byte {
	if p.Filter.Modulus > 0 {
		return codec.StreamShare
	}
	return codec.StreamCold
}

func appendCold(b []byte, p *engine.Part) []byte {
	if f := p.Filter; f.Modulus > 0 {
		b = binary.LittleEndian.AppendUint32(b, f.Modulus)
		b = binary.LittleEndian.AppendUint32(b, f.Residue)
		hashed := byte(0)
		if f.Hashed {
			hashed = 1
		}
		b = binary.LittleEndian.AppendUint32(append(b, hashed), uint32(p.Rows))
	}
	g := p.Cold.(*cold.Generation) // the only implementation on disk
	block, sizes := g.Carried(p.First, p.Last)
	b = binary.LittleEndian.AppendUint32(b, g.Name().Group)
	b = binary.LittleEndian.AppendUint64(b, g.Number())
	b = binary.LittleEndian.AppendUint32(b, g.Sum())
	b = binary.LittleEndian.AppendUint64(b, p.First)
	b = binary.LittleEndian.AppendUint64(b, p.Last)
	b = binary.LittleEndian.AppendUint32(b, uint32(block))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(sizes)))
	return rows.AppendRows(b, p.Page, 0, len(p.Page.IDs))
}

// parse decodes a section of a kind.
func (c *coldPart) parse(kind byte, p []byte) error {
	c.filter, c.rows = engine.Filter{}, 0
	if kind == codec.StreamShare || kind == codec.StreamCarriedShare {
		if len(p) < shareHeadSize {
			return fmt.Errorf("%w: a share of cold rows of %d bytes", codec.ErrSnapshot, len(p))
		}
		c.filter = engine.Filter{Modulus: binary.LittleEndian.Uint32(p), Residue: binary.LittleEndian.Uint32(p[4:]), Hashed: p[8] == 1}
		c.rows = int(binary.LittleEndian.Uint32(p[9:]))
		if c.filter.Residue >= c.filter.Modulus || p[8] > 1 {
			return fmt.Errorf("%w: a share %d mod %d (%d) of cold rows", codec.ErrSnapshot, c.filter.Residue, c.filter.Modulus, p[8])
		}
		p = p[shareHeadSize:]
	}
	if len(p) < coldHeadSize {
		return fmt.Errorf("%w: cold rows of %d bytes", codec.ErrSnapshot, len(p))
	}
	c.name = cold.Name{Group: binary.LittleEndian.Uint32(p), Number: binary.LittleEndian.Uint64(p[4:])}
	c.sum = binary.LittleEndian.Uint32(p[12:])
	c.first, c.last = binary.LittleEndian.Uint64(p[16:]), binary.LittleEndian.Uint64(p[24:])
	c.block, c.blocks = int(binary.LittleEndian.Uint32(p[32:])), int(binary.LittleEndian.Uint32(p[36:]))
	if c.first > c.last {
		return fmt.Errorf("%w: cold rows of ids %d…%d", codec.ErrSnapshot, c.first, c.last)
	}
	if err := rows.ParseRows(p[coldHeadSize:], &c.hiding, true); err != nil {
		return err
	}
	if n := len(c.hiding.IDs); n > 0 && (c.hiding.IDs[0] < c.first || c.hiding.IDs[n-1] > c.last) {
		return fmt.Errorf("%w: rows %d…%d over cold ones of %d…%d", codec.ErrSnapshot, c.hiding.IDs[0], c.hiding.IDs[n-1], c.first, c.last)
	}
	return nil
}

// ParseHiding decodes the rows in memory of a section of cold rows that are named: StreamCold or StreamShare.
func ParseHiding(kind byte, p []byte, page *engine.Page) error {
	var c coldPart
	err := c.parse(kind, p)
	*page = c.hiding
	return err
}

// carriedBytes returns the number of bytes by which the blocks of all cold rows would enlarge a
// stream, or -1 if there are no cold rows.
func carriedBytes(table *engine.Snapshot) int64 {
	total := int64(-1)
	table.Cold(func(p *engine.Part) {
		total = max(total, 0)
		_, sizes := p.Cold.(*cold.Generation).Carried(p.First, p.Last)
		for _, size := range sizes {
			total += codec.SectionHeadSize + int64(size) + codec.ChecksumSize
		}
	})
	return total
}

// readBlocks decodes the blocks that follow a carried part, and stores their rows in base. Then it
// widens base or c.hiding, so that both have the same width.
func (c *coldPart) readBlocks(s *codec.StreamReader, base *engine.Page) error {
	*base = engine.Page{IDs: base.IDs[:0], Width: 1, Counts: base.Counts[:0]}
	for i := range c.blocks {
		kind, b, err := s.Next()
		if err != nil {
			return err
		}
		if kind != codec.StreamBlock {
			return fmt.Errorf("%w: section kind %d in place of a block", codec.ErrSnapshot, kind)
		}
		if i == 0 {
			base.Width = max(cold.BlockWidth(b), c.hiding.Width)
		} else if w := cold.BlockWidth(b); w > base.Width {
			base.Widen(w)
		}
		n := len(base.IDs)
		if err := cold.DecodeBlock(c.name, c.block+i, b, c.first, c.last, base); err != nil {
			return fmt.Errorf("%w: %w", codec.ErrSnapshot, err)
		}
		base.Filter(n, c.filter)
	}
	c.hiding.Widen(base.Width)
	base.Widen(c.hiding.Width)
	return nil
}

// loading is the state of loading the table of a shard of counters from a stream.
type loading struct {
	table *engine.Table
	cold  *cold.Group
	old   func(first, last uint64) bool // reports whether to seal rows; nil to seal none

	sealer engine.Sealer
	page   engine.Page
	named  bool        // loadNamed has added rows whose blocks it did not read
	base   engine.Page // the cold rows of a carried part
	part   coldPart
	loose  int // number of carried parts that are still in memory
	moved  int // number of carried rows written to this node's disk
	// carried is set if the last section was a carried part. Then above is the first key, and below
	// the last key, of the segments with the latest carried parts.
	carried      bool
	above, below uint64
}

// loadRows adds hot rows.
func (l *loading) loadRows(payload []byte) error {
	if err := l.settle(); err != nil {
		return err
	}
	l.carried = false
	if err := rows.ParseRows(payload, &l.page, false); err != nil {
		return err
	}
	return l.loadPage()
}

// loadPage adds the rows of page, which are as many as in a segment. If they are old, it seals
// them.
func (l *loading) loadPage() error {
	if l.old == nil || !l.old(l.page.IDs[0], l.page.IDs[len(l.page.IDs)-1]) {
		return rows.LoadPage(l.table, &l.page)
	}
	if err := l.table.LoadSealed(&l.page, &l.sealer); err != nil {
		return fmt.Errorf("%w: %w", codec.ErrSnapshot, err)
	}
	return nil
}

// end completes the table. If the stream only names cold rows, end sets the table's number of rows
// and digest to those in the stream. The checksums of the generations guarantee that these are
// right.
func (l *loading) end(told codec.Totals) error {
	if err := l.settle(); err != nil {
		return err
	}
	if l.named {
		l.table.Adopt(int64(told.Rows), told.Digest)
	}
	return nil
}

// loadNamed adds cold rows that the stream names and that are on this node's disk.
func (l *loading) loadNamed(kind byte, payload []byte) error {
	if err := l.part.parse(kind, payload); err != nil {
		return err
	}
	if l.cold == nil {
		return fmt.Errorf("%w: it names cold rows, and there are none here", codec.ErrSnapshot)
	}
	g, err := l.cold.OpenNamed(l.part.name, l.part.sum)
	if errors.Is(err, cold.ErrDamaged) {
		return fmt.Errorf("%w: %w", raftfsm.ErrColdLost, err)
	}
	if err != nil {
		return fmt.Errorf("cannot open cold rows: %w", err)
	}
	l.named = true
	err = l.table.LoadCold(&engine.Part{
		Page: &l.part.hiding, Cold: g, First: l.part.first, Last: l.part.last, Filter: l.part.filter, Rows: l.part.rows,
	})
	if err != nil {
		return fmt.Errorf("%w: %w", codec.ErrSnapshot, err)
	}
	return nil
}

// looseMax bounds the carried parts in memory. A part has about 10,000 rows.
const looseMax = 16

// loadCarried adds cold rows that are in the stream. It first loads them into memory. Later it
// writes several parts together to this node's disk, as generations.
func (l *loading) loadCarried(s *codec.StreamReader, kind byte, payload []byte) error {
	if err := l.part.parse(kind, payload); err != nil {
		return err
	}
	if err := l.part.readBlocks(s, &l.base); err != nil {
		return err
	}
	if l.page.Merge(&l.part.hiding, &l.base); len(l.page.IDs) == 0 {
		return nil
	}
	if l.cold == nil {
		return l.loadPage()
	}
	if !l.carried {
		l.carried, l.above = true, l.table.Cut(l.part.first) // begin a segment without hot rows
	}
	if err := rows.LoadPage(l.table, &l.page); err != nil {
		return err
	}
	l.below = l.part.last
	if l.loose++; l.loose < looseMax {
		return nil
	}
	return l.settle()
}

// settle moves the carried parts in memory to disk. If the disk is full, they stay in memory,
// because a node that opens its own snapshot must be able to start.
func (l *loading) settle() error {
	if l.loose == 0 {
		return nil
	}
	l.loose = 0
	if l.below < 1<<64-1 {
		l.table.Cut(l.below + 1) // start another segment, because Freeze skips the last one
	}
	carried := func(first, last uint64) bool { return first >= l.above && last <= l.below }
	l.table.Watch(carried, false)
	idle, _ := l.table.Watch(carried, false)
	rows, err := l.table.Freeze(l.cold, idle)
	if err != nil && !errors.Is(err, cold.ErrFull) {
		return fmt.Errorf("cannot keep cold rows: %w", err)
	}
	l.moved += rows
	return nil
}
