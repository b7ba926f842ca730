package raftfsm

import (
	"fmt"
	"io"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm/codec"
)

// Carried is a snapshot with the blocks of the cold rows that it names.
type Carried struct {
	stream *codec.StreamReader
	cold   *cold.Group
	added  int64
	// release releases all generations, which the snapshot may outlive. It is nil after
	// the call, or if there are none.
	release func()

	out    []byte // framed sections that were not read yet
	buf    []byte
	part   coldPart
	blocks *cold.Generation // generation of part, whose blocks from next on follow; nil for none
	next   int
	ended  bool
}

// CarryBlocks returns the snapshot of counters in r with the blocks of its cold rows,
// which are on this node's disk. The caller closes it.
func CarryBlocks(r io.Reader, rows *cold.Group) (*Carried, error) {
	c := &Carried{stream: codec.NewStreamReader(r), cold: rows}
	head, added, err := c.stream.CarriedHead(codec.KindCounters)
	if err != nil {
		return nil, err
	}
	if c.added = added; rows != nil {
		c.release = rows.Hold()
	}
	c.frame(codec.StreamHead, head)
	return c, nil
}

// Added returns how many bytes the blocks take with their frames.
func (c *Carried) Added() int64 { return c.added }

// Close releases the cold rows. It does not close r.
func (c *Carried) Close() {
	c.endBlocks()
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

// more frames the next section.
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
	kind, p, err := c.stream.Next()
	if err == nil {
		err = c.stream.Allows(kind)
	}
	if err != nil {
		return err
	}
	switch kind {
	case codec.StreamEnd:
		c.ended = true
		if err := c.stream.AtEnd(); err != nil {
			return err
		}
	case codec.StreamCold:
		if err := c.carry(p); err != nil {
			return err
		}
		kind = codec.StreamCarried
	}
	c.frame(kind, p)
	return nil
}

func (c *Carried) carry(p []byte) error {
	if err := c.part.parse(p); err != nil {
		return err
	}
	if c.cold == nil {
		return fmt.Errorf("%w: it names cold rows, and there are none here", codec.ErrSnapshot)
	}
	g, err := c.cold.Open(c.part.generation, c.part.sum)
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
