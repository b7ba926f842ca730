package counters

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/codec"
)

// Carried reads a stored snapshot of a shard of counters as a stream that contains the cold rows
// and the sets of members. A stored snapshot only names them.
type Carried struct {
	stream *codec.StreamReader
	cold   *cold.Group
	added  int64
	// release ends the Hold that keeps all generations of rows on disk. It is nil after Close, and
	// for a shard without cold rows.
	release func()

	out    []byte // framed sections that were not read yet
	buf    []byte
	part   coldPart
	blocks *cold.Generation // generation of part, or nil; next is the number of its first block that was not framed yet
	next   int
	ended  bool

	peeked  bool // kind and payload are the section after the head, not yet framed
	kind    byte
	payload []byte
	sets    *members.ViewReader // sets not yet read, nil if there are none
	block   []byte
}

// CarryBlocks reads a stored snapshot of a shard of counters from r. It returns a stream of the
// same snapshot, into which it inserts the blocks of cold rows and the sets of members from this
// node's disk. The caller must close the result.
func CarryBlocks(r io.Reader, rows *cold.Group, sets *members.Group) (*Carried, error) {
	c := &Carried{stream: codec.NewStreamReader(r), cold: rows}
	head, added, err := c.stream.CarriedHead(codec.KindCounters)
	if err != nil {
		return nil, err
	}
	if c.added = added; rows != nil {
		c.release = rows.Hold()
	}
	c.frame(codec.StreamHead, head)
	if err := c.peek(sets); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// peek reads the section after the head. If that section names sets, peek opens the sets.
func (c *Carried) peek(sets *members.Group) (err error) {
	if c.kind, c.payload, err = c.stream.Next(); err != nil {
		return err
	}
	if c.peeked = true; c.kind != codec.StreamMembers {
		return nil
	}
	if len(c.payload) != setsNamedSize || sets == nil {
		return fmt.Errorf("%w: it names members, and there are none here", codec.ErrSnapshot)
	}
	at := parseSetsState(c.payload[4:])
	if c.sets, err = sets.OpenView(at); err != nil {
		return fmt.Errorf("cannot carry members: %w", err)
	}
	blocks, bytes := c.sets.Size()
	c.added += setsCarriedSize - setsNamedSize + int64(blocks)*(codec.SectionHeadSize+codec.ChecksumSize) + bytes
	c.kind = codec.StreamCarriedMembers
	c.payload = appendSetsState(appendSetsState(nil, at), c.sets.State())
	c.payload = binary.LittleEndian.AppendUint32(c.payload, uint32(blocks))
	return nil
}

// Added returns the size of the inserted blocks and sets, with their frames.
func (c *Carried) Added() int64 { return c.added }

// Close releases the cold rows and the sets. It does not close r.
func (c *Carried) Close() {
	c.endBlocks()
	c.endSets()
	if c.release != nil {
		c.release()
		c.release = nil
	}
}

func (c *Carried) endBlocks() {
	if c.blocks != nil {
		c.blocks.Release()
		c.blocks = nil
	}
}

func (c *Carried) endSets() {
	if c.sets != nil {
		c.sets.Close()
		c.sets = nil
	}
}

// Read implements io.Reader.
func (c *Carried) Read(p []byte) (int, error) {
	for len(c.out) == 0 {
		if err := c.more(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	return n, nil
}

// more puts the next section into out, with its frame.
func (c *Carried) more() error {
	if c.ended {
		return io.EOF
	}
	if c.blocks != nil {
		if c.next < c.part.block+c.part.blocks {
			b, err := c.blocks.Block(c.next)
			if err != nil {
				return fmt.Errorf("cannot carry cold rows: %w", err)
			}
			c.next++
			c.frame(codec.StreamBlock, b)
			return nil
		}
		c.endBlocks()
	}
	if c.peeked {
		c.peeked = false
		return c.section(c.kind, c.payload)
	}
	if c.sets != nil {
		b, err := c.sets.Next(c.block[:0])
		if err == nil {
			c.block = b
			c.frame(codec.StreamMemberBlock, b)
			return nil
		}
		if c.endSets(); !errors.Is(err, io.EOF) {
			return fmt.Errorf("cannot carry members: %w", err)
		}
	}
	kind, p, err := c.stream.Next()
	if err != nil {
		return err
	}
	return c.section(kind, p)
}

// section puts a section of the stored snapshot into out. If the section names cold rows, it opens
// them, so that their blocks follow.
func (c *Carried) section(kind byte, p []byte) error {
	switch kind {
	case codec.StreamEnd:
		c.ended = true
		if err := c.stream.AtEnd(); err != nil {
			return err
		}
	case codec.StreamCold, codec.StreamShare:
		if err := c.carry(kind, p); err != nil {
			return err
		}
		if kind = codec.StreamCarried; c.part.filter.Modulus > 0 {
			kind = codec.StreamCarriedShare // with whole blocks: the reader leaves the rows of others out
		}
	}
	c.frame(kind, p)
	return nil
}

func (c *Carried) carry(kind byte, p []byte) error {
	if err := c.part.parse(kind, p); err != nil {
		return err
	}
	if c.cold == nil {
		return fmt.Errorf("%w: it names cold rows, and there are none here", codec.ErrSnapshot)
	}
	g, err := c.cold.OpenNamed(c.part.name, c.part.sum)
	if err != nil {
		return fmt.Errorf("cannot carry cold rows: %w", err)
	}
	c.blocks, c.next = g, c.part.block
	return nil
}

func (c *Carried) frame(kind byte, p []byte) {
	c.buf = append(append(c.buf[:0], kind, 0, 0, 0, 0), p...)
	c.buf = codec.FinishSection(c.buf)
	c.out = c.buf
}
